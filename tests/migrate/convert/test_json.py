"""JSON manifests: they stay JSON, take their templates into a List, and go back with what is kept beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from drabridge.cli import main
from drabridge.migrate.apply.manifests import read_manifests
from drabridge.migrate.convert.conversion import Conversion, convert, reverse
from drabridge.migrate.convert.settings import Level
from drabridge.migrate.convert.yaml_nodes import NotYamlError, documents, parse_json
from tests.migrate.convert.checks import RESOURCE, SETTINGS, filtered

MANIFESTS = Path(__file__).parents[1] / "manifests"
# Their JSON is converted otherwise: aliases are written out, or PyYAML alone refuses the tabs.
OTHERWISE = {"deployment-shared-anchor", "pod-tabs-in-comments"}
FILES = [path for path in sorted(MANIFESTS.glob("*.yaml")) if path.stem not in OTHERWISE]
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "annotations": {"of": "\U0001f600 a/b"}},
    "spec": {"containers": [{"name": "a", "image": "b", "resources": {"limits": {"nvidia.com/gpu": 2, "cpu": 1.5}}}]},
}


def listed(*items: object, kind: str = "List") -> dict[str, object]:
    return {"apiVersion": "v1", "kind": kind, "items": list(items)}


def kinds(text: str) -> list[str]:
    """The kinds of all objects in a text, which is one JSON document."""
    found = json.loads(text)
    return [one["kind"] for one in found["items"]] if found["kind"] == "List" else [found["kind"]]


def check(text: str) -> Conversion:
    """Convert JSON and assert that it still is, that twice is once, and that it goes back."""
    found = convert(text, SETTINGS)
    list(documents(found.text))
    assert convert(found.text, SETTINGS).text == found.text
    back = reverse(found.text, found.undo)
    assert (back.text, back.findings) == (text, [])
    return found


def objects(text: str) -> list[Any]:
    """All objects of a text without those that are templates, and the templates after them."""
    found: list[Any] = []
    for one in documents(text):
        if isinstance(one, dict):
            found += one["items"] if one["kind"] == "List" else [one]
    return sorted(found, key=lambda one: str(one["kind"] == "ResourceClaimTemplate"))


@pytest.mark.parametrize("indent", [None, 2, "\t"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_json_becomes_what_yaml_becomes(path: Path, indent: int | str | None) -> None:
    text = path.read_bytes().decode()
    written = "\n".join(
        json.dumps(one, indent=indent) for one in yaml.safe_load_all(text.removeprefix("\ufeff")) if one
    )
    found = check(written)
    wanted = convert(text, SETTINGS)
    assert [one.level for one in found.findings] == [one.level for one in wanted.findings]
    if found.pods:
        assert objects(found.text) == objects(wanted.text)
    else:
        assert found.text == written


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_one_object_becomes_a_list_and_its_lines_stay(end: str) -> None:
    newline = end or "\n"
    text = json.dumps(POD, indent=4).replace("\n", newline) + end
    found = check(text)
    assert kinds(found.text) == ["Pod", "ResourceClaimTemplate"]
    lines = found.text.split(newline)
    gone = ['                        "nvidia.com/gpu": 2,']
    assert [line for line in text.split(newline)[:-2] if line not in lines] == gone
    assert [line for line in lines if line.strip().startswith('"count"')] == ['              "count": 2'.rjust(38)]


def test_a_list_takes_the_templates_as_items() -> None:
    for indent in (None, 2):
        found = check(json.dumps(listed(POD, {**POD, "metadata": {"name": "q"}}), indent=indent) + "\n")
        assert kinds(found.text) == ["Pod", "Pod", "ResourceClaimTemplate"]


def test_several_objects_one_after_the_other_stay_so() -> None:
    text = f"{json.dumps(POD)}\n{json.dumps({**POD, 'metadata': {'name': 'q'}})}\n"
    assert [one["kind"] for one in map(json.loads, check(text).text.splitlines())] == [
        "Pod",
        "Pod",
        "ResourceClaimTemplate",
    ]


def test_claims_that_are_there_stay() -> None:
    spec = {**POD["spec"], "resourceClaims": []}
    found = json.loads(check(json.dumps({**POD, "spec": spec}, indent=2)).text)["items"][0]
    assert [one["name"] for one in found["spec"]["resourceClaims"]] == ["gpu"]
    spec["resourceClaims"] = [{"name": "net", "resourceClaimName": "net"}]
    found = json.loads(check(json.dumps({**POD, "spec": spec}, indent=2)).text)["items"][0]
    assert [one["name"] for one in found["spec"]["resourceClaims"]] == ["net", "gpu"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps(listed(POD, kind="PodList")), "a list of one kind"),
        (yaml.safe_dump(POD, default_flow_style=True), "begins with {, and this is none"),
    ],
)
def test_what_has_no_place_for_a_template_is_left(text: str, said: str) -> None:
    found = convert(text, SETTINGS)
    assert found.text == text
    (finding,) = found.findings
    assert finding.level is Level.LEFT
    assert said in finding.message
    assert finding.hint


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('{"a": 1,\n "a": 2}', 2, "the key a a second time; the first is in line 1"),
        ('{"a": 1\n "b": 2}', 2, "expected a comma or }"),
        ('{"a": ["b" "c"]}', 1, "expected a comma or ]"),
        ('{"a": "\\ud800"}', 1, "says no text"),
        ('{"a": "b\n', 1, "closed in its line"),
        ('{"a":\n tru, "b": [}', 2, "expected a value"),
        ('{"a" 1, ', 1, "expected a colon"),
        ('{"a": 1}\n[2', 2, "expected an object"),
        ('{"a": ' * 200, 1, "nested deeper than 100 levels"),
    ],
)
def test_what_is_no_json_is_named_with_its_line(text: str, line: int, said: str) -> None:
    found = convert(text, SETTINGS)
    assert found.text == text
    (finding,) = found.findings
    assert (finding.level, finding.line) == (Level.ERROR, line)
    assert finding.message.startswith("no valid JSON")
    assert said in finding.message


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@given(st.dictionaries(st.text(), ANY), st.sampled_from([None, 0, 2, "\t"]), st.booleans(), st.data())
def test_what_is_json_is_what_pythons_own_parser_takes(
    said: dict[str, object], indent: int | str | None, ascii_only: bool, data: st.DataObject
) -> None:
    text = json.dumps(said, indent=indent, ensure_ascii=ascii_only)
    assert list(documents(text)) == [said]
    place = data.draw(st.integers(0, len(text) - 1))
    broken = text[:place] + data.draw(st.sampled_from(["", ",", '"', "{", "0", "\\", "\n"])) + text[place + 1 :]
    try:
        is_one_object = len(parse_json(broken)) == 1
    except NotYamlError:
        is_one_object = False
    if is_one_object:
        json.loads(broken)  # it raises if this is none


def run(*arguments: object) -> int:
    return main(["migrate", "convert", *map(str, arguments)])


def test_in_place_keeps_beside_the_file_what_reverse_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, undo = tmp_path / "pod.json", tmp_path / "pod.json.undo"
    text = json.dumps(POD, indent=2) + "\n"
    path.write_text(text)
    path.chmod(0o640)
    assert run("--reverse", "--check", tmp_path) == 0
    assert run(*RESOURCE, "--in-place", tmp_path) == 0
    assert kinds(path.read_text()) == ["Pod", "ResourceClaimTemplate"]
    assert undo.stat().st_mode & 0o777 == 0o640
    path.write_text(path.read_text().replace('"name": "a"', '"name": "mine"'))
    assert run("--reverse", "--in-place", tmp_path) == 0
    assert path.read_text() == text.replace('"name": "a"', '"name": "mine"')
    assert not undo.exists()
    capsys.readouterr()


def test_two_conversions_go_back_and_what_no_longer_holds_is_dropped(tmp_path: Path) -> None:
    path, undo = tmp_path / "pods.json", tmp_path / "pods.json.undo"
    text = json.dumps(POD) + "\n"
    path.write_text(text)
    assert run(*RESOURCE, "--in-place", "--backup", ".1", path) == 0
    more = json.dumps({**POD, "metadata": {"name": "q"}}) + "\n"
    path.write_text(path.read_text() + more)
    assert run(*RESOURCE, "--in-place", "--backup", ".2", path) == 0
    assert undo.read_text().count("end mark\n") == 2
    assert run("--reverse", "--in-place", path) == 0
    assert path.read_text() == text + more
    assert run(*RESOURCE, "--in-place", "--backup", ".3", path) == 0
    path.write_text(text)  # from version control, and the .undo stays
    assert run("--reverse", "--check", path) == 0
    assert run(*RESOURCE, "--in-place", "--backup", ".4", path) == 0
    assert run("--reverse", "--in-place", path) == 0
    assert path.read_text() == text


def test_reverse_is_refused_where_the_old_lines_are_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, undo = tmp_path / "pod.json", tmp_path / "pod.json.undo"
    path.write_text(json.dumps(POD, indent=2))
    assert run(*RESOURCE, "--in-place", path) == 0
    converted = path.read_text()
    path.write_text(converted.replace('"claims": [{"name": "gpu"}]', '"claims": []'))
    assert run("--reverse", "--in-place", path) == 1
    assert "were changed, added or taken out since" in capsys.readouterr().err
    path.write_text(converted)
    undo.unlink()
    assert run("--reverse", "--in-place", path) == 1
    assert "the old lines is gone. Restore the file from its backup" in capsys.readouterr().err
    assert path.read_text() == converted


def test_standard_input_says_that_it_cannot_go_back() -> None:
    done = filtered(json.dumps(POD).encode(), *RESOURCE, "-")
    assert (done.returncode, kinds(done.stdout.decode())) == (0, ["Pod", "ResourceClaimTemplate"])
    assert b"note: --reverse cannot use this output" in done.stderr
    done = filtered(json.dumps(POD).encode(), *RESOURCE, "--post-renderer")
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_plan_reads_json(tmp_path: Path) -> None:
    path = tmp_path / "pod.json"
    path.write_text(json.dumps(POD, indent="\t"))
    found = read_manifests([tmp_path], None, {"nvidia.com/gpu": "gpu.example.com"})
    (converted,) = found.objects.values()
    assert "resourceClaims" in converted.after["spec"]
    assert [one["kind"] for one in converted.templates] == ["ResourceClaimTemplate"]
