"""The command line: what can be asked, with an example for each."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from podresources.filters import Filters
from podresources.socket_path import DEFAULT_SOCKET

FORMATS = ("table", "wide", "json", "yaml", "prom")
INTERVAL_FLOOR_SECONDS = 1.0
"""Below this, a forgotten terminal would use a noticeable part of kubelet's 100 requests a second."""

RESOLVE_OPTIONS = ("--agent-socket", "--host-root", "--cdi-dir", "--slices", "--kubeconfig", "--node")

ABOUT = """\
Tells which container of this node holds which device, CPU and memory, over both device APIs (device plugins and
Dynamic Resource Allocation), from kubelet's socket alone: no API server, no credentials.
"""

BLIND_SPOTS = """\
What kubelet's API cannot tell:
  - pods have no UID here: one that was deleted and created again under its name looks like the same pod
  - init containers other than sidecars never appear, although they hold devices while they run
  - a container that uses one request of a ResourceClaim is shown with all devices of the claim
  - health is not shown: a device that went bad while it is held still shows as held
  - DRA devices that nobody holds are not listed; those of device plugins are (allocatable)
  - kubelets before 1.34 show no ResourceClaims, and also list pods that have ended

Exit codes: 0 it worked, 1 the thing asked failed, 2 the command line makes no sense.
"""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options, with ``command``, the function to call with them. Raises SystemExit like argparse."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    given = vars(options)
    if "resolve" in given and not options.resolve:
        for option in RESOLVE_OPTIONS:
            if given[option[2:].replace("-", "_")] not in (None, False):
                parser.error(f"{option} says how to resolve devices: give --resolve too")
    if given.get("kubeconfig") and not options.slices:
        parser.error("--kubeconfig says whom --slices asks: give --slices too")
    return options


class _Version(argparse.Action):
    """Print the version of the package that this program came with. It is looked up only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        from importlib import metadata

        try:
            version = metadata.version("podresources")
        except metadata.PackageNotFoundError:
            version = "from a checkout that is not installed"
        print(f"podresources {version}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of ``podresources`` with all its commands."""
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("podresources", description=ABOUT, epilog=BLIND_SPOTS, formatter_class=as_written)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, module: str, text: str, example: str, *, endless: bool = False) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=text[0].lower() + text[1:].split(".")[0],
            description=text,
            epilog="Example:\n" + textwrap.indent(example, "  "),
            formatter_class=as_written,
        )
        sub.set_defaults(command=_lazy(module, name), endless=endless)
        _add_connection(sub)
        return sub

    sub = command(
        "list",
        "query",
        "Who holds what. One line per container and resource; -o wide has one per device.",
        "podresources list -n training --resource 'nvidia.com/*'\n"
        "podresources list --resolve\n"
        "podresources list --resolve -o json | jq '.allocations[] | [.pod, .resolved.uuid]'",
    )
    _add_filters(sub)
    _add_output(sub, FORMATS)
    _add_resolve(sub)

    sub = command(
        "get",
        "query",
        "What one pod holds. Fails when kubelet has no active pod of that name.",
        "podresources get train-0 -n training -o yaml",
    )
    sub.add_argument("pod", metavar="POD")
    sub.add_argument("-n", "--namespace", default="default", help="the pod's namespace (default: %(default)s)")
    _add_output(sub, FORMATS)
    _add_resolve(sub)

    sub = command(
        "allocatable",
        "query",
        "Healthy device-plugin devices, CPUs and memory that kubelet may give out, held or not. Never DRA devices.",
        "podresources allocatable --resource nvidia.com/gpu -o wide",
    )
    _add_globs(sub, "--resource", text="only these resources (cpu, memory, ...)")
    _add_output(sub, FORMATS)

    sub = command(
        "watch",
        "follow",
        "What everybody holds now, then every change as it is seen, until interrupted. "
        "A release is believed when two answers agree; kubelet restarts release nothing.",
        "podresources watch -n training -o json",
        endless=True,
    )
    _add_filters(sub)
    _add_output(sub, ("table", "wide", "json", "yaml"))
    _add_interval(sub)

    sub = command(
        "export",
        "export",
        "Metrics for Prometheus: over HTTP, or as a file for node_exporter's textfile collector.",
        "podresources export --listen '*:9401' --resolve\n"
        "podresources export --textfile /var/lib/node_exporter/podresources.prom --interval 15",
        endless=True,
    )
    way = sub.add_mutually_exclusive_group(required=True)
    text = "serve /metrics here: :9401 for this machine, *:9401 for all"
    way.add_argument("--listen", type=_address, metavar="[HOST]:PORT", help=text)
    way.add_argument("--textfile", type=Path, metavar="PATH", help="write this file, replaced atomically")
    text = (
        "with --textfile: write again every SECONDS (default: write once); "
        "with --listen: ask kubelet at most this often (default: 5)"
    )
    sub.add_argument("--interval", type=_interval, metavar="SECONDS", help=text)
    text = "cut each per-device metric at N series (default: %(default)s)"
    sub.add_argument("--max-series", type=_positive_int, default=10_000, metavar="N", help=text)
    _add_resolve(sub)

    sub = command(
        "top",
        "top",
        "Devices by holder, refreshed in place until interrupted; once when the output is no terminal.",
        "podresources top --interval 2 --resource 'nvidia.com/*'",
        endless=True,
    )
    _add_filters(sub)
    _add_interval(sub)
    return parser


