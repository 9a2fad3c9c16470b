"""The key that hands PCI functions out bound to vfio-pci, for virtual machines."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from drabridge.config.declaration import Model, form
from drabridge.config.matcher import any_of
from drabridge.config.predicate import All, Ancestor, Any, Not, Predicate, Source
from drabridge.config.problems import Problem
from drabridge.config.template import parse

if TYPE_CHECKING:
    from drabridge.config.schema import Resource

VFIO_ID = (parse("vfio-{pci}"),)

_FUNCTION = r"([0-9a-f*?]{1,4}:[0-9a-f*?]{1,4}|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"


FunctionPattern = Annotated[
    str,
    form(
        "vendor:device or address",
        _FUNCTION,
        "a PCI function, by vendor:device or by its address",
        "for example 10de:2330 or 0000:3b:00.0, in lower case; lspci -nn shows both",
    ),
]


class Vfio(Model, frozen=True):
    """Devices are PCI functions. While a pod has one, it is bound to vfio-pci; afterwards its own driver gets it back.

    The kernel gives whole IOMMU groups. So functions of its group with another driver are bound to vfio-pci as well, if
    they are allowed and the host uses none of them. The host uses: a network interface that is up, has an
    address or is in another namespace; a disk with a mount, swap, volumes or RAID; the console; virtual functions; what
    a process has open (nvidia-persistenced, too). Then the device is unhealthy, and the reason names the function.

    With limits, the function is bound before the container starts (PreStartContainer); with a claim, when the claim is
    prepared. It goes back to its driver within seconds of its release, but not while a process has the group open:
    `drabridge status` says so.

    The container gets `/dev/vfio/GROUP`, `/dev/vfio/vfio`, IOMMUFD's nodes where the kernel has them, and the address
    in `PCI_RESOURCE_` with the resource's name: KubeVirt reads that with limits, and `pciBusID` in the metadata of
    claims. The module vfio-pci must be loaded: the agent loads none.
    """

    allow: Annotated[tuple[FunctionPattern, ...], Meta(min_length=1)]
    """Functions that may be taken from their driver: vendor and device as `lspci -n` has them, `10de:2330`, with `*`
    and `?`; or an address, `0000:3b:00.0`."""
    deny: tuple[FunctionPattern, ...] = ()
    """Functions that never are, whatever `allow` says."""

    def allows(self, ids: str, address: str) -> bool:
        """Whether a function, ``10de:2330`` at ``0000:3b:00.0``, may be bound."""

        def named(patterns: tuple[str, ...]) -> bool:
            return any(fnmatchcase(ids, one) or address == one for one in patterns)

        return named(self.allow) and not named(self.deny)


def problems_beside_vfio(resource: Resource) -> Iterator[Problem]:
    """Yield what does not fit beside ``vfio`` in a resource."""
    if resource.vfio is None:
        return
    if _reads_driver(any_of(resource.match)):
        hint = "the driver changes when a device is handed out; match by attr: {vendor: ..., device: ...}"
        yield Problem("no driver in the match of a resource with vfio", hint, ("match",))
    if resource.replicas.most > 1:
        yield Problem("no replicas beside vfio", "one virtual machine has the device", ("replicas",))
    if resource.sharing.allow_multiple_allocations:
        yield Problem("no sharing beside vfio", "one virtual machine has the device", ("sharing",))
    if resource.partition is not None:
        yield Problem("no partition beside vfio", "a whole PCI function is handed out", ("partition",))


def _reads_driver(predicate: Predicate) -> bool:
    match predicate:
        case All(parts=parts) | Any(parts=parts):
            return any(map(_reads_driver, parts))
        case Not(part=part):
            return _reads_driver(part)
        case Ancestor():
            return False
    return predicate.source is Source.DRIVER
