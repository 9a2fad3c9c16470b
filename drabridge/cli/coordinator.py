"""``drabridge coordinator``: name waiting claims to the agents, publish fabric devices; one leads, the others wait."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drabridge.cli.options import add_kubeconfig, add_log, driver_name, whole
from drabridge.config.names import is_dns_label
from drabridge.errors import ConfigError
from drabridge.system.port import Port, parse_listen
from drabridge.telemetry import logs

if TYPE_CHECKING:
    from drabridge.config.schema import Config

WRITERS = 4  # connections: as many ConfigMaps are written at a time
LEAST_LEASE_SECONDS = 3  # the client library allows no less

_EPILOG = """\
For clusters of many nodes with shared devices (lanes: shared). It watches all
claims, once, and writes the names of those that wait for a lease into one
ConfigMap for each node; agents with dra.leases.coordinator read that instead
of watching pods. It grants nothing. With --config it publishes the devices of
the agents' configuration that several nodes reach (fabric:), and checks
whether they answer. Run two: one leads, the other waits.

examples:
  drabridge coordinator --driver gpu.example.com --namespace drabridge
  drabridge coordinator --driver gpu.example.com --namespace drabridge \\
      --config /etc/drabridge/config.yaml

exit status: 0 ended by a signal, 1 the leadership is lost (start it again),
2 bad usage"""


def configure(parser: argparse.ArgumentParser) -> None:
    text = "the driver whose leases these are"
    parser.add_argument("--driver", type=driver_name, required=True, metavar="NAME", help=text)
    text = "where its ConfigMaps and its Lease are; default: $POD_NAMESPACE"
    parser.add_argument("--namespace", default=os.environ.get("POD_NAMESPACE", ""), help=text)
    usual = os.environ.get("POD_NAME") or socket.gethostname()
    text = "its name in the election, another one for each process; default: $POD_NAME, else the host's name"
    parser.add_argument("--identity", default=usual, metavar="NAME", help=text)
    text = "how long the others wait for a leader that says nothing; default: %(default)s"
    whole_seconds = whole(LEAST_LEASE_SECONDS, 3600)
    parser.add_argument("--lease-seconds", type=whole_seconds, default=15, metavar="SECONDS", help=text)
    text = 'where /healthz, /readyz and /metrics are; ":9400": on every address; default: nowhere'
    parser.add_argument("--listen", default="", metavar="HOST:PORT", help=text)
    text = "the agents' configuration, followed as they follow it: its fabric devices are published"
    parser.add_argument("--config", type=Path, metavar="FILE", help=text)
    add_kubeconfig(parser, "outside a cluster")
    add_log(parser)
    parser.epilog = _EPILOG


def run(arguments: argparse.Namespace) -> int:
    if not is_dns_label(arguments.namespace):
        raise ConfigError(f"--namespace: found {arguments.namespace!r}, expected the name of a namespace")
    if arguments.listen:
        parse_listen(arguments.listen)
    config = None
    if arguments.config is not None:
        from drabridge.config.loader import load

        config = load(arguments.config)
        if config.driver != arguments.driver:
            raise ConfigError(f"--driver: found {arguments.driver!r}, and {arguments.config} has {config.driver!r}")
    logs.setup(arguments.log_level, arguments.log_format)
    asyncio.run(_coordinate(arguments, config))
    return 0


async def _coordinate(arguments: argparse.Namespace, config: Config | None) -> None:
    from drabridge.coordinator.main import Coordinator
    from drabridge.kube.claim_hints import lock_name
    from drabridge.kube.client import KubernetesCluster
    from drabridge.kube.kubeconfig import configuration_in_cluster, configuration_of
    from drabridge.kube.leader_election import Election

    file = arguments.kubeconfig
    clusters = tuple(
        KubernetesCluster.from_kubeconfig(file) if file else KubernetesCluster.in_cluster() for _ in range(WRITERS)
    )

    def configuration() -> Any:
        return configuration_of(file) if file else configuration_in_cluster()

    driver = arguments.driver
    election = Election(lock_name(driver), arguments.namespace, arguments.identity, arguments.lease_seconds)
    try:
        followed = (arguments.config, config) if config is not None else None
        await Coordinator(clusters, driver, election, configuration, Port(arguments.listen), followed).run()
    finally:
        for cluster in clusters:
            cluster.close()
