"""State every interval that the library waits for, with its reason."""

from __future__ import annotations

from msgspec import Struct


class Timeouts(Struct, frozen=True):
    """All times are in seconds. The defaults are right for kubelet 1.26 to 1.37; tests shorten them."""

    register_seconds: float = 15.0
    """Deadline of Register. Kubelet dials back for up to 10 s before it answers (plugin/v1beta1/client.go)."""

    stream_seconds: float = 5.0
    """How long to wait for ListAndWatch after Register: it comes within milliseconds (4-7 ms on 1.36.2), or never."""

    settle_seconds: float = 0.25
    """How long a stream of a dead kubelet may outlive its successor's kubelet.sock: the kernel ends it in ms."""

    refused_seconds: float = 0.02
    """The pause between attempts while kubelet.sock refuses: it exists after bind(), but accepts only after
    listen()."""

    refused_quick: int = 100
    """After so many quick attempts (2 s), ``refused_slow_seconds`` applies: a dead kubelet leaves its socket file
    behind."""

    refused_slow_seconds: float = 1.0
    """The pause between attempts on a socket file that nobody listens on. Each is one connect(), about 20 us."""

    backoff_first_seconds: float = 1.0
    """The least wait before registering again with the same kubelet. Kubelet must finish its disconnect first: up to
    1.36 it looks up the client by resource name, and would disconnect the new one (kubernetes#121994)."""

    backoff_max_seconds: float = 30.0
    """The back-off doubles from ``backoff_first_seconds`` up to this. Jitter adds up to 20 percent."""

    stable_seconds: float = 30.0
    """Once a stream has been open for so long, earlier failures no longer count: the back-off starts again."""

    poll_seconds: float = 3.0
    """The pause between level checks (three stat calls) while inotify works: it may have missed something."""

    poll_blind_seconds: float = 0.25
    """The pause between level checks without inotify: running pods depend on quick registration."""

    allocate_seconds: float = 5.0
    """Deadline of one Allocate. Kubelet sets none and admits no pod on the node meanwhile (kubernetes#117435), so it
    must be short; a refused pod is lost for good, so it must survive an fsync on a busy disk (seconds)."""

    pre_start_seconds: float = 25.0
    """Deadline of PreStartContainer: below kubelet's 30 s (constants.go), so that our text reaches the person."""

    end_streams_seconds: float = 0.5
    """How long a stream may take to end when asked. After that it is cut off: the client may be frozen."""

    recent_seconds: float = 60.0
    """How long an id counts as recently asked about: kubelet 1.36 crashes when an id leaves the list between its
    choice and the end of its Allocate."""
