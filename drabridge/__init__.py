"""A Kubernetes node agent that offers the same devices through the DevicePlugin API and through DRA."""

import os

__version__ = "0.2.0"

# No plugin of somebody else's belongs into a process that runs as root; looking for them takes 50 ms of every start.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
