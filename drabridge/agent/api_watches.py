"""What is followed at the API server about this node, by an agent and by one that waits to become it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from drabridge.evidence.apiserver_pods import PodWatch
from drabridge.kube.api import Cluster
from drabridge.kube.node_annotation import NodeWatch
from drabridge.system.supervise import forever


class ApiWatches:
    """The watches of the Node's annotation and of its pods. Who is told of news is set by :meth:`tell`."""

    def __init__(
        self, cluster: Cluster, node: str, driver: str, ours: Callable[[], Collection[str]] = frozenset
    ) -> None:
        """``ours``: the resources that matter of pods, asked from another thread."""
        self._ours = ours
        self.pods = PodWatch(cluster, node, lambda: self._ended(), lambda: self._ours())
        self._node = NodeWatch(cluster, node, driver, self._annotated)
        self._ended: Callable[[], None] = lambda: None
        self._annotate: Callable[[str | None], None] = lambda value: None
        self._tasks: list[asyncio.Task[None]] = []
        self._annotation: tuple[str | None, ...] = ()  # as it was seen last; (): not yet

    def begin(self) -> None:
        """Follow both, unless they are followed already."""
        work = {"node": self._node.run, "pods": self.pods.run}
        if not self._tasks:
            self._tasks = [asyncio.create_task(forever(name, run), name=name) for name, run in work.items()]

    async def end(self) -> None:
        """Follow nothing any more."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def tell(
        self,
        ended: Callable[[], None],
        annotate: Callable[[str | None], None],
        ours: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """``ended``: a pod with devices is gone or has ended; ``annotate``: what the Node's annotation says."""
        self._ended, self._annotate, self._ours = ended, annotate, ours
        if self._annotation:
            annotate(*self._annotation)

    def _annotated(self, value: str | None) -> None:
        self._annotation = (value,)
        self._annotate(value)
