"""Say whether this node has anything for claims, and under which pool name; refuse a name that would harm claims."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from drabridge.config.schema import Config
from drabridge.dra.recorded_claims import record_names, recorded_uids, with_pool
from drabridge.kube.connection import ApiServer
from drabridge.lanes.desired import DesiredLanes
from drabridge.ledger.entries import Lane
from drabridge.ledger.service import LedgerService


class ClaimDemand:
    """Reads configuration, desired lanes, ledger and the records of claims. Changes nothing."""

    def __init__(
        self,
        config: Callable[[], Config],
        node: str,
        ledger_service: LedgerService,
        desired: DesiredLanes,
        api_server: ApiServer,
        records: Path,
    ) -> None:
        """``config`` returns the configuration in use; ``records`` is the directory of the claims' records."""
        self._config = config
        self._node = node
        self._ledger_service = ledger_service
        self._desired = desired
        self._api_server = api_server
        self._directory = records
        self._records = record_names(records)

    def read_records(self) -> None:
        """Read which records there are.

        Only a driver changes them, so this is done at the start and whenever a driver has ended.
        """
        self._records = record_names(self._directory)

    def recorded_uids(self) -> frozenset[str]:
        """List the UIDs of claims on record, from the disk. It may wait for the disk: do not call it on the loop."""
        return recorded_uids(self._directory)

    @property
    def needed(self) -> bool:
        """Whether a driver has something to serve here."""
        config, ledger = self._config(), self._ledger_service.ledger
        return (
            config.wants_dra
            or bool(self._records or ledger.by_claim)
            or any(entry.lane is not Lane.LEGACY for entry in ledger.entries.values())
            or self._dra_desired()
        )

    @property
    def stranded(self) -> str:
        """Say what waits for the DRA side while that is off, and what to do; "" if nothing waits."""
        off = self._api_server.claims_off
        if off is None:
            return ""
        ledger = self._ledger_service.ledger
        devices = sum(entry.lane is not Lane.LEGACY for entry in ledger.entries.values())
        claims = len({*ledger.by_claim, *(name[:-5] for name in self._records if name.endswith(".json"))})
        left = [
            *([f"{devices} device{'s' * (devices > 1)} in the dra lane"] if devices else ()),
            *([f"{claims} claim{'s' * (claims > 1)} held"] if claims else ()),
        ]
        if left:
            return (
                f"{' and '.join(left)}, and the DRA side is off: {off.why}. Nobody can have these devices, pods with "
                f"these claims cannot end: {off.remedy}, at least until all are back in the legacy lane"
            )
        if self._dra_desired():
            return f"the configuration has devices for claims, and all are left to pods: {off.why}; {off.remedy}"
        return ""

    def pool(self, config: Config | None = None) -> str:
        """Return the name of this node's pool in the configuration in use, or in another one."""
        return (config or self._config()).dra.pool or self._node

    def refusal(self, config: Config) -> str:
        """Say why a running agent does not take this configuration; "" if it does."""
        ours, other, ledger = self.pool(), self.pool(config), self._ledger_service.ledger
        held = [entry.name for entry in ledger.entries.values() if entry.holders]
        if ours == other or (ledger.node.merged and not held):
            return ""
        if not held:
            return f"dra.pool: found {other}, and it is not known yet which devices claims have in the pool {ours}"
        current = self._config()
        rest = ". All else in the file is in force" if with_pool(config, current.dra.pool) == current else ""
        return (
            f"dra.pool: found {other}, and claims have {', '.join(held)} in the pool {ours}: the scheduler would take "
            f"them for other devices, and free. The pool stays {ours} until no claim has a device: delete the pods "
            f"that use these claims, or change dra.pool back{rest}"
        )

    def _dra_desired(self) -> bool:
        return any(self._desired.lanes(resource).uses_dra for resource in self._config().resources)
