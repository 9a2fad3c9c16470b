"""Make a resolver as the command line wants it; imported with ``--resolve`` only."""

from __future__ import annotations

import os
import socket
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from podresources.errors import NodeError
from podresources.resolve.cdi import FOLDERS
from podresources.resolve.resolver import NodePaths, Resolver
from podresources.socket_path import DEFAULT_SOCKET

if TYPE_CHECKING:
    from podresources.resolve.slices import Slices

WAIT_SECONDS = 10.0
"""How long a command that asks once waits for the first answer of the API server."""


def make_resolver(options: Namespace, *, wait: bool) -> Resolver:
    """Return the resolver; with ``wait``, after the first reading of slices. Raises NodeError without a host root."""
    root = options.host_root or Path("/")
    if not root.is_dir():
        raise NodeError(
            f"There is no directory {root}",
            hint="--host-root is where the node's file system is mounted, such as /host; without it / is read",
        )
    agents = None if options.agent_socket is None else tuple(options.agent_socket)
    slices = _slices(options, wait=wait) if options.slices else None
    folders = FOLDERS if options.cdi_dir is None else tuple(options.cdi_dir)
    return Resolver(NodePaths(root, agents, _kubelet(options), folders), slices=slices)


def _kubelet(options: Namespace) -> Path | None:
    """Return kubelet's directory: the one that its socket is in, unless the node's files are mounted elsewhere."""
    folder = options.socket.parent
    return folder.parent if options.host_root is None and folder.name == DEFAULT_SOCKET.parent.name else None


def _slices(options: Namespace, *, wait: bool) -> Slices:
    from podresources.resolve.api_server import in_cluster, of_kubeconfig
    from podresources.resolve.slices import Slices

    kubeconfig = options.kubeconfig
    connect = in_cluster if kubeconfig is None else lambda: of_kubeconfig(kubeconfig)
    slices = Slices(connect, options.node or os.environ.get("NODE_NAME") or socket.gethostname())
    slices.start()
    if wait:
        slices.wait(WAIT_SECONDS)
    return slices