def _lazy(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        code: int = getattr(import_module(f"podresources.cli.{module}"), f"run_{name}")(options)
        return code

    return run


def _add_connection(sub: argparse.ArgumentParser) -> None:
    text = "kubelet's socket (default: %(default)s)"
    sub.add_argument("--socket", type=Path, default=DEFAULT_SOCKET, metavar="PATH", help=text)
    text = "for each request, with its repetitions while kubelet restarts (default: %(default)g)"
    sub.add_argument("--timeout", type=_positive, default=10.0, metavar="SECONDS", help=text)
    text = "largest answer (default: %(default)s)"
    sub.add_argument("--receive-limit-mib", type=_positive_int, default=64, metavar="MIB", help=text)


def _add_filters(sub: argparse.ArgumentParser) -> None:
    filters = sub.add_argument_group("filters", "Globs; repeat one to widen it. A device has a resource or a driver.")
    _add_globs(filters, "-n", "--namespace", text="only pods of these namespaces")
    _add_globs(filters, "--pod", text="only these pods")
    _add_globs(filters, "--resource", text="only these device-plugin resources; also cpu, memory, hugepages-2Mi")
    _add_globs(filters, "--driver", text="only devices of these DRA drivers")


def _add_globs(sub: argparse._ActionsContainer, *names: str, text: str) -> None:
    sub.add_argument(*names, action="append", default=[], metavar="GLOB", help=text)


def _add_output(sub: argparse.ArgumentParser, formats: Sequence[str]) -> None:
    text = f"one of {', '.join(formats)}"
    sub.add_argument("-o", "--output", choices=formats, default="table", metavar="FORMAT", help=text)


def _add_resolve(sub: argparse.ArgumentParser) -> None:
    resolve = sub.add_argument_group(
        "resolving",
        "UUID, PCI address, pod UID and share of each device, from the node itself: drabridge's\n"
        "agent, the claim's CDI file, its metadata file, /proc and sysfs; with --slices also from\n"
        "the API server.",
    )
    resolve.add_argument("--resolve", action="store_true", help="find the hardware behind each device")
    text = "drabridge's control.sock; repeat it for several (default: all in kubelet's plugins)"
    resolve.add_argument("--agent-socket", type=Path, action="append", metavar="PATH", help=text)
    text = "where the node's files are mounted (default: /)"
    resolve.add_argument("--host-root", type=Path, metavar="PATH", help=text)
    text = "where CDI files are, below --host-root; repeat it for several (default: /var/run/cdi, /run/cdi, /etc/cdi)"
    resolve.add_argument("--cdi-dir", type=Path, action="append", metavar="PATH", help=text)
    text = "also read the node's ResourceSlices, with the pod's service account or --kubeconfig"
    resolve.add_argument("--slices", action="store_true", help=text)
    resolve.add_argument("--kubeconfig", type=Path, metavar="PATH", help="for --slices, outside a pod")
    text = "for --slices: this node (default: $NODE_NAME, else its hostname)"
    resolve.add_argument("--node", metavar="NAME", help=text)


def _add_interval(sub: argparse.ArgumentParser) -> None:
    text = f"time between two requests, at least {INTERVAL_FLOOR_SECONDS:g} (default: %(default)g)"
    sub.add_argument("--interval", type=_interval, default=5.0, metavar="SECONDS", help=text)


def selection(options: argparse.Namespace) -> Filters:
    """Return the filters that were given; a filter that the command lacks is empty."""
    return Filters(*(tuple(vars(options).get(name, ())) for name in ("namespace", "pod", "resource", "driver")))


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _positive_int(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _interval(text: str) -> float:
    value = _positive(text)
    if value < INTERVAL_FLOOR_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text} s is too often: kubelet's limiter is shared by the whole node; at least {INTERVAL_FLOOR_SECONDS:g}"
        )
    return value


def _address(text: str) -> tuple[str, int]:
    """``:9401``, ``127.0.0.1:9401``, ``*:9401`` or ``[::1]:9401`` as ``(host, port)``.

    No host means this machine.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not [HOST]:PORT, such as :9401 or *:9401")
    return host.strip("[]") or "127.0.0.1", int(port)
