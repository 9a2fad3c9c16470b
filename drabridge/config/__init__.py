"""The agent's configuration: one model, a loader that reports every error at once, and what follows from the model."""

from drabridge.config.loader import load
from drabridge.config.messages import ConfigErrors, Fault
from drabridge.config.schema import Config, Resource

__all__ = ["Config", "ConfigErrors", "Fault", "Resource", "load"]
