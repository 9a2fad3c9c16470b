"""Decide whether the agent is ready, and say in words why not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from drabridge.config.schema import Config
from drabridge.inventory.devices import Snapshot
from drabridge.inventory.fallbacks import not_given
from drabridge.ledger.entries import Ledger

if TYPE_CHECKING:
    from deviceplugin import ServerState


class ClaimsState(Struct, frozen=True):
    """The DRA side at one moment. Texts are for people, and empty when there is nothing to say."""

    wanted: bool  # claims are, or shall be, served
    ready: bool = False  # kubelet has taken the plugin, and the API server has our slices
    registered: bool = False  # kubelet has taken the plugin
    published: bool = False  # the API server has our slices
    waits_for: str = ""  # what it waits for while it is not ready
    records_error: str = ""  # why claims cannot be recorded and so not granted
    stranded: str = ""  # claims or devices that wait for the DRA side while it is off
    off: str = ""  # why claims cannot be served here


class Troubles(Struct, frozen=True):
    """Why something cannot be done at the moment, in words; empty where it can."""

    config: str = ""  # why the file on disk is not the configuration in use
    devices: str = ""  # why the newest devices could not be taken into the ledger
    ledger: str = ""  # why the ledger cannot be written
    cdi: str = ""  # why CDI files that are needed cannot be written
    vendor: str = ""  # the vendor's own software that runs here although this agent uses its names


class AgentState(Struct, frozen=True):
    """One agent at one moment: what readiness, the status document and the gauges are made of."""

    config: Config
    ledger: Ledger
    snapshot: Snapshot
    servers: tuple[ServerState, ...]  # of the DevicePlugin side, one for each resource
    claims: ClaimsState
    troubles: Troubles
    competing: Mapping[str, str]  # resource -> a sentence that another plugin serves it, too
    merge_seconds: float  # seconds for which the start-up merge waits for kubelet at most
    nvml_problem: str | None = None  # why NVML does not answer, "" while it does; None where nothing needs it


def not_ready(state: AgentState) -> list[str]:
    """Return the reasons; empty if kubelet has every resource registered and listens, and grants are durable."""
    troubles, claims = state.troubles, state.claims
    devices = f"{troubles.devices}. It is tried again; the log says more" if troubles.devices else ""
    if troubles.vendor and not state.servers:
        return [f"nothing is served: {troubles.vendor}"]
    reasons = [] if state.snapshot.complete else ["the first enumeration of devices has not ended"]
    if troubles.vendor:
        reasons.append(troubles.vendor)
    if not reasons and not state.ledger.node.merged:
        why = devices or troubles.ledger or f"kubelet is asked, for {state.merge_seconds:g} s at most"
        reasons.append(
            f"nothing is granted before the ledger has been compared with what kubelet and CDI files say: {why}"
        )
    elif devices:
        reasons.append(f"devices: {devices}")
    if troubles.ledger and not any(troubles.ledger in reason for reason in reasons):
        reasons.append(f"ledger: {troubles.ledger}")
    if troubles.cdi:
        reasons.append(f"CDI: {troubles.cdi}")
    if not state.servers:
        reasons.append("no resource is served yet")
    reasons += [
        f"{server.resource}: {server.phase}{f' ({server.error})' if server.error else ''}"
        for server in state.servers
        if not server.registered
    ]
    reasons += [
        f"{server.resource}: {server.left_out} ids are not offered, because kubelet takes lists of 4 MiB: configure "
        "fewer replicas, shorter ids, or several resources"
        for server in state.servers
        if server.left_out
    ]
    reasons += [f"{resource} is not given out: {why}" for resource, why in not_given(state.snapshot.devices).items()]
    reasons += [found for server in state.servers if (found := state.competing.get(server.resource))]
    if claims.wanted and not claims.ready:
        reasons.append(f"claims: {claims.waits_for}")
    elif claims.records_error or claims.stranded:
        reasons.append(f"claims: {claims.records_error or claims.stranded}")
    return reasons
