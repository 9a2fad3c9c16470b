"""State every interval that the library waits for, with its reason."""

from __future__ import annotations

from msgspec import Struct


class Timeouts(Struct, frozen=True):
    """All in seconds. The defaults are right for kubelet 1.26 to 1.37; tests shorten them."""

    register_seconds: float = 15.0
    """Deadline of Register. Kubelet dials back for up to 10 s before it answers (plugin/v1beta1/client.go)."""

    stream_seconds: float = 5.0
    """After Register succeeded, ListAndWatch comes within milliseconds (4-7 ms measured on 1.36.2) or never."""

    settle_seconds: float = 0.25
    """How long a stream of a dead kubelet may outlive its successor's kubelet.sock: the kernel ends it in ms."""

    refused_seconds: float = 0.02
    """Between attempts while kubelet.sock refuses: it exists from bind(), but accepts only from listen()."""

    refused_quick: int = 100
    """So many quick attempts (2 s), then ``refused_slow_seconds``: a dead kubelet leaves its socket file behind."""

    refused_slow_seconds: float = 1.0
    """Between attempts on a socket file that nobody listens on; each is one connect(), about 20 us."""

    backoff_first_seconds: float = 1.0
    """Least wait before registering again with the same kubelet: it must finish its disconnect first (kubelet <= 1.36
    looks the client up by resource name and would hit the new one; kubernetes#121994)."""

    backoff_max_seconds: float = 30.0
    """The back-off doubles from the first to this; jitter adds up to 20 percent."""

    stable_seconds: float = 30.0
    """A stream that lived this long forgives earlier failures: the back-off starts afresh."""

    poll_seconds: float = 3.0
    """The level check (three stat calls) when inotify works and merely might have missed something."""

    poll_blind_seconds: float = 0.25
    """The level check when inotify cannot be had: running pods depend on quick registration."""

    allocate_seconds: float = 5.0
    """Deadline of one Allocate. Kubelet sets none and admits no pod on the node meanwhile (kubernetes#117435), so it
    must be short; a refused pod is lost for good, so it must survive an fsync on a busy disk (seconds)."""

    pre_start_seconds: float = 25.0
    """Deadline of PreStartContainer: below kubelet's 30 s (constants.go), so that our text reaches the person."""

    end_streams_seconds: float = 0.5
    """How long a stream may take to end when asked; a frozen client is then cut off."""

    recent_seconds: float = 60.0
    """How long an id counts as recently asked about: kubelet 1.36 crashes when an id leaves the list between its
    choice and the end of its Allocate."""
