"""Watch this node's Node and its pods at the API server; a standby does so before it is the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from drabridge.evidence.apiserver_pods import PodWatch
from drabridge.kube.api import Cluster
from drabridge.kube.node_annotation import NodeAnnotationWatch
from drabridge.system.supervise import forever

LANES, CORDONS, LABELS = "lanes", "cordons", "labels"  # what a Node says: two annotations' values, and LabelsSeen


class ApiWatches:
    """The two watches. :meth:`notify` sets the callbacks; until then a standby only keeps what is seen."""

    def __init__(self, cluster: Cluster, node: str, driver: str, resources: Callable[[], Collection[str]]) -> None:
        """``resources`` returns the names that matter in a pod's limits; it is called from another thread."""
        self._resources = resources
        self._on_pod_ended: Callable[[], None] | None = None
        self._on_node: Mapping[str, Callable[[Any], None]] = {}
        self._seen: dict[str, Any] = {}  # the newest of LANES, CORDONS and LABELS
        self._tasks: list[asyncio.Task[None]] = []
        self.allocatable: Mapping[str, int] = {}
        """How many devices of each resource pods may have here, as the Node says and the scheduler knows it."""
        self.pods = PodWatch(cluster, node, self._pod_ended, lambda: self._resources())
        lanes, labels, cordons = (partial(self._take, what) for what in (LANES, LABELS, CORDONS))
        self._node = NodeAnnotationWatch(cluster, node, driver, lanes, labels, self._take_allocatable, cordons)

    def begin(self) -> None:
        """Start both watches, unless they run already."""
        work = {"node": self._node.run, "pods": self.pods.run}
        if not self._tasks:
            self._tasks = [asyncio.create_task(forever(name, run), name=name) for name, run in work.items()]

    async def end(self) -> None:
        """End both watches."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def notify(
        self,
        on_pod_ended: Callable[[], None],
        on_node: Mapping[str, Callable[[Any], None]],
        resources: Callable[[], Collection[str]],
    ) -> None:
        """Set the callbacks: a pod with devices is gone or has ended; the Node says this.

        ``on_node``: for each of LANES, CORDONS and LABELS. What the Node has is also told now.
        """
        self._on_pod_ended, self._on_node, self._resources = on_pod_ended, on_node, resources
        for what, value in ({LABELS: None} | self._seen).items():
            on_node[what](value)

    def _pod_ended(self) -> None:
        if self._on_pod_ended is not None:
            self._on_pod_ended()

    def _take(self, what: str, value: Any) -> None:
        self._seen[what] = value
        if what in self._on_node:
            self._on_node[what](value)

    def _take_allocatable(self, numbers: Mapping[str, int]) -> None:
        self.allocatable = numbers
