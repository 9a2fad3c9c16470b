"""Watch this node's Node object and pods at the API server. A standby starts these watches before it takes over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from drabridge.evidence.apiserver_pods import PodWatch
from drabridge.kube.api import Cluster
from drabridge.kube.node_annotation import NodeAnnotationWatch, NodeSeen
from drabridge.system.supervise import end, forever


class ApiWatches:
    """Run both watches. Until :meth:`notify` sets the callbacks, the Node's state is only kept.

    ``node``: its last state; None until the Node has been seen, and after it was deleted.
    """

    def __init__(self, cluster: Cluster, node: str, driver: str, resources: Callable[[], Collection[str]]) -> None:
        """``resources`` returns the resource names to look for in a pod's limits. Another thread calls it."""
        self._resources = resources
        self._on_pod_ended: Callable[[], None] = lambda: None
        self._on_node: Callable[[NodeSeen | None], None] = lambda node: None
        self._tasks: list[asyncio.Task[None]] = []
        self.node: NodeSeen | None = None
        self.pods = PodWatch(cluster, node, self._pod_ended, lambda: self._resources())
        self._node_watch = NodeAnnotationWatch(cluster, node, driver, self._take)

    def begin(self) -> None:
        """Start both watches unless they already run."""
        work = {"node": self._node_watch.run, "pods": self.pods.run}
        if not self._tasks:
            self._tasks = [asyncio.create_task(forever(name, run), name=name) for name, run in work.items()]

    async def end(self) -> None:
        """End both watches."""
        tasks, self._tasks = self._tasks, []
        await end(*tasks)

    def notify(
        self,
        on_pod_ended: Callable[[], None],
        on_node: Callable[[NodeSeen | None], None],
        resources: Callable[[], Collection[str]],
    ) -> None:
        """Set the callbacks, and call ``on_node`` at once with what is known of the Node.

        ``on_pod_ended``: a pod with devices has ended or is gone. ``on_node``: what we read of the Node has changed, or
        it was deleted. ``resources``: as in the constructor.
        """
        self._on_pod_ended, self._on_node, self._resources = on_pod_ended, on_node, resources
        on_node(self.node)

    def _pod_ended(self) -> None:
        self._on_pod_ended()

    def _take(self, node: NodeSeen | None) -> None:
        self.node = node
        self._on_node(node)
