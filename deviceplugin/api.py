"""Interfaces that a plugin's author implements: ``Plugin`` is required, the others are optional.

The options that kubelet asks for follow from what is implemented: ``Preferrer`` sets
``get_preferred_allocation_available``; ``PreStarter`` makes PreStartContainer do something, and its
``pre_start_required`` says whether kubelet must call it.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from deviceplugin.broadcast import Broadcast
from deviceplugin.errors import AllocationError
from deviceplugin.model import ContainerAllocation, ListedDevice, ListedHealth

DeviceList = Broadcast[tuple[ListedDevice, ...]]


@runtime_checkable
class Plugin(Protocol):
    """Required: the resource, and the list of its devices with its changes."""

    @property
    def resource(self) -> str:
        """Extended resource name, such as ``example.com/radio``."""
        ...

    def devices(self) -> DeviceList:
        """Return the list; the same object each time. Nothing is registered before the first ``publish``."""
        ...


@runtime_checkable
class Allocator(Protocol):
    """Optional: decides about Allocate.

    Without it the library accepts listed healthy ids and injects nothing.
    """

    def allocate(self, ids: Sequence[str]) -> ContainerAllocation | Coroutine[Any, Any, ContainerAllocation]:
        """Return the answer for one container, or a coroutine for it. Raise ``AllocationError`` to refuse.

        ``ids`` are sorted and free of duplicates. A quick answer needs no coroutine, and so costs no task. The
        allocator also decides about ids that are unknown or unhealthy: an id may be unhealthy in the list and still be
        held by the very pod that kubelet admits again (``require_healthy`` is the simple rule). Repeating a call must
        succeed.
        """
        ...


@runtime_checkable
class Preferrer(Protocol):
    """Optional: advises kubelet which ids to take.

    It must be pure and quick: it runs on the event loop while kubelet waits.
    """

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Return ``size`` ids out of ``available`` with all of ``must_include``; empty for "no opinion"."""
        ...


@runtime_checkable
class PreStarter(Protocol):
    """Optional: work before each start of a container that holds devices."""

    @property
    def pre_start_required(self) -> bool:
        """Whether kubelet must call PreStartContainer at all. It is read once per registration."""
        ...

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Prepare the devices. Raise ``AllocationError`` to make this start fail; kubelet tries again later."""
        ...


def require_healthy(plugin: Plugin, ids: Iterable[str]) -> None:
    """Raise AllocationError unless ``plugin`` lists each of ``ids`` as healthy (a simple rule).

    The codes are NOT_FOUND and FAILED_PRECONDITION.

    An allocator that knows who holds a device must not use this for a pod's own device: kubelet asks again for it
    after a restart, and it may be unhealthy by then.
    """
    snapshot = plugin.devices().current
    listed = {device.id: device.health for device in (snapshot.value if snapshot else ())}
    wanted = list(ids)
    unknown = [device_id for device_id in wanted if device_id not in listed]
    if unknown:
        raise AllocationError(
            "NOT_FOUND",
            f"{plugin.resource} has no device {', '.join(unknown)} on this node (it has {len(listed)})",
            hint="it was probably unplugged after kubelet chose it; delete the pod, its replacement gets another",
        )
    faulty = [device_id for device_id in wanted if listed[device_id] is not ListedHealth.HEALTHY]
    if faulty:
        raise AllocationError(
            "FAILED_PRECONDITION",
            f"device {', '.join(faulty)} of {plugin.resource} is unhealthy",
            hint="the device plugin's log says why; delete the pod, its replacement gets another",
        )
