"""Ask an API server which features it has: by discovery, and by dry runs that show which fields it keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from msgspec import Struct

from drabridge.kube.api import (
    Cluster,
    InvalidError,
    Kind,
    UnreachableError,
    UnservedError,
    device_classes,
    resource_slices,
)
from drabridge.kube.json_reader import Json
from drabridge.kube.versions import RESOURCE_GROUP, slice_from_v1, slice_to_v1
from drabridge.offers.slice_writes import dropped
from drabridge.offers.slices import ALL_FEATURES, OFF_BY_DEFAULT, Feature, feature_probe
from drabridge.system.untrusted import reading

POLICY_KIND = Kind("admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies", namespaced=False)
POLICY_VERSIONS = ("v1", "v1beta1")  # in order of preference; v1beta1 of Kubernetes 1.34 and 1.35 has the same fields
_NAME = "drabridge-probe-"


class SliceAnswer(Struct, frozen=True):
    """The slice features that a server keeps, those whose dry run it refuses, and the ``reason`` of a refusal."""

    kept: frozenset[Feature]
    refused: frozenset[Feature] = frozenset()
    reason: str = ""


async def policy_version(cluster: Cluster) -> str:
    """Ask in which version MutatingAdmissionPolicy is served; "" where it is not. Raises ClusterError."""
    for version in POLICY_VERSIONS:
        try:
            group = await cluster.read(f"/apis/{POLICY_KIND.group}/{version}")
        except UnservedError:
            continue
        with reading("what the API server serves", UnreachableError):
            if any(one.get("name") == POLICY_KIND.plural for one in group.get("resources") or ()):
                return version
    return ""


async def serves_policies(cluster: Cluster) -> bool:
    """Ask whether MutatingAdmissionPolicy is served, in a version that a switch can use. Raises ClusterError."""
    return bool(await policy_version(cluster))


async def keeps_extended_names(cluster: Cluster, version: str) -> bool:
    """Ask whether a DeviceClass keeps its extendedResourceName. Raises ClusterError; DeniedError without the right."""
    body = {
        "apiVersion": f"{RESOURCE_GROUP}/{version}",
        "kind": "DeviceClass",
        "metadata": {"generateName": _NAME},
        "spec": {"extendedResourceName": "drabridge.invalid/probe"},
    }
    answer = await cluster.create(device_classes(version), body, dry_run=True)
    with reading("the answer to a DeviceClass", UnreachableError):
        return bool(answer["spec"].get("extendedResourceName"))


async def slice_features(cluster: Cluster, version: str, driver: str, node: str, pool: str) -> SliceAnswer:
    """Ask which fields of a slice the server keeps. Raises ClusterError; DeniedError without the right.

    One dry run has all features that are on by default. If it is refused, because of one field or by an admission
    webhook, each feature is tried alone. Features that are off by default have a dry run each: a server without list
    attributes first drops the list, and then refuses the attribute because it has no value.
    """

    async def kept(features: Iterable[Feature]) -> frozenset[Feature]:
        probe: Json = {"metadata": {"generateName": _NAME}, "spec": feature_probe(driver, node, pool, features)}
        answer = await cluster.create(resource_slices(version), slice_from_v1(probe, version), dry_run=True)
        with reading("the answer to a slice", UnreachableError):
            return frozenset(features) - dropped(probe, slice_to_v1(answer, version))

    usual, found, refused, reason = ALL_FEATURES - OFF_BY_DEFAULT, frozenset[Feature](), frozenset[Feature](), ""
    try:
        found = await kept(usual)
    except InvalidError:
        for feature in sorted(usual):
            try:
                found |= await kept([feature])
            except InvalidError as error:
                refused |= {feature}
                reason = error.message
    for feature in OFF_BY_DEFAULT:
        with contextlib.suppress(InvalidError):
            found |= await kept([feature])
    return SliceAnswer(found, refused, reason)
