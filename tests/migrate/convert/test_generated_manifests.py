"""Properties over generated manifests: what must not change does not, twice is once, and back is the same bytes."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.migrate.convert.checks import SETTINGS, check, pods_of

GPU = "nvidia.com/gpu"
COMMENTS = st.sampled_from(["", "", "", "   # why", "\t# a tab", " # ü: {not: a, mapping}"])
ABOVE = st.sampled_from([[], [], [], ["# limits: {nvidia.com/gpu: 7}"], ["", "# a line above"]])
QUOTES = st.sampled_from(["{}", "{}", "'{}'", '"{}"'])
STEPS = st.sampled_from([2, 4])
DASHES = st.sampled_from([0, 2])
OTHERS = {"cpu": "500m", "memory": "1Gi", "example.com/other": "1"}
KINDS = {
    "Pod": ("spec",),
    "Deployment": ("spec", "template", "spec"),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
    "PyTorchJob": ("spec", "pytorchReplicaSpecs", "Worker", "template", "spec"),
}


class _Style:
    """How one document is written, drawn line by line."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.step = draw(STEPS)
        self.dash = draw(DASHES)

    def lines(self, key: str, value: object, indent: int) -> list[str]:
        """A key and its value, in block or flow style."""
        pad = " " * indent
        above = [f"{pad}{line}" if line else "" for line in self.draw(ABOVE)]
        if isinstance(value, str):
            return [*above, f"{pad}{self.word(key)}: {self.word(value)}{self.draw(COMMENTS)}"]
        if not value or (key != "spec" and self.draw(st.integers(0, 4)) == 0):
            return [*above, f"{pad}{key}: {self.flow(value)}{self.draw(COMMENTS)}"]
        head = f"{pad}{key}:{self.draw(COMMENTS)}"
        if isinstance(value, dict):
            inner = [line for name, child in value.items() for line in self.lines(name, child, indent + self.step)]
            return [*above, head, *inner]
        assert isinstance(value, list)
        found = [*above, head]
        for item in value:
            found += self.item(item, indent + self.dash)
        return found

    def item(self, item: dict[str, object], indent: int) -> list[str]:
        inner = [line for name, child in item.items() for line in self.lines(name, child, indent + 2)]
        first = next(number for number, line in enumerate(inner) if line.strip() and line.lstrip()[0] != "#")
        inner[first] = f"{' ' * indent}- {inner[first].lstrip()}"
        return inner

    def flow(self, value: object) -> str:
        if isinstance(value, str):
            return self.word(value)
        if isinstance(value, list):
            return "[" + ", ".join(map(self.flow, value)) + "]"
        assert isinstance(value, dict)
        space: str = self.draw(st.sampled_from(["", " "]))
        inner = ", ".join(f"{self.word(key)}: {self.flow(child)}" for key, child in value.items())
        return "{" + space + inner + space + "}"

    def word(self, text: str) -> str:
        return str(self.draw(QUOTES)).format(text)


@st.composite
def resources(draw: Any) -> dict[str, object]:
    count = draw(st.sampled_from(["", "1", "1", "2", "8"]))
    gpu = {GPU: count} if count else {}
    names = draw(st.lists(st.sampled_from(sorted(OTHERS)), unique=True))
    limits = dict(draw(st.permutations(list({**{name: OTHERS[name] for name in names}, **gpu}.items()))))
    found: dict[str, object] = {}
    if limits:
        found["limits"] = limits
    if limits and draw(st.booleans()):
        found["requests"] = dict(draw(st.permutations(list(limits.items()))))
    return dict(draw(st.permutations(list(found.items()))))


@st.composite
def pod_spec(draw: Any) -> dict[str, object]:
    def containers(prefix: str, most: int) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        for number in range(draw(st.integers(1 if prefix == "app" else 0, most))):
            body: dict[str, object] = {"name": f"{prefix}-{number}", "image": "busybox"}
            if (wanted := draw(resources())) or draw(st.booleans()):
                body["resources"] = wanted
            if prefix == "init" and draw(st.booleans()):
                body["restartPolicy"] = "Always"
            found.append(dict(draw(st.permutations(list(body.items())))))
        return found

    spec: dict[str, object] = {"containers": containers("app", 3)}
    if inits := containers("init", 2):
        spec["initContainers"] = inits
    if draw(st.booleans()):
        spec["nodeSelector"] = {"nvidia.com/gpu.product": "Tesla-T4", "zone": "a"}
    if draw(st.booleans()):
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "common"}]
    return dict(draw(st.permutations(list(spec.items()))))


@st.composite
def manifest(draw: Any) -> str:
    documents: list[str] = []
    for number in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(sorted(KINDS)))
        body: object = draw(pod_spec())
        for part in reversed(KINDS[kind][1:]):
            body = {part: body}
        style = _Style(draw)
        namespace = draw(st.sampled_from(["", "a"]))
        metadata = {"name": f"m-{number}", **({"namespace": namespace} if namespace else {})}
        written = {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": body}
        lines = [line for key, value in written.items() for line in style.lines(key, value, 0)]
        documents.append("".join(f"{line}\n" for line in lines))
    text = "---\n".join(documents)
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    if draw(st.booleans()):
        text = text.rstrip("\r\n")
    mark: str = draw(st.sampled_from(["", "", "\ufeff"]))
    return mark + text


def devices(pod: dict[str, Any], container: dict[str, Any]) -> int:
    found = container.get("resources", {})
    return int(found.get("limits", {}).get(GPU, 0))


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(text=manifest())
def test_a_generated_manifest_is_converted_whole_and_goes_back(text: str) -> None:
    found = check(text, SETTINGS)
    assert not found.unfinished, found.findings
    counts = {one["metadata"]["name"]: one for one in yaml.load_all(found.text, Loader=yaml.CSafeLoader) if one}
    for before, after in zip(pods_of(text), pods_of(found.text), strict=True):
        claims = {one["name"]: one for one in after["spec"].get("resourceClaims", ())}
        held: list[str] = []
        for role in ("initContainers", "containers"):
            old = before["spec"].get(role, ())
            for one, other in zip(old, after["spec"].get(role, ()), strict=True):
                assert devices(after, other) == 0
                names = [claim["name"] for claim in other.get("resources", {}).get("claims", ())]
                made = [claims[name].get("resourceClaimTemplateName") for name in names]
                total = sum(
                    counts[name]["spec"]["spec"]["devices"]["requests"][0]["exactly"].get("count", 1) for name in made
                )
                wanted = devices(before, one)
                assert total >= wanted
                assert bool(names) == bool(wanted)
                if role == "containers" or one.get("restartPolicy") == "Always":
                    held += names
        assert len(held) == len(set(held)), "two containers that run at once share a device"
