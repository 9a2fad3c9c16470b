"""Watch this node's Node object and pods at the API server. A standby starts these watches before it takes over."""

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
    """Run both watches. Until :meth:`notify` sets the callbacks, what the Node says is only kept."""

    def __init__(self, cluster: Cluster, node: str, driver: str, resources: Callable[[], Collection[str]]) -> None:
        """``resources`` returns the resource names to look for in a pod's limits. Another thread calls it."""
        self._resources = resources
        self._on_pod_ended: Callable[[], None] | None = None
        self._on_node: Mapping[str, Callable[[Any], None]] = {}
        self._seen: dict[str, Any] = {}  # the newest of LANES, CORDONS and LABELS
        self._tasks: list[asyncio.Task[None]] = []
        self.allocatable: Mapping[str, int] = {}
        """Resource -> number of devices in the Node's ``status.allocatable``, which the scheduler uses."""
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
        """Set the callbacks, and call those of the Node at once with the values seen so far (LABELS: None if none).

        ``on_pod_ended``: a pod with devices has ended or is gone. ``on_node``: one callback for each of LANES, CORDONS
        and LABELS. ``resources``: as in the constructor.
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
