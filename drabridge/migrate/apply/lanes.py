"""Ask agents for lanes by the Nodes' annotation, and read from the API when devices have changed lanes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from drabridge.errors import ClusterError
from drabridge.kube.api import (
    NODES,
    PODS,
    Cluster,
    Kind,
    NotFoundError,
    device_classes,
    resource_claims,
    resource_slices,
)
from drabridge.kube.json_reader import ObjectView
from drabridge.migrate.apply.waiting import Waiting
from drabridge.migrate.plan.build import NodeDevices, devices_by_node
from drabridge.migrate.plan.document import ALL, Plan
from drabridge.migrate.report import readers as read
from drabridge.migrate.report.build import Facts
from drabridge.migrate.report.document import number
from drabridge.migrate.switch import marks

START_SECONDS = 60.0  # longer than the agent's start
T = TypeVar("T")
Lanes = Mapping[str, int | str]
"""Node -> how many of its devices are for claims, or ``all``."""


class LaneKeeper:
    """The lanes of a plan's resource in a cluster. ``version``: of resource.k8s.io."""

    def __init__(self, cluster: Cluster, plan: Plan, version: str) -> None:
        self._cluster = cluster
        self._plan = plan
        self._version = version
        self._key = f"{plan.driver}/lanes"

    async def annotations(self, nodes: Iterable[str]) -> dict[str, str | None]:
        """Return the present annotation of each node. Raises ClusterError if a node is missing."""
        found = {}
        for name in nodes:
            try:
                node = await self._cluster.get(NODES, name)
            except NotFoundError as error:
                raise ClusterError(f"there is no node {name}", hint="Plan again: drabridge migrate plan") from error
            found[name] = (node["metadata"].get("annotations") or {}).get(self._key)
        return found

    async def ask(self, lanes: Lanes, before: Mapping[str, str | None]) -> None:
        """Write the annotations. Their entries for other resources stay."""
        for name, claims in lanes.items():
            try:
                asked = json.loads(before.get(name) or "{}")
            except (ValueError, RecursionError):
                asked = {}
            keep = self._plan.keep_for_limits
            asked = dict(asked) if isinstance(asked, dict) else {}
            own = {"legacy": keep, "dra": "*"} if claims == ALL else {"legacy": "*", "dra": claims}
            await self.annotate(name, json.dumps({**asked, self._plan.resource: own}))

    def asked(self, annotations: Mapping[str, str | None]) -> Lanes:
        """Return the lanes that annotations ask for, without nodes whose configuration decides: it is unknown here."""
        found: dict[str, int | str] = {}
        for name, text in annotations.items():
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                claims = json.loads(text or "")[self._plan.resource]["dra"]
                if claims == "*" or isinstance(claims, int):
                    found[name] = ALL if claims == "*" else claims
        return found

    async def annotate(self, node: str, text: str | None) -> None:
        """Set the annotation; None removes what a step wrote."""
        metadata: dict[str, Any] = {"name": node}
        if text is not None:
            metadata["annotations"] = {self._key: text}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        # One field manager for each driver: an apply removes the fields that its manager set before and leaves out now.
        await self._cluster.apply(NODES, body, manager=f"{marks.MANAGER}-{self._plan.driver}"[:128])

    async def devices(self) -> dict[str, NodeDevices]:
        """Read how many devices each lane offers, and how many are held. Raises ClusterError."""
        driver = f"spec.driver={self._plan.driver}"
        slices = resource_slices(self._version)
        found = Facts()
        found.nodes = await self._list(NODES, read.NODE)
        found.slices = await self._list(slices, read.SLICE, field_selector=driver)
        found.classes = await self._list(device_classes(self._version), read.CLASS)
        found.claims = await self._list(resource_claims(self._version), read.CLAIM)
        pods = await self._list(PODS, read.POD)
        found.pods = [pod for pod in pods if pod is not None]
        plan = self._plan
        return {one.facts.name: one for one in devices_by_node(found, plan.resource, plan.device_class)}

    async def wait_for_devices(self, nodes: Iterable[str], waiting: Waiting) -> None:
        """Wait until each node has as many devices as when the plan was made: a restarting agent shows none.

        Raises ClusterError after ``START_SECONDS``.
        """

        async def lacking() -> str:
            devices = await self.devices()
            for name in nodes:
                planned, found = self._plan.devices.get(name, 0), devices.get(name)
                if found is None or found.for_limits + found.for_claims + found.held_by_limits < planned:
                    there = found.for_limits + found.for_claims if found else 0
                    return f"{name} has {number(there, 'device')}, and had {planned}"
            return ""

        hint = "See that the agent runs there, or plan again"
        await waiting.until("lanes", lacking, hint=hint, at_most_seconds=START_SECONDS)

    async def wait(self, lanes: Lanes, waiting: Waiting) -> None:
        """Wait until each node offers claims what it can now: devices that pods with limits hold come later.

        Claims keep what they hold.
        """

        async def lacking() -> str:
            devices = await self.devices()
            words = [text for name, claims in lanes.items() if (text := self._lacks(name, claims, devices.get(name)))]
            more = f", and {len(words) - 1} more nodes" if len(words) > 1 else ""
            return f"{words[0]}{more}" if words else ""

        await waiting.until(
            "lanes", lacking, hint="See that the agent runs there, and what `drabridge lanes` says on that node"
        )

    def _lacks(self, name: str, claims: int | str, found: NodeDevices | None) -> str:
        if found is None:
            return f"{name} has no devices of {self._plan.resource}"
        total = self._plan.devices.get(name) or found.for_limits + found.for_claims
        wanted = total - self._plan.keep_for_limits if isinstance(claims, str) else claims
        least = min(wanted, total - found.held_by_limits)
        most = max(wanted, found.held_by_claims)
        if found.for_claims < least:
            return f"{name} offers claims {found.for_claims} of {least} devices"
        if found.for_claims > most:
            return f"{name} still offers claims {found.for_claims} devices instead of {most}"
        return ""

    async def _list(self, kind: Kind, view: ObjectView[T], *, field_selector: str = "") -> list[T]:
        listing = await self._cluster.list(kind, field_selector=field_selector, view=view)
        if listing.unreadable:
            raise ClusterError(f"{kind.plural} {listing.unreadable[0]} has not the form of such an object")
        return list(listing.items)
