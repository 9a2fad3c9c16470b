"""Say which claims the policy gives to a pod. Pure; :mod:`drabridge.migrate.switch.policy` has the rules in CEL.

Each container with limits gets a claim of its own. An init container runs before the others and uses their devices
again, as a device plugin lets it; where it needs more, the first claim grows. A sidecar runs beside the others, so it
has a claim of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from drabridge.config.quantity import parse

Json = Mapping[str, Any]
MOST_DEVICES = 32  # AllocationResultsMaxSize, staging/src/k8s.io/api/resource/v1/types.go
BUCKETS = 100
MOST_NAME = 253  # signs: the policy reads names before the API server has checked them
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789-."


class Claim(Struct, frozen=True):
    """One claim of a pod: its name begins with ``base``, and ``count`` devices are in it."""

    name: str
    base: str
    count: int


class PodClaims(Struct, frozen=True):
    """The claims of a pod, and the names of those that each container uses; by index, as the pod lists them."""

    claims: tuple[Claim, ...]
    containers: Mapping[int, tuple[str, ...]]
    init_containers: Mapping[int, tuple[str, ...]]

    def counts(self, base: str) -> frozenset[int]:
        """Return how many devices the claims of one resource have."""
        return frozenset(claim.count for claim in self.claims if claim.base == base)


def claims_of_pod(spec: Json, bases: Mapping[str, str]) -> PodClaims:
    """Return a pod's claims. ``bases`` has for each resource what the names of its claims begin with."""
    claims: list[Claim] = []
    uses: tuple[dict[int, tuple[str, ...]], dict[int, tuple[str, ...]]] = ({}, {})
    for resource, base in bases.items():
        app = list(_wanting(spec.get("containers"), resource))
        init = list(_wanting(spec.get("initContainers"), resource))
        sidecars = [(i, n) for i, n, always in init if always]
        ordinary = [(i, n) for i, n, always in init if not always]
        own = [(f"{base}-c{i}", n) for i, n, _ in app]
        lacking = max((n for _, n in ordinary), default=0) - sum(n for _, n in own)
        if lacking > 0:
            own[:1] = [(own[0][0], own[0][1] + lacking)] if own else [(f"{base}-init", lacking)]
        for i, _, _ in app:
            uses[0][i] = (*uses[0].get(i, ()), f"{base}-c{i}")
        for i, _ in sidecars:
            uses[1][i] = (*uses[1].get(i, ()), f"{base}-s{i}")
        for i, wanted in ordinary:
            first = [name for place, (name, _) in enumerate(own) if sum(n for _, n in own[:place]) < wanted]
            uses[1][i] = (*uses[1].get(i, ()), *first)
        claims += [Claim(name, base, n) for name, n in [*own, *((f"{base}-s{i}", n) for i, n in sidecars)]]
    return PodClaims(tuple(claims), *uses)


def _wanting(containers: Iterable[Json] | None, resource: str) -> Iterable[tuple[int, int, bool]]:
    """Yield (index, devices, whether it is a sidecar) of the containers that ask for a resource."""
    for index, container in enumerate(containers or ()):
        wanted = int(parse(str(((container.get("resources") or {}).get("limits") or {}).get(resource) or 0)))
        if wanted:
            yield index, wanted, container.get("restartPolicy") == "Always"


def bucket(owner: str) -> int:
    """Return the number from 0 to 99 of an owner's name; it is the same after every rollout.

    CEL has no hash function: this is a sum over the letters, each times a number that depends on its place.
    """
    total = sum((LETTERS.find(letter) + 2) * (i * i * 7919 + i * 104_729 + 31_337) for i, letter in enumerate(owner))
    return total % 10_007 % BUCKETS


def owner_of(pod: Json) -> str:
    """Return the name by which a pod's owner stays the same when it is rolled out or started again.

    That is a Deployment's for a pod of its ReplicaSet, a CronJob's for one of its Jobs; the pod's own without owner.
    """
    meta = pod.get("metadata") or {}
    controllers = [one for one in meta.get("ownerReferences") or () if one.get("controller")]
    name = str(controllers[0]["name"] if controllers else meta.get("name") or meta.get("generateName") or "")
    name = name if len(name) <= MOST_NAME else ""
    template_hash = (meta.get("labels") or {}).get("pod-template-hash")
    if template_hash:
        name = name.removesuffix(f"-{template_hash}")
    return re.sub(r"-[0-9]{8,}$", "", name)
