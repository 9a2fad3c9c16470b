"""Own the life cycle of one agent: configuration, the ledger's lock, serving, and the orderly end.

One process, one loop. While another agent has the ledger's lock, this one is its standby.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from drabridge.agent.components import Components, Foundation, release_policy
from drabridge.agent.drain import is_state_unneeded, remove_state
from drabridge.agent.options import Options
from drabridge.agent.serving import ServingAgent
from drabridge.agent.standby_sockets import standbys
from drabridge.coexistence.driver_rename import refuse_another_name
from drabridge.coexistence.other_agents import OtherAgents
from drabridge.coexistence.withheld import WithheldDevices
from drabridge.config.advice import advice
from drabridge.config.follower import identity_of
from drabridge.config.loader import load
from drabridge.dra.recorded_claims import with_pool_in_use
from drabridge.ledger.entries import Ledger
from drabridge.ledger.lock import LedgerLockedError
from drabridge.ledger.service import LedgerService
from drabridge.ledger.store import Store
from drabridge.system.clock import SteadyClock
from drabridge.system.io_thread import IoThread
from drabridge.system.paths import Paths
from drabridge.system.port import Port
from drabridge.system.supervise import LoopErrors, WakeUp

if TYPE_CHECKING:
    from drabridge.agent.standby import Standby

log = logging.getLogger(__name__)

CLOSE_SECONDS = 0.5  # for unfinished writes in the state directory; part of the 3 s in which SIGTERM ends the agent


class Agent:
    """One agent on one node. :meth:`run` returns after :meth:`stop` or SIGTERM."""

    def __init__(self, options: Options, *, now: Callable[[], float] | None = None) -> None:
        """Read the configuration. Raises ConfigError (every fault at once) before anything on the node is touched."""
        self._options = options
        self._config_file = identity_of(options.config)  # taken before the file is read
        self._config = load(options.config)
        paths = Paths.of(
            self._config.driver,
            kubelet=options.kubelet,
            device_plugins=options.device_plugins,
            state=options.state,
            cdi=options.cdi,
            cdi_specs=tuple(options.cdi_specs),
        )
        for hint in advice(self._config):
            log.warning("configuration", extra={"note": hint})
        self._stop = asyncio.Event()
        self._reload = WakeUp()  # set by SIGHUP, even before the configuration is followed
        self._base = Foundation(
            options=options,
            paths=paths,
            port=Port(options.listen),
            withheld=WithheldDevices(OtherAgents(paths, self._config.driver, options.node_name)),
            state_worker=IoThread("files"),
            snapshot_taken=WakeUp(),
            now=now or SteadyClock(),
        )
        self._standby: Standby | None = None  # what was ready while another agent had the ledger

    def stop(self) -> None:
        """End gracefully: close streams, remove sockets, leave CDI files, and write to disk what is known."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until stopped. Raises DrabridgeError only for what an operator must mend before the agent can start."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(LoopErrors())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)
        refuse_another_name(self._base.paths, self._config, self._options.node_name)
        try:
            if (store := await self._own_ledger()) is not None:
                await self._run_with(store)
        finally:
            if self._standby is not None:
                await self._standby.close()
            await self._base.port.close()

    async def _own_ledger(self) -> Store | None:
        """Wait until no other agent runs, and return the ledger's store, with its lock.

        None: stopped while waiting.
        """
        base, node = self._base, self._options.node_name
        try:
            return Store(base.paths.state, node=node)
        except LedgerLockedError:
            from drabridge.agent.standby import Standby  # most agents never are one: it takes memory

            self._standby = Standby(self._options, self._config, base.paths, base.port, base.snapshot_taken.set)
        lock = await self._standby.wait(self._stop)
        if lock is None:
            return None
        refuse_another_name(base.paths, self._config, node)  # an agent with another name may have started since
        if identity_of(self._options.config) != self._config_file:
            self._reload.set()
        log.info("the other agent has ended, this one takes over")
        return Store(base.paths.state, node=node, lock=lock)

    async def _run_with(self, store: Store) -> None:
        base = self._base
        service = LedgerService(store, release_policy(self._config), base.now)
        config = with_pool_in_use(self._config, base.paths.claim_records, self._options.node_name, service.ledger)
        if config != self._config:  # the file is read again until the pool that it names can be used
            self._reload.set()
        if service.loaded.message:
            log.error(
                "ledger not as it was left", extra={"found": str(service.loaded.kind), "reason": service.loaded.message}
            )
        ended, parts = False, None
        try:
            parts = Components(base, config, service, self._standby)
            await ServingAgent(base, parts, self._standby, self._stop, self._reload).run()
            ended = not service.health.lost
        finally:
            await base.withheld.leave(service.head, ended=ended)
            await base.state_worker.finish(CLOSE_SECONDS)
            await service.close(lambda: self._leave(service.ledger, parts if ended else None))

    def _leave(self, ledger: Ledger, parts: Components | None) -> None:
        """Empty the state directory if nobody needs it, not even a standby. Runs last, under the ledger's lock."""
        state = self._base.paths.state
        if parts is not None and is_state_unneeded(ledger, parts.desired) and not standbys(state):
            remove_state(state)
