"""Ask NVML once a configuration needs it. Before, its process does not exist and its code is not imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from drabridge.config.nvidia import Nvidia
from drabridge.config.schema import Config
from drabridge.inventory.nvidia import NvidiaFacts
from drabridge.inventory.observer import OnFact
from drabridge.inventory.udev_scope import needs_nvidia

if TYPE_CHECKING:
    from drabridge.inventory.gpu_use import GpuUse
    from drabridge.inventory.nvml import NvmlClient

NVML_SECONDS = 10.0
"""How long the first snapshot waits for NVML. It initialises GPUs that nothing else has open: about a second each."""

NVML_END_SECONDS = 0.5
"""How long the end waits for NVML's killed process; part of the 3 s in which SIGTERM ends the agent."""


class HealthWatch:
    """NVML's client, once it is needed. ``news``: NVML's answers changed since :meth:`with_nvml` was called last."""

    def __init__(self, on_news: Callable[[], None], on_fact: OnFact, proc: Path) -> None:
        """``on_news`` is called when devices have to be looked at again. ``proc``: where procfs is mounted."""
        self._on_news = on_news
        self._on_fact = on_fact
        self._proc = proc
        self._nvml: NvmlClient | None = None
        self._pause = ""  # why NVML must not be asked now
        self.news = False

    @property
    def nvml_problem(self) -> str | None:
        """Why NVML does not answer; "" while it does; None if it is not needed."""
        return self._nvml.problem if self._nvml is not None else None

    @property
    def gpu_use(self) -> GpuUse | None:
        """What containers use of NVIDIA's GPUs; None if unknown."""
        return self._nvml.use if self._nvml is not None else None

    @property
    def notes(self) -> list[str]:
        """Sentences for people about NVML's answers."""
        if self._nvml is None:
            return []
        return [*([f"NVML: {self._nvml.problem}"] if self._nvml.problem else []), *self._nvml.notes]

    def use_nvml(self, configs: Iterable[Config], settings: Nvidia) -> None:
        """Start asking NVML if a configuration needs it and ``settings`` allow it; else end its process and client."""
        if settings.nvml and any(map(needs_nvidia, configs)):
            if self._nvml is None:
                from drabridge.inventory.nvml import NvmlClient

                self._nvml = NvmlClient(self._take_news, self._on_fact, proc=self._proc)
                self._nvml.pause(self._pause)
            self._nvml.start(settings)
        elif self._nvml is not None:
            self._nvml.stop()
            self._nvml = None
            self._take_news()

    def pause_nvml(self, why: str) -> None:
        """Stop using NVIDIA's driver while there is a reason (``why``); "" goes on. What NVML said last stays."""
        self._pause = why
        if self._nvml is not None:
            self._nvml.pause(why)

    async def nvml_answered(self) -> None:
        """Wait until NVML has answered, ``NVML_SECONDS`` at most; return at once if it is not asked."""
        if self._nvml is not None:
            await self._nvml.answered(NVML_SECONDS)

    def with_nvml(self, facts: NvidiaFacts) -> NvidiaFacts:
        """Return what the driver's files say, with what NVML says added."""
        self.news = False
        return self._nvml.facts(facts) if self._nvml is not None else facts

    async def stop(self) -> None:
        """End everything."""
        if self._nvml is not None:
            self._nvml.stop()
            await self._nvml.ended(NVML_END_SECONDS)
            self._nvml = None

    def _take_news(self) -> None:
        self.news = True
        self._on_news()
