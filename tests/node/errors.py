"""The one error of this package."""

from __future__ import annotations


class NodeError(Exception):
    """Why there is no node, and what to do about it, in one sentence for people."""
