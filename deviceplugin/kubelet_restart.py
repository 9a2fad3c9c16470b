"""Detect that kubelet was restarted, our socket was removed, or the plugin directory was replaced.

A kubelet that starts deletes every socket in the plugin directory, ours included, and then makes a new ``kubelet.sock``
(pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go). The new file may have the old inode number (observed on
1.36.2), so its change time counts too. ``LevelCheck.look`` compares the files with what it found the last time.

``PluginServer.run`` (server.py) calls it after each wake-up from inotify (inotify.py) and every
``Timeouts.poll_seconds``. What follows from its events is decided in registration.py; register_call.py registers again.
"""

from __future__ import annotations

from pathlib import Path

from deviceplugin.listener import Listener
from deviceplugin.registration import RegistrationEvent
from deviceplugin.sockets import KUBELET_SOCKET, SocketFileIdentity, identify_directory, identify_socket


class LevelCheck:
    """Compares the plugin directory with what the last check found there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._place: tuple[int, int] | None = None
        self._kubelet: SocketFileIdentity | None = None

    def look(self, listener: Listener | None) -> list[RegistrationEvent]:
        """Return what has changed since the last check. ``listener`` is our server, if it is bound.

        It costs three stat calls. Our socket is looked at after kubelet's, because kubelet removes ours and then makes
        its own. In the other order ours could seem alive next to a new kubelet.sock, and kubelet would dial a removed
        path for 10 s.
        """
        events = []
        place = identify_directory(self._directory)
        kubelet = identify_socket(self._directory / KUBELET_SOCKET)
        own_lost = listener is not None and not listener.in_place()
        if place != self._place:
            events.append(RegistrationEvent.DIRECTORY_CHANGED)
        if own_lost:
            events.append(RegistrationEvent.OWN_SOCKET_LOST)
        if kubelet != self._kubelet:
            events.append(RegistrationEvent.KUBELET_NEW if kubelet else RegistrationEvent.KUBELET_GONE)
        self._place, self._kubelet = place, kubelet
        return events
