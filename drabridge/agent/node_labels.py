"""Compute the Node's labels from configuration and devices, and pass them to the writer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from drabridge.config.schema import Config
from drabridge.config.template import Lookup
from drabridge.inventory.devices import Device
from drabridge.kube.node_labels import NodeLabelWriter

REFRESH_SECONDS = 60.0  # a hardware value may change without any event of a device


class NodeLabels:
    """Keeps the wanted labels of this Node up to date; ``writer`` writes them to the Node."""

    def __init__(
        self,
        config: Callable[[], Config],
        devices: Callable[[], Mapping[str, Device]],
        lookup: Callable[[str], Lookup | None],
        writer: NodeLabelWriter,
        now: Callable[[], float],
    ) -> None:
        self._config = config
        self._devices = devices
        self._lookup = lookup
        self._now = now
        self._refreshed_at = now()
        self.writer = writer

    def follow(self) -> None:
        """Compute the labels again: devices or the configuration may have changed."""
        labels: Mapping[str, str] = {}
        if rules := self._config().label_rules:
            from drabridge.offers.node_labels import wanted_labels

            labels = wanted_labels(rules, self._devices().values(), lambda device: self._lookup(device.name))
        self.writer.want(labels)

    async def refresh(self) -> None:
        """Compute the labels again if they are older than ``REFRESH_SECONDS``."""
        if self._config().node_labels is not None and self._now() - self._refreshed_at >= REFRESH_SECONDS:
            self._refreshed_at = self._now()
            self.follow()
