"""The chart's role for ``drabridge migrate report`` is the one that the command prints, and is off by default."""

from __future__ import annotations

from collections.abc import Mapping

from deploy.helm import manifests
from drabridge.migrate.report.readers import cluster_role

ROLE = cluster_role()["metadata"]["name"]
ON = {"migration": {"reportRole": True}}


def roles(values: Mapping[str, object]) -> dict[str, object]:
    return {obj["metadata"]["name"]: obj["rules"] for obj in manifests(values) if obj["kind"] == "ClusterRole"}


def test_it_is_off_by_default() -> None:
    assert ROLE not in roles({})


def test_it_is_what_the_command_prints_and_reads_only() -> None:
    assert roles(ON)[ROLE] == cluster_role()["rules"]
    assert {verb for rule in cluster_role()["rules"] for verb in rule["verbs"]} == {"list"}


def test_nobody_is_bound_to_it() -> None:
    bound = [obj["roleRef"]["name"] for obj in manifests(ON) if obj["kind"] == "ClusterRoleBinding"]
    assert ROLE not in bound
