"""Share among the commands: which cluster is meant, and which DeviceClass a resource has."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from drabridge.errors import ConfigError, DrabridgeError

if TYPE_CHECKING:
    from drabridge.kube.client import KubernetesCluster

T = TypeVar("T")

READ_SECONDS = 60.0  # for one page; an API server under load answers a LIST late (its --request-timeout is 60)

SHORT_SECONDS = 5.0  # for the same if the command can go on without the answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which cluster."""
    text = "default: $KUBECONFIG, ~/.kube/config, or the account of the pod that this runs in"
    parser.add_argument("--kubeconfig", metavar="FILE", help=text)
    parser.add_argument("--context", metavar="NAME", help="a context of the kubeconfig; default: its current one")


def add_class(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add ``--class RESOURCE=CLASS``, kept as ``classes``: pairs of names."""
    add_names(parser, "classes", meaning, "--class", metavar="RESOURCE=CLASS", type=_resource_class)


def add_names(
    parser: argparse.ArgumentParser,
    field: str,
    meaning: str,
    *options: str,
    metavar: str = "NAME",
    type: Callable[[str], object] = str,
) -> None:
    """Add an option that may be given several times; ``field`` is the list of its values."""
    parser.add_argument(*options, dest=field, action="append", type=type, default=[], metavar=metavar, help=meaning)


def ask(
    arguments: argparse.Namespace, question: Callable[[KubernetesCluster], Awaitable[T]], seconds: float = READ_SECONDS
) -> T:
    """Ask the cluster that the options name, and close the connection. Raises ConfigError, ClusterError."""

    async def answer() -> T:
        api = _connect(arguments.kubeconfig, arguments.context, seconds)
        try:
            return await question(api)
        finally:
            api.close()

    return asyncio.run(answer())


def _connect(kubeconfig: str | None, context: str | None, seconds: float) -> KubernetesCluster:
    """Return the connection. ``kubeconfig``: a path, or several, as $KUBECONFIG has them. Raises ConfigError."""
    from drabridge.kube.client import KubernetesCluster
    from drabridge.system.paths import SERVICE_ACCOUNT

    said = kubeconfig or os.environ.get("KUBECONFIG") or None
    usual = Path.home() / ".kube" / "config"
    if said is None and not usual.exists():
        if SERVICE_ACCOUNT.exists():
            return KubernetesCluster.in_cluster()
        raise ConfigError(f"there is no kubeconfig: {usual} does not exist", hint="Give one with --kubeconfig")
    if kubeconfig is not None and not any(Path(one).is_file() for one in kubeconfig.split(os.pathsep)):
        raise ConfigError(f"there is no file {kubeconfig}", hint="Give a kubeconfig with --kubeconfig")
    return KubernetesCluster.from_kubeconfig(Path(said) if said else usual, context, read_seconds=seconds)


async def classes_of(api: KubernetesCluster) -> dict[str, str]:
    """Return DeviceClass -> its extendedResourceName, or "", of a cluster. Raises ClusterError, ConfigError."""
    from drabridge.kube.api import device_classes, served_version
    from drabridge.migrate.report import readers

    version = await served_version(api)
    if not version:
        hint = "Kubernetes 1.34 and later have resource.k8s.io/v1"
        raise ConfigError("this API server serves no claims", hint=hint)
    return {one.name: one.extended for one in (await api.list(device_classes(version), view=readers.CLASS)).items}


def classes_if_there(arguments: argparse.Namespace) -> tuple[dict[str, str], str]:
    """Return the cluster's DeviceClasses and ""; {} and the reason if the default cluster cannot be asked.

    Raises DrabridgeError if the options name a cluster that cannot be asked.
    """
    try:
        return ask(arguments, classes_of, SHORT_SECONDS), ""
    except DrabridgeError as error:
        if arguments.kubeconfig or arguments.context:
            raise
        return {}, error.message


def _resource_class(words: str) -> tuple[str, str]:
    """Read RESOURCE=CLASS, for argparse."""
    from drabridge.config.names import DEVICE_CLASS_NAME, extended_resource_name
    from drabridge.config.problems import Problems

    resource, _, name = words.partition("=")
    try:
        return extended_resource_name(resource), DEVICE_CLASS_NAME.check(name)
    except Problems as error:
        raise argparse.ArgumentTypeError(f"{words}: {error}; for example nvidia.com/gpu=gpu.example.com") from error
