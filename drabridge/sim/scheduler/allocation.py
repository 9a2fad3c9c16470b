"""From picked devices to ``claim.status.allocation``: results, configuration with its source, node selector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drabridge.sim.apiserver.objects import timestamp
from drabridge.sim.scheduler.allocator import Pick
from drabridge.sim.scheduler.pools import node_term

JSON = dict[str, Any]


def allocation(claim: JSON, picks: Sequence[Pick], node: str) -> JSON:
    """The allocation as 1.36.2 writes it."""
    devices: JSON = {"results": [pick.result() for pick in picks]}
    config = [*_from_classes(picks), *_from_claim(claim, picks)]
    if config:
        devices["config"] = config
    out: JSON = {"devices": devices, "allocationTimestamp": timestamp()}
    selector = _node_selector(picks, node)
    return out | ({"nodeSelector": selector} if selector is not None else {})


def _from_classes(picks: Sequence[Pick]) -> list[JSON]:
    """Configuration of each request's class, for that request alone."""
    out: list[JSON] = []
    for request, wanted in {pick.wanted.request: pick.wanted for pick in picks}.items():
        configs = wanted.device_class["spec"].get("config", [])
        out += [{"source": "FromClass", "requests": [request], "opaque": one["opaque"]} for one in configs]
    return out


def _from_claim(claim: JSON, picks: Sequence[Pick]) -> list[JSON]:
    """The claim's configuration, except what is for alternatives that were not taken."""
    used = {name for pick in picks for name in (pick.wanted.request, pick.wanted.base)}
    out: list[JSON] = []
    for one in claim["spec"].get("devices", {}).get("config", []):
        names = one.get("requests", [])
        if not names or used & set(names):
            out.append({"source": "FromClaim", **({"requests": names} if names else {}), "opaque": one["opaque"]})
    return out


def _node_selector(picks: Sequence[Pick], node: str) -> JSON | None:
    """One node when a device is local to it or binds to it, else the slices' own selectors; None without any."""
    selectors = [pick.device.node_selector for pick in picks if pick.device.node_selector is not None]
    if any(pick.device.spec.get("bindsToNode") for pick in picks) or node_term(node) in selectors:
        return node_term(node)
    if not selectors:
        return None
    expressions = [
        term for selector in selectors for term in selector["nodeSelectorTerms"][0].get("matchExpressions", [])
    ]
    return {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
