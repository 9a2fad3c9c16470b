"""A Kubernetes API server in one process: real protocol, real socket, 1.36.2's quirks, and faults on demand."""

from drabridge.sim.apiserver.auth import User
from drabridge.sim.apiserver.faults import Fault, Faults
from drabridge.sim.apiserver.objects import Objects, Writer
from drabridge.sim.apiserver.requests import Request
from drabridge.sim.apiserver.server import SimApiServer
from drabridge.sim.apiserver.status import ApiError
from drabridge.sim.apiserver.store import Change, Store

__all__ = ["ApiError", "Change", "Fault", "Faults", "Objects", "Request", "SimApiServer", "Store", "User", "Writer"]
