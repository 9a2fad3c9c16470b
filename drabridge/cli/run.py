"""``drabridge run``"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from pathlib import Path

from drabridge.cli.hardware import add_config
from drabridge.system.paths import BOOT_ID
from drabridge.telemetry import logs

_EPILOG = """\
Signals: TERM ends it within 3 seconds, HUP reads the configuration again (a changed file is noticed anyway).
A configuration that is wrong is refused with every error; the last good one stays.

examples:
  drabridge run --config radios.yaml
  drabridge run -c gpus.yaml --kubelet-dir /var/lib/k0s/kubelet --device-plugin-dir /var/lib/kubelet/device-plugins
  curl -s localhost:9400/readyz        # why it is not ready, in words"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--node-name",
        default=os.environ.get("NODE_NAME") or socket.gethostname().lower(),
        help="as Kubernetes calls this node; default: $NODE_NAME, else the host's name",
    )
    parser.add_argument(
        "--kubelet-dir", type=Path, default=Path("/var/lib/kubelet"), metavar="DIR", help="kubelet's --root-dir"
    )
    parser.add_argument(
        "--device-plugin-dir",
        type=Path,
        metavar="DIR",
        help="where kubelet.sock is; default: device-plugins below --kubelet-dir",
    )
    parser.add_argument(
        "--cdi-dir", type=Path, default=Path("/var/run/cdi"), metavar="DIR", help="default: /var/run/cdi"
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="ledger; default: plugins/<driver> below --kubelet-dir",
    )
    parser.add_argument(
        "--listen",
        default="127.0.0.1:9400",
        metavar="HOST:PORT",
        help='metrics and probes, on localhost the page for people too; ":9400" for all, "" for none',
    )
    parser.add_argument(
        "--page",
        nargs="?",
        const="all",
        default="local",
        choices=("local", "all", "off"),
        help="who gets the page for people at /: local (default) only who asks a loopback address for localhost, which "
        "`kubectl port-forward` does; all who can reach the port (also plain --page); off nobody",
    )
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="outside a cluster; default: the pod's account")
    parser.add_argument(
        "--boot-id-file",
        type=Path,
        default=BOOT_ID,
        metavar="FILE",
        help="says another text after each boot; for nodes that are containers and share their host's",
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    parser.add_argument("--log-format", choices=("logfmt", "json"), default="logfmt")
    parser.epilog = _EPILOG


GRPC = {
    "GRPC_VERBOSITY": "ERROR",  # "Got goaway" at info is not for operators
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # hooks are programs; what gRPC does before a fork is for those who fork to serve
}


def run(arguments: argparse.Namespace) -> int:
    logs.setup(arguments.log_level, arguments.log_format)
    for name, value in GRPC.items():  # read when gRPC is imported, which nothing has done yet
        os.environ.setdefault(name, value)
    asyncio.run(_serve(arguments))
    return 0


async def _serve(arguments: argparse.Namespace) -> None:
    from drabridge.agent.main import Agent
    from drabridge.agent.options import Options

    agent = Agent(
        Options(
            config=arguments.config,
            node_name=arguments.node_name,
            kubelet=arguments.kubelet_dir,
            device_plugins=arguments.device_plugin_dir,
            state=arguments.state_dir,
            cdi=arguments.cdi_dir,
            listen=arguments.listen,
            page=arguments.page,
            kubeconfig=arguments.kubeconfig,
            boot_id=arguments.boot_id_file,
        )
    )
    await agent.run()
