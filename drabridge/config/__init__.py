"""The agent's configuration: one model, a loader that reports all errors at once, and the documents made from it."""

from drabridge.config.loader import load
from drabridge.config.problems import ConfigErrors, Fault
from drabridge.config.schema import Config, Resource

__all__ = ["Config", "ConfigErrors", "Fault", "Resource", "load"]
