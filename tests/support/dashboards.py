"""What Grafana asks of a dashboard's panels."""

from __future__ import annotations

from typing import Any


def assert_panels_are_laid_out(panels: list[dict[str, Any]]) -> None:
    """Assert that every panel has an id, words, a data source and a place of its own in Grafana's grid."""
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] in ("stat", "timeseries", "table")
        assert panel["title"]
        assert panel["description"]
        area = panel["gridPos"]
        cells = {
            (x, y) for x in range(area["x"], area["x"] + area["w"]) for y in range(area["y"], area["y"] + area["h"])
        }
        assert max(x for x, _ in cells) < 24, "Grafana's grid has 24 columns"
        assert not cells & taken, f"{panel['title']} covers another panel"
        taken |= cells
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        for owner in (panel, *panel["targets"]):
            assert owner["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
