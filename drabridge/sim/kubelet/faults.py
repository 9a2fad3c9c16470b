"""Faults that a test switches on.

The kubelet refuses, hangs, reads slowly, stands still, answers nonsense, or does not learn of its pods.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum


class ListFault(StrEnum):
    """What PodResources answers instead of the truth."""

    NONE = "none"
    ERROR = "error"  # UNKNOWN with a text
    HANG = "hang"  # never answers
    GARBAGE = "garbage"  # bytes that are no message
    NONSENSE = "nonsense"  # a valid message that cannot be true
    HUGE = "huge"  # 18 MB: kubernetes#141335 saw 17.8 MB in production


@dataclass(slots=True)
class Faults:
    """Assign to switch on; the default is a kubelet in good health.

    ``refuse_register``: the text of an UNKNOWN error that every Register gets. ``hang_dial_back``: Register never gets
    past the dial. ``list_delay_seconds``: pause after each ListAndWatch message read (a slow consumer).
    ``podresources``: see ListFault. ``notify_error``: the watcher tells DRA plugins this failure instead of success.
    ``running``: cleared while the process stands still as after SIGSTOP: sockets accept, nothing is read or answered.
    ``pods_arrive``: cleared while a kubelet that starts waits for the API server: it serves plugins and knows no pod.
    """

    refuse_register: str = ""
    hang_dial_back: bool = False
    list_delay_seconds: float = 0.0
    podresources: ListFault = ListFault.NONE
    notify_error: str = ""
    running: asyncio.Event = field(default_factory=asyncio.Event)
    pods_arrive: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.running.set()
        self.pods_arrive.set()
