"""``drabridge run``: serve this node's devices; the agent itself."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from pathlib import Path

from drabridge.agent.options import Options
from drabridge.cli.hardware import DEFAULT_CONFIG, add_config
from drabridge.system.memory import share_one_heap
from drabridge.telemetry import logs

_EPILOG = """\
Signals: TERM ends it within 3 seconds, HUP reads the configuration again (a changed file is noticed anyway).
A configuration that is wrong is refused with every error; the last good one stays.

examples:
  drabridge run --config radios.yaml
  drabridge run -c gpus.yaml --kubelet-dir /var/lib/k0s/kubelet --device-plugin-dir /var/lib/kubelet/device-plugins
  curl -s localhost:9400/readyz        # why it is not ready, in words"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options: the fields of :class:`Options` with its defaults, and those of the log."""
    default = Options(config=DEFAULT_CONFIG, node_name=os.environ.get("NODE_NAME") or socket.gethostname().lower())
    add_config(parser)
    parser.add_argument(
        "--node-name",
        default=default.node_name,
        help="as Kubernetes calls this node; default: $NODE_NAME, else the host's name",
    )
    parser.add_argument(
        "--kubelet-dir",
        dest="kubelet",
        type=Path,
        default=default.kubelet,
        metavar="DIR",
        help="kubelet's --root-dir; default: %(default)s",
    )
    parser.add_argument(
        "--device-plugin-dir",
        dest="device_plugins",
        type=Path,
        metavar="DIR",
        help="where kubelet.sock is; default: device-plugins below --kubelet-dir",
    )
    parser.add_argument(
        "--cdi-dir",
        dest="cdi",
        type=Path,
        default=default.cdi,
        metavar="DIR",
        help="where the agent writes CDI files; one of those that the runtime reads. Default: %(default)s",
    )
    parser.add_argument(
        "--cdi-spec-dirs",
        dest="cdi_specs",
        type=Path,
        nargs="+",
        default=default.cdi_specs,
        metavar="DIR",
        help="where the runtime looks for CDI files, the least important first, as its cdi_spec_dirs; "
        f"default: {' '.join(map(str, default.cdi_specs))}",
    )
    parser.add_argument(
        "--state-dir",
        dest="state",
        type=Path,
        metavar="DIR",
        help="where the ledger is; default: plugins/<driver> below --kubelet-dir",
    )
    parser.add_argument(
        "--listen",
        default=default.listen,
        metavar="HOST:PORT",
        help='where metrics, probes and the page are; default: %(default)s; ":9400": on every address; "": nowhere',
    )
    parser.add_argument(
        "--page",
        nargs="?",
        const="all",
        default=default.page,
        choices=("local", "all", "off"),
        help="who gets the page for people at /. local (default): who asks a loopback address for localhost, as "
        "`kubectl port-forward` does; all (also --page alone): who can reach the port; off: nobody",
    )
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="outside a cluster; default: the pod's account")
    parser.add_argument(
        "--boot-id-file",
        dest="boot_id",
        type=Path,
        default=default.boot_id,
        metavar="FILE",
        help="has another text after each boot; for nodes that are containers and share their host's",
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    parser.add_argument("--log-format", choices=("logfmt", "json"), default="logfmt")
    parser.epilog = _EPILOG


GRPC = {
    "GRPC_VERBOSITY": "ERROR",  # "Got goaway" at info is not for operators
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # hooks are programs; what gRPC does before a fork is for those who fork to serve
}


def run(arguments: argparse.Namespace) -> int:
    share_one_heap()
    logs.setup(arguments.log_level, arguments.log_format)
    for name, value in GRPC.items():  # read when gRPC is imported, which nothing has done yet
        os.environ.setdefault(name, value)
    asyncio.run(_serve(arguments))
    return 0


async def _serve(arguments: argparse.Namespace) -> None:
    from drabridge.agent.main import Agent

    await Agent(Options(**{name: getattr(arguments, name) for name in Options.__struct_fields__})).run()
