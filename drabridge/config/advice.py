"""Warn about what a configuration may say but its author may not expect. For ``check-config`` and the log at start."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from drabridge.config.lanes import COUNT_MAX, Lanes, LaneShare
from drabridge.config.matcher import Matcher
from drabridge.config.pattern import Glob
from drabridge.config.predicate import All, Predicate, Source, Test
from drabridge.config.predicate import Any as AnyOf
from drabridge.config.schema import DRIVER_PLACEHOLDER, Config, Resource
from drabridge.config.template import Template
from drabridge.config.together import paths_of_two

# Numbers that the kernel assigns in the order of arrival: after the next boot another device may have them.
_NUMBERED = frozenset({"sysnum", "devnode", "devname", "minor", "major", "nvidia.minor"})


def advice(config: Config) -> tuple[str, ...]:
    """Return one sentence for each warning, with its path."""
    return tuple(_advice(config))


def _advice(config: Config) -> Iterator[str]:
    if config.driver == DRIVER_PLACEHOLDER:
        yield f"driver {config.driver} is a placeholder: choose a domain of yours; changing it later means draining"
    for index, owner, path in paths_of_two(config.resources):
        if owner != index:
            yield (
                f"resources[{index}] ({config.resources[index].name}): {path} is also where a container has devices of "
                f"{config.resources[owner].name}: one that asks for both gets one of them there"
            )
    for index, resource in enumerate(config.resources):
        for text in _of_resource(resource):
            yield f"resources[{index}] ({resource.name}): {text}"
        if resource.partition is not None:
            whole = config.resource(resource.partition.of)
            ours, theirs = _sides(resource.lanes), _sides(whole.lanes)
            if ours != theirs:
                yield (
                    f"resources[{index}] ({resource.name}): parts go to {' and '.join(ours)}, their wholes "
                    f"({whole.name}) to {' and '.join(theirs)}: parts are in the lane of their whole, "
                    "whatever theirs say; give both resources the same lanes"
                )


def _sides(lanes: Lanes) -> tuple[str, ...]:
    """Return the lanes that get at least one device of a resource with very many."""
    if not all(isinstance(lane, LaneShare) for lane in lanes.resolved):
        return ("legacy", "dra")
    return tuple(lane for lane, count in zip(("legacy", "dra"), lanes.targets(COUNT_MAX), strict=True) if count)


def _of_resource(resource: Resource) -> Iterator[str]:
    served = resource.device_class is not None and resource.device_class.extended_resource_name is not None
    if (resource.pre_start is not None or (resource.vfio is not None and served)) and resource.lanes.uses_dra:
        # Kubelet's device manager then looks for an allocation of its own, but DRA has served the container.
        yield (
            "preStart or vfio with a dra lane: kubelet up to 1.37 cannot start containers that get this resource "
            "through an extendedResourceName while PreStartContainer is required; use prepare of a profile instead"
        )
    if resource.pre_start is not None:
        yield "preStart is skipped for containers that start between a kubelet restart and the next registration"
    hooked = sorted(
        name for name, profile in resource.claim_config.profiles.items() if profile.prepare or profile.unprepare
    )
    if hooked and resource.sharing.allow_multiple_allocations:
        yield (
            f"hooks in {', '.join(hooked)} of a shared device run for each claim, while containers of other claims use "
            "the device: they must not reset it"
        )
    if path := next(_one_path(resource), None):
        yield (
            f"{path} is one path for all these devices: a container that asks for two of them is refused; "
            "{name} or {devname} in it gives each its own"
        )
    for template in resource.cdi_devices:
        if str(template).endswith("=all"):
            yield f"cdiDevices {template}: by that name vendors' files mean every device of the node"
    fields = {field.source for field in resource.identity[0].fields}
    numbered = _NUMBERED | {"sysname"} if any(map(_names_are_numbered, resource.match)) else _NUMBERED
    if fields and fields <= numbered:
        first = resource.identity[0]
        yield f"id {first} follows the kernel's numbering: another device may have it after the next boot"
    for index, matcher in enumerate(resource.match):
        for name in _numbered_names(matcher):
            yield (
                f"match[{index}].sysname {name} has a number of the kernel's: it may be another device's after the "
                "next boot; `drabridge suggest` writes a rule that stays with the hardware"
            )
        for key, owner in _asked_of_above(matcher):
            name, _, attribute = key.partition(".")
            inner = f"{name}: {{{attribute}: ...}}" if attribute else f"{name}: ..."
            yield (
                f"match[{index}].{key} matches nothing: such a device has none of its own, the {owner} above it has; "
                f"write parent: {{{inner}}}"
            )
    if not all(_has_subsystem(matcher.predicate()) for matcher in resource.match):
        yield "match without subsystem: every device of the node is looked at; add one to make discovery faster"


def _one_path(resource: Resource) -> Iterator[Template]:
    """Yield the container paths at which each device of the resource brings a different thing."""
    for node in resource.all_nodes:
        if node.alias is not None and _is_one(node.alias) and (node.path is None or node.path.fields):
            yield node.alias
    for mount in resource.mounts:
        if mount.container_path is not None and _is_one(mount.container_path) and mount.host_path.fields:
            yield mount.container_path


def _is_one(path: Template) -> bool:
    return all(field.source == "request" for field in path.fields)


def _has_subsystem(predicate: Predicate) -> bool:
    match predicate:
        case Test(source=Source.SUBSYSTEM):
            return True
        case All(parts):
            return any(map(_has_subsystem, parts))
        case AnyOf(parts):
            return all(map(_has_subsystem, parts))
        case _:
            return False


# --- names and values of the kernel's device classes ------------------------------------------------------------------

# The kernel numbers the devices of a class in the order of their arrival: ttyUSB0, nvme0n1, sdb, can0. One of a class
# (tty, video4linux, net) has no ids of its own either, nor a driver: the USB device or PCI function above has them.
_NUMBERED_NAMES = {
    "tty": r"tty(USB|ACM|XRUSB|MXUSB|HS|R)\d",  # ttyS0 and ttyAMA0 are at fixed places of a board
    "video4linux": r"(video|vbi|radio|swradio|v4l-subdev|v4l-touch)\d",
    "nvme": r"nvme\d",
    "block": r"(nvme\d|sr\d|(sd|vd|xvd)[a-z])",
    "net": r"(eth|wlan|wwan|can|ib|usb)\d",
    "sound": r"(card|controlC|pcmC|midiC|hwC)\d",
    "hidraw": r"hidraw\d",
    "input": r"(input|event|js|mouse)\d",
    "drm": r"(card|renderD)\d",
    "scsi_generic": r"sg\d",
    "usbmisc": r"(lp|hiddev|cdc-wdm|usbtmc)\d",
    "media": r"media\d",
    "dvb": r"dvb\d",
    "ptp": r"ptp\d",
}
"""subsystem -> names with a number, or letter, that the next device to arrive may have after the next boot."""

_CLASSES = frozenset(_NUMBERED_NAMES) - {"media"} | {
    "misc",
    "infiniband",
    "infiniband_verbs",
    "infiniband_mad",
    "bsg",
    "rtc",
}
_OF_A_BUS = {
    **dict.fromkeys(("idVendor", "idProduct", "bcdDevice", "manufacturer"), "USB device"),
    **dict.fromkeys(("bInterfaceNumber", "bInterfaceClass", "bInterfaceProtocol"), "USB interface"),
    **dict.fromkeys(("vendor", "device", "class", "subsystem_vendor", "subsystem_device"), "PCI function"),
}
_MAGIC = re.compile(r"[*?\[\\|]")


def _subsystems(matcher: Matcher) -> frozenset[str]:
    """Return the subsystems that a matcher names; empty if it names none, or uses a pattern."""
    texts = _globs(matcher.predicate(), Source.SUBSYSTEM)
    words = [word for text in texts for word in text.split("|")]
    return frozenset() if any(map(_MAGIC.search, words)) else frozenset(words)


def _numbered_names(matcher: Matcher) -> tuple[str, ...]:
    """Return the patterns for kernel names that contain a number from the kernel."""
    return tuple(name for name in _globs(matcher.predicate(), Source.SYSNAME) if _is_numbered(matcher, _head(name)))


def _names_are_numbered(matcher: Matcher) -> bool:
    """Whether a matcher selects devices whose kernel names contain such a number."""
    heads = [_head(name) for name in _globs(matcher.predicate(), Source.SYSNAME)] or [""]
    if not any(heads):
        return bool(_subsystems(matcher) & _NUMBERED_NAMES.keys())
    return any(_is_numbered(matcher, head + end) for head in heads for end in ("", "0", "a"))


def _asked_of_above(matcher: Matcher) -> tuple[tuple[str, str], ...]:
    """Return the keys of a matcher that only a device further up has, each with what that device is."""
    found = _subsystems(matcher)
    if not found or not found <= _CLASSES:
        return ()
    tests = [test for test in _tests(matcher.predicate()) if not test.patterns.accepts_missing]
    keyed = [
        (test.label, _OF_A_BUS[test.key]) for test in tests if test.source is Source.ATTR and test.key in _OF_A_BUS
    ]
    return (*keyed, *((test.label, "device") for test in tests if test.source is Source.DRIVER))


def _is_numbered(matcher: Matcher, text: str) -> bool:
    return any(re.match(_NUMBERED_NAMES[name], text) for name in _subsystems(matcher) & _NUMBERED_NAMES.keys())


def _head(glob: str) -> str:
    """Return the literal beginning of a pattern."""
    return _MAGIC.split(glob)[0]


def _globs(predicate: Predicate, source: Source) -> list[str]:
    return [
        item.text
        for test in _tests(predicate)
        if test.source is source
        for item in test.patterns.items
        if isinstance(item, Glob)
    ]


def _tests(predicate: Predicate) -> Iterable[Test]:
    """Return the tests that the device itself must pass, without those of ancestors and of `not`."""
    parts = predicate.parts if isinstance(predicate, All) else ()
    return [part for part in parts if isinstance(part, Test)]
