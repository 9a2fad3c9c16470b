"""``drabridge run``: serve this node's devices; the agent itself."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from pathlib import Path

from drabridge.agent.options import Options
from drabridge.cli.options import DEFAULT_CONFIG, add_config, add_kubeconfig, add_log
from drabridge.system.memory import share_one_heap
from drabridge.telemetry import logs

_EPILOG = """\
Signals: TERM ends it within 3 seconds, HUP reads the configuration again (a changed file is noticed anyway).
A configuration that is wrong is refused with every error; the last good one stays.

examples:
  drabridge run --config radios.yaml
  drabridge run -c gpus.yaml --kubelet-dir /var/lib/k0s/kubelet --device-plugin-dir /var/lib/kubelet/device-plugins
  curl -s localhost:9400/readyz        # why it is not ready, in words"""


_PLACES = (  # option, its field, and what it is
    ("--kubelet-dir", "kubelet", "kubelet's --root-dir; default: %(default)s"),
    ("--device-plugin-dir", "device_plugins", "where kubelet.sock is; default: device-plugins below --kubelet-dir"),
    ("--cdi-dir", "cdi", "where the agent writes CDI files; one of those that the runtime reads. Default: %(default)s"),
    ("--state-dir", "state", "where the ledger is; default: plugins/<driver> below --kubelet-dir"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options: the fields of :class:`Options` with its defaults, and those of the log."""
    default = Options(config=DEFAULT_CONFIG, node_name=os.environ.get("NODE_NAME") or socket.gethostname().lower())
    add_config(parser)
    text = "as Kubernetes calls this node; default: $NODE_NAME, else the host's name"
    parser.add_argument("--node-name", default=default.node_name, help=text)
    for option, field, text in _PLACES:
        usual = getattr(default, field)
        parser.add_argument(option, dest=field, type=Path, default=usual, metavar="DIR", help=text)
    usual = default.cdi_specs
    text = "where the runtime looks for CDI files, the least important first, as its cdi_spec_dirs; default: "
    text += " ".join(map(str, usual))
    parser.add_argument(
        "--cdi-spec-dirs", dest="cdi_specs", type=Path, nargs="+", default=usual, metavar="DIR", help=text
    )
    text = 'where metrics, probes and the page are; default: %(default)s; ":9400": on every address; "": nowhere'
    parser.add_argument("--listen", default=default.listen, metavar="HOST:PORT", help=text)
    text = (
        "who gets the page for people at /. local (default): who asks a loopback address for localhost, as "
        "`kubectl port-forward` does; all (also --page alone): who can reach the port; off: nobody"
    )
    pages = ("local", "all", "off")
    parser.add_argument("--page", nargs="?", const="all", default=default.page, choices=pages, help=text)
    add_kubeconfig(parser, "outside a cluster")
    text = "has another text after each boot; for nodes that are containers and share their host's"
    parser.add_argument("--boot-id-file", dest="boot_id", type=Path, default=default.boot_id, metavar="FILE", help=text)
    add_log(parser)
    parser.epilog = _EPILOG


GRPC = {
    "GRPC_VERBOSITY": "ERROR",  # "Got goaway" at info is not for operators
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # only programs that serve gRPC in forked children need it; hooks do not
}


def run(arguments: argparse.Namespace) -> int:
    share_one_heap()
    logs.setup(arguments.log_level, arguments.log_format)
    for name, value in GRPC.items():  # gRPC reads them when it is imported, which has not happened yet
        os.environ.setdefault(name, value)
    asyncio.run(_serve(arguments))
    return 0


async def _serve(arguments: argparse.Namespace) -> None:
    from drabridge.agent.main import Agent

    await Agent(Options(**{name: getattr(arguments, name) for name in Options.__struct_fields__})).run()
