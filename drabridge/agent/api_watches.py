"""Watch this node's Node and its pods at the API server; a standby does so before it is the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from drabridge.evidence.apiserver_pods import PodWatch
from drabridge.kube.api import Cluster
from drabridge.kube.node_annotation import NodeAnnotationWatch
from drabridge.kube.node_labels import LabelsSeen
from drabridge.system.supervise import forever


class ApiWatches:
    """The two watches. :meth:`notify` sets the callbacks; until then a standby only keeps what is seen."""

    def __init__(self, cluster: Cluster, node: str, driver: str, resources: Callable[[], Collection[str]]) -> None:
        """``resources`` returns the names that matter in a pod's limits; it is called from another thread."""
        self._resources = resources
        self.pods = PodWatch(cluster, node, lambda: self._on_pod_ended(), lambda: self._resources())
        self._node = NodeAnnotationWatch(
            cluster,
            node,
            driver,
            self._take_annotation,
            self._take_labels,
            self._take_allocatable,
            self._take_cordons,
        )
        self._on_pod_ended: Callable[[], None] = lambda: None
        self._on_annotation: Callable[[str | None], None] = lambda value: None
        self._tasks: list[asyncio.Task[None]] = []
        self._on_labels: Callable[[LabelsSeen | None], None] = lambda labels: None
        self._on_cordons: Callable[[str | None], None] = lambda value: None
        self._annotation: tuple[str | None, ...] = ()  # the newest value; (): not seen yet
        self._cordons: tuple[str | None, ...] = ()  # likewise
        self._labels: LabelsSeen | None = None  # the newest; None: not seen yet
        self.allocatable: Mapping[str, int] = {}
        """How many devices of each resource pods may have here, as the Node says and the scheduler knows it."""

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
        on_annotation: Callable[[str | None], None],
        on_cordons: Callable[[str | None], None],
        on_labels: Callable[[LabelsSeen | None], None],
        resources: Callable[[], Collection[str]],
    ) -> None:
        """Set the callbacks: a pod with devices is gone or has ended; the Node has these annotations, and these labels.

        What the Node has is also told now.
        """
        self._on_pod_ended, self._on_annotation, self._resources = on_pod_ended, on_annotation, resources
        self._on_cordons, self._on_labels = on_cordons, on_labels
        if self._annotation:
            on_annotation(*self._annotation)
        if self._cordons:
            on_cordons(*self._cordons)
        on_labels(self._labels)

    def _take_annotation(self, value: str | None) -> None:
        self._annotation = (value,)
        self._on_annotation(value)

    def _take_cordons(self, value: str | None) -> None:
        self._cordons = (value,)
        self._on_cordons(value)

    def _take_allocatable(self, numbers: Mapping[str, int]) -> None:
        self.allocatable = numbers

    def _take_labels(self, labels: LabelsSeen | None) -> None:
        self._labels = labels
        self._on_labels(labels)
