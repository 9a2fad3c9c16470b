"""A Kubernetes node agent that offers the same devices through the DevicePlugin API and through DRA."""

__version__ = "0.2.0"
