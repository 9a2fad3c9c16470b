"""``kubectl`` accepts the chart's manifests and the kustomize base."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.generate import KUSTOMIZE
from deploy.helm import ROOT, manifests
from tests.deploy.kubectl import KINDS, KubectlRefusedError, applied, empty_cluster, kubectl
from tests.deploy.renders import VARIANTS, by_identity, default_render

Json = dict[str, Any]
pytestmark = pytest.mark.kubectl


@pytest.fixture
def address() -> Iterator[str]:
    with empty_cluster() as made:
        yield made


def named(obj: Json) -> str:
    """As ``--output=name`` says it."""
    group = obj["apiVersion"].rpartition("/")[0]
    return f"{obj['kind'].lower()}{'.' + group if group else ''}/{obj['metadata']['name']}"


def test_kustomize_builds_what_the_chart_renders() -> None:
    objects = [obj for obj in yaml.safe_load_all(kubectl("kustomize", str(KUSTOMIZE))) if obj["kind"] != "Namespace"]
    assert by_identity(objects) == by_identity(default_render())


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_a_dry_run_takes_every_manifest_of_the_chart(values: Json, address: str, tmp_path: Path) -> None:
    objects = manifests(values)
    assert sorted(applied(yaml.safe_dump_all(objects), address, tmp_path)) == sorted(map(named, objects))


def test_a_dry_run_takes_the_exporter(address: str, tmp_path: Path) -> None:
    both = "---\n".join(path.read_text() for path in sorted((ROOT / "deploy/podresources").glob("*.yaml")))
    assert applied(both, address, tmp_path) == [
        "daemonset.apps/podresources",
        "service/podresources",
        "podmonitor.monitoring.coreos.com/podresources",
    ]


def test_a_dry_run_takes_the_kustomize_base(address: str, tmp_path: Path) -> None:
    built = kubectl("kustomize", str(KUSTOMIZE))
    assert len(applied(built, address, tmp_path)) == len(list(yaml.safe_load_all(built)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "DaemonSett"}, "DaemonSett"),
        ({"apiVersion": "apps/v1beta2"}, "apps/v1beta2"),
        ({"metadata": {}}, "name"),
        ({"metadata": {"name": 7}}, "unable to decode"),
    ],
    ids=["kind", "version", "no name", "a name that is a number"],
)
def test_a_dry_run_refuses_what_is_wrong(change: Json, said: str, address: str, tmp_path: Path) -> None:
    (daemon_set,) = (obj for obj in manifests() if obj["kind"] == "DaemonSet")
    with pytest.raises(KubectlRefusedError, match=said):
        applied(yaml.safe_dump(daemon_set | change), address, tmp_path)


def test_the_server_of_these_tests_knows_the_charts_kinds_and_few_more() -> None:
    known = {(version, kind) for version, kinds in KINDS.items() for kind in kinds}
    used = {(obj["apiVersion"], obj["kind"]) for values in VARIANTS.values() for obj in manifests(values)}
    assert known - used == {("v1", "Namespace"), ("v1", "Service")}  # the exporter's manifest has a Service
