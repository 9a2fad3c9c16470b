"""A Kubernetes API server in one process: real protocol, real socket, 1.36.2's quirks, and faults on demand."""

from drabridge.sim.api.auth import User
from drabridge.sim.api.faults import Fault, Faults
from drabridge.sim.api.objects import Objects, Writer
from drabridge.sim.api.requests import Request
from drabridge.sim.api.server import SimApiServer
from drabridge.sim.api.status import ApiError
from drabridge.sim.api.store import Change, Store

__all__ = ["ApiError", "Change", "Fault", "Faults", "Objects", "Request", "SimApiServer", "Store", "User", "Writer"]
