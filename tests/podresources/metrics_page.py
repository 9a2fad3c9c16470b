"""Scrape an exporter and read the samples of its page."""

from __future__ import annotations

import asyncio
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from podresources.exporter import Exporter
from podresources.resolve.resolver import Resolver
from tests.support.waiting import PATIENCE

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> Series:
    """Every sample by name and labels; empty labels left out, as Prometheus does. A repeated series is a failure."""
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset((name, value) for name, value in sample.labels.items() if value))
            assert key not in found, f"twice: {key}"
            found[key] = sample.value
    return found


def value(series: Series, name: str, **labels: str) -> float | None:
    """The one sample of that name and exactly those labels."""
    return series.get((name, frozenset(labels.items())))


def count(series: Series, name: str) -> int:
    return sum(1 for found, _ in series if found == name)


class Scraped:
    """An exporter in a registry of its own."""

    def __init__(
        self,
        path: Path,
        *,
        max_age_seconds: float = 0.0,
        max_series: int = 10_000,
        resolver: Resolver | None = None,
    ) -> None:
        self.exporter = Exporter(
            path,
            max_age_seconds=max_age_seconds,
            max_series=max_series,
            timeout_seconds=0.5 * PATIENCE,
            resolver=resolver,
        )
        self.registry = CollectorRegistry()
        self.registry.register(self.exporter)

    async def text(self) -> str:
        return (await asyncio.to_thread(generate_latest, self.registry)).decode()

    async def scrape(self) -> Series:
        return parse(await self.text())
