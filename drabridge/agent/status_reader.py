"""Read the state of a running agent for readiness, gauges and the status document. Changes nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec import to_builtins

from deviceplugin import ServerState
from drabridge import __version__
from drabridge.agent.standby_sockets import standbys
from drabridge.evidence.kubelet import LIST_SECONDS
from drabridge.kube.features import feature_rows, needed_by, of_kubelet
from drabridge.ledger.entries import Lane, Owner
from drabridge.status.document import AgentInfo, Document, Findings, KubeletConnection, NodeDevices, document
from drabridge.status.readiness import AgentState, ClaimsState, Troubles, not_ready

if TYPE_CHECKING:
    from drabridge.agent.components import Components


def agent_state(parts: Components) -> AgentState:
    """Read the state of this moment."""
    current = parts.current
    return AgentState(
        config=current.config,
        ledger=parts.ledger_service.ledger,
        snapshot=parts.withheld.shown(parts.inventory.current),
        servers=parts.legacy.states,
        claims=_claims(parts),
        troubles=Troubles(
            config=current.config_error,
            devices=current.devices_error,
            ledger=parts.ledger_service.health.error,
            cdi=parts.cdi_maintenance.error,
            vendor=parts.vendor.found,
        ),
        competing=parts.competing.found,
        merge_seconds=LIST_SECONDS,
        nvml_problem=parts.inventory.nvml.problem,
    )


def status_document(parts: Components) -> Document:
    """Make the document behind ``drabridge status`` and the page."""
    state, service, options = agent_state(parts), parts.ledger_service, parts.options
    return document(
        AgentInfo(options.node_name, state.config.driver, __version__, parts.started_at),
        NodeDevices(
            state.ledger,
            state.snapshot,
            service.policy,
            desired={resource.name: parts.desired.describe(resource) for resource in state.config.resources},
            published=parts.claims.published,
            turns=parts.turns.turns,
        ),
        Findings(
            connections=_connections(state, service.now()),
            not_ready=not_ready(state),
            refusals=tuple(parts.sinks.refusals),
            notes=_notes(parts, state),
            features=_features(parts, state),
        ),
        now=service.now(),
    )


def _features(parts: Components, state: AgentState) -> list[Document]:
    needed = needed_by(state.config, leases=parts.desired.uses_leases())
    rows = feature_rows({**parts.claims.features, **of_kubelet(parts.kubelet.features)})
    return [{**to_builtins(row), "needed": row.name in needed} for row in rows]


def _claims(parts: Components) -> ClaimsState:
    claims, state, off = parts.claims, parts.claims.state, parts.api_server.claims_off
    if state is None or not state.serving:
        waits_for = f"not served yet: {claims.error}" if claims.error else "not served yet"
    elif not state.registration.registered:
        waits_for = f"kubelet has not taken the plugin {state.registration.error}".rstrip()
    else:
        waits_for = state.publisher.error or state.error
    return ClaimsState(
        wanted=claims.wanted,
        ready=state is not None and state.ready,
        registered=state is not None and state.serving and state.registration.registered,
        published=claims.published,
        waits_for=waits_for,
        records_error=claims.records_error,
        stranded=parts.claim_demand.stranded,
        off=off.why if off is not None else "",
    )


def _connections(state: AgentState, now: float) -> list[KubeletConnection]:
    """List both sides' connections with kubelet. ``now``: wall-clock seconds."""
    clocks = now - asyncio.get_running_loop().time()  # a server's ``since`` is on the monotonic clock
    found = [_connection(server, clocks) for server in state.servers]
    claims, driver = state.claims, state.config.driver
    if claims.wanted:
        phase, error = ("ready", "") if claims.ready else ("waiting", claims.waits_for)
        found.append(KubeletConnection("dra", driver, phase, claims.ready, 0, error))
    elif claims.stranded:
        found.append(KubeletConnection("dra", driver, "off", False, 0, claims.off))
    return found


def _connection(server: ServerState, clocks: float) -> KubeletConnection:
    since = clocks + server.since
    return KubeletConnection("deviceplugin", server.resource, str(server.phase), server.registered, since, server.error)


def _notes(parts: Components, state: AgentState) -> list[str]:
    """Return further sentences for people, one for each thing to know."""
    notes = [f"configuration on disk is refused: {fault}" for fault in state.troubles.config.splitlines()]
    if parts.kubelet.error:
        notes.append(f"kubelet does not tell who holds devices: {parts.kubelet.error}")
    if parts.others.error:
        notes.append(f"open device nodes cannot be looked for: {parts.others.error}")
    if (loaded := parts.ledger_service.loaded).message:
        notes.append(f"ledger at the last start: {loaded.message}")
        if loaded.hint and any(entry.owner is Owner.QUARANTINE for entry in state.ledger.entries.values()):
            notes.append(loaded.hint)
    notes += [*parts.others.notes(), *parts.desired.notes(), *parts.cordons.notes(), *parts.vendor_managers.notes]
    notes += [*parts.history.notes(), *parts.evictor.notes(), *parts.vfio.notes]
    notes += [f"a standby waits to take over when this agent ends: {name}" for name in standbys(parts.paths.state)]
    if why := _no_slices(parts, state):
        notes.append(f"claims: no ResourceSlices: {why}")
    if (dra := parts.claims.state) is not None:
        notes += dra.publisher.notes
    notes += parts.inventory.notes
    if parts.inventory.status.unexpected:
        notes.append(f"device events: {parts.inventory.status}")
    return [*notes, *parts.inventory.nvml.notes]


def _no_slices(parts: Components, state: AgentState) -> str:
    """Return why there are no slices although nothing is wrong; "" if there are slices, or if another note says why."""
    if state.claims.stranded:
        return ""
    if state.claims.off:
        return state.claims.off
    in_dra = any(entry.lane is Lane.DRA for entry in state.ledger.entries.values())
    behind = parts.claims.state is not None and not state.claims.published  # slices of an earlier run may still exist
    return "" if in_dra or behind else "no device is in the dra lane"
