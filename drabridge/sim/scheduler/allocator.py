"""Allocate devices of one node to the requests of some claims: first fit with backtracking."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from drabridge.sim.apiserver.objects import timestamp
from drabridge.sim.apiserver.quantity import Quantity
from drabridge.sim.apiserver.status import JSON
from drabridge.sim.releases import Release
from drabridge.sim.scheduler.cel import Selectors
from drabridge.sim.scheduler.pools import Device, DeviceId, Pool, node_term
from drabridge.sim.scheduler.taints import blocking

MAX_RESULTS = 32
"""AllocationResultsMaxSize (resource/v1 types.go)."""

MAX_TRIES = 50_000
"""Devices looked at per node and pod; stands for the scheduler's ten seconds (DRASchedulerFilterTimeout)."""


class UnsatisfiableError(Exception):
    """No allocation on this node; the text says why in a few words."""


@dataclass(frozen=True, slots=True)
class InUse:
    """Everything that claims hold already: whole devices, and amounts of shared ones."""

    devices: frozenset[DeviceId] = frozenset()
    capacity: Mapping[DeviceId, Mapping[str, Quantity]] = field(default_factory=dict)

    @classmethod
    def of(cls, claims: Iterable[JSON]) -> InUse:
        """Add up stored claims. A device with admin access is not held."""
        devices: set[DeviceId] = set()
        capacity: dict[DeviceId, dict[str, Quantity]] = {}
        for claim in claims:
            for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", []):
                if result.get("adminAccess"):
                    continue
                key = (result["driver"], result["pool"], result["device"])
                devices.add(key)
                if "shareID" in result:
                    used = capacity.setdefault(key, {})
                    for name, amount in result.get("consumedCapacity", {}).items():
                        used[name] = used.get(name, Quantity(Fraction(0))) + Quantity.parse(amount)
        return cls(frozenset(devices), capacity)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One way to satisfy one request: the request itself, or one of its ``firstAvailable`` alternatives."""

    claim: int
    request: str
    """``name`` or ``name/sub``, as in the results."""
    spec: JSON
    device_class: JSON

    @property
    def base(self) -> str:
        return self.request.partition("/")[0]

    @property
    def admin(self) -> bool:
        return bool(self.spec.get("adminAccess"))


@dataclass(frozen=True, slots=True)
class Pick:
    """One device chosen for one request."""

    wanted: Wanted
    device: Device
    consumed: Mapping[str, Quantity] | None = None

    def result(self) -> JSON:
        """Return the entry of ``allocation.devices.results``."""
        device, spec = self.device, self.wanted.spec
        out: JSON = {
            "request": self.wanted.request,
            "driver": device.driver,
            "pool": device.pool,
            "device": device.name,
        }
        if self.wanted.admin:
            out["adminAccess"] = True
        if spec.get("tolerations"):
            out["tolerations"] = spec["tolerations"]
        for name in ("bindingConditions", "bindingFailureConditions"):
            if device.spec.get(name):
                out[name] = device.spec[name]
        if self.consumed is not None:
            out["shareID"] = str(uuid.uuid4())
            out["consumedCapacity"] = {name: str(amount) for name, amount in self.consumed.items()}
        return out


def check_classes(claims: Sequence[JSON], classes: Mapping[str, JSON]) -> None:
    """Check the classes. Raises UnsatisfiableError for a request, or an alternative, whose class does not exist."""
    for claim in claims:
        for request in _requests(claim):
            for name, spec in _named(request):
                if (wanted := spec["deviceClassName"]) not in classes:
                    raise UnsatisfiableError(f"request {name}: device class {wanted} does not exist")


def allocate(
    claims: Sequence[JSON], pools: Sequence[Pool], classes: Mapping[str, JSON], in_use: InUse, selectors: Selectors
) -> list[list[Pick]]:
    """Return picks for each claim, in order. Every class exists.

    Raises UnsatisfiableError, or SelectorError for a broken expression.
    """
    steps = [
        list(_alternatives(number, request, classes))
        for number, claim in enumerate(claims)
        for request in _requests(claim)
    ]
    search = _Search(claims, pools, in_use, selectors, steps)
    if not search.solve(0):
        raise UnsatisfiableError("cannot allocate all claims")
    return [[pick for pick in search.picks if pick.wanted.claim == number] for number in range(len(claims))]


def _requests(claim: JSON) -> list[JSON]:
    return list(claim["spec"].get("devices", {}).get("requests", []))


def _named(request: JSON) -> list[tuple[str, JSON]]:
    """Return the alternatives that may serve a request, each with its name in the results."""
    subs = [(f"{request['name']}/{sub['name']}", sub) for sub in request.get("firstAvailable", [])]
    return subs or [(request["name"], request["exactly"])]


def _alternatives(number: int, request: JSON, classes: Mapping[str, JSON]) -> Iterator[Wanted]:
    for name, spec in _named(request):
        yield Wanted(number, name, spec, classes[spec["deviceClassName"]])


class _Search:
    """Depth first over requests, alternatives and devices; ``picks`` is the path taken so far."""

    def __init__(
        self,
        claims: Sequence[JSON],
        pools: Sequence[Pool],
        in_use: InUse,
        selectors: Selectors,
        steps: Sequence[Sequence[Wanted]],
    ) -> None:
        self.picks: list[Pick] = []
        self._claims = claims
        self._pools = pools
        self._in_use = in_use
        self._selectors = selectors
        self._steps = steps
        self._tries = 0
        self._pool_of = {(pool.driver, pool.name): pool for pool in pools}

    def solve(self, step: int) -> bool:
        if step == len(self._steps):
            return True
        for wanted in self._steps[step]:
            found = self._candidates(wanted)
            if wanted.spec.get("allocationMode") == "All":
                done = self._all(wanted, found, step)
            else:
                done = self._some(wanted, found, wanted.spec["count"], step)
            if done:
                return True
        return False

    def _candidates(self, wanted: Wanted) -> list[Device]:
        """Devices that the class and the request select, in order of preference."""
        expressions = [
            one["cel"]["expression"]
            for one in [*wanted.device_class["spec"].get("selectors", []), *wanted.spec.get("selectors", [])]
        ]
        if wanted.spec.get("allocationMode") == "All":
            for pool in self._pools:
                if not pool.usable:
                    state = pool.problem or "is currently being updated"
                    raise UnsatisfiableError(
                        f"request {wanted.request} asks for all devices, but pool {pool.name} {state}"
                    )
        found = [
            device
            for pool in self._pools
            if pool.usable
            for device in pool.devices
            if all(self._selectors.match(expression, device) for expression in expressions)
        ]
        if wanted.spec.get("allocationMode") == "All":
            return found
        # Devices that can never be picked (held as a whole, tainted) would only make the search longer.
        return [device for device in found if self._conceivable(wanted, device)]

    def _conceivable(self, wanted: Wanted, device: Device) -> bool:
        held = device.id in self._in_use.devices and not device.shareable and not wanted.admin
        return not held and blocking(device.spec.get("taints", []), wanted.spec.get("tolerations", [])) is None

    def _all(self, wanted: Wanted, found: Sequence[Device], step: int) -> bool:
        before = len(self.picks)
        for device in found:
            pick = self._try(wanted, device)
            if pick is None:
                break
            self.picks.append(pick)
        if found and len(self.picks) - before == len(found) and self.solve(step + 1):
            return True
        del self.picks[before:]
        return False

    def _some(self, wanted: Wanted, found: Sequence[Device], count: int, step: int) -> bool:
        if count == 0:
            return self.solve(step + 1)
        room = MAX_RESULTS - sum(pick.wanted.claim == wanted.claim for pick in self.picks)
        if count > room or (len(found) < count and not any(device.shareable for device in found)):
            return False
        for index, device in enumerate(found):
            pick = self._try(wanted, device)
            if pick is None:
                continue
            self.picks.append(pick)
            # Only later devices: another order is the same solution. A shared device may be picked again.
            if self._some(wanted, found[index if device.shareable else index + 1 :], count - 1, step):
                return True
            self.picks.pop()
        return False

    def _try(self, wanted: Wanted, device: Device) -> Pick | None:
        """Return the pick, when nothing forbids it: results left, taints, holders, capacity, counters, constraints."""
        self._tries += 1
        if self._tries > MAX_TRIES:
            raise UnsatisfiableError("timed out trying to allocate devices")
        if sum(pick.wanted.claim == wanted.claim for pick in self.picks) >= MAX_RESULTS:
            return None
        if blocking(device.spec.get("taints", []), wanted.spec.get("tolerations", [])) is not None:
            return None
        pick = self._share(wanted, device) if device.shareable else self._whole(wanted, device)
        if pick is None or not self._constraints_allow(pick):
            return None
        if not wanted.admin and not self._counters_allow(device):
            return None
        return pick

    def _whole(self, wanted: Wanted, device: Device) -> Pick | None:
        requests = wanted.spec.get("capacity", {}).get("requests", {})
        if not _covers(device.spec.get("capacity", {}), requests):
            return None
        mine = any(pick.device.id == device.id and pick.wanted.request == wanted.request for pick in self.picks)
        taken = device.id in self._in_use.devices or any(
            pick.device.id == device.id and not pick.wanted.admin for pick in self.picks
        )
        return None if mine or (taken and not wanted.admin) else Pick(wanted, device)

    def _share(self, wanted: Wanted, device: Device) -> Pick | None:
        capacities = device.spec.get("capacity", {})
        amounts = _consumed(capacities, wanted.spec.get("capacity", {}).get("requests", {}))
        if amounts is None:
            return None
        used = dict(self._in_use.capacity.get(device.id, {}))
        for pick in self.picks:
            if pick.device.id == device.id and pick.consumed is not None and not pick.wanted.admin:
                for name, amount in pick.consumed.items():
                    used[name] = used.get(name, Quantity(Fraction(0))) + amount
        if not wanted.admin and not _fits(capacities, used, amounts):
            return None
        return Pick(wanted, device, amounts)

    def _counters_allow(self, device: Device) -> bool:
        """Whether the pool's shared counters allow the device.

        The sum over every device in use, this one included, stays within the set.
        """
        if not device.spec.get("consumesCounters"):
            return True
        pool = self._pool_of[device.driver, device.pool]
        held = self._in_use.devices | {pick.device.id for pick in self.picks if not pick.wanted.admin}
        using = [one for one in pool.devices if one.id in held and one.id != device.id]
        for group in device.spec["consumesCounters"]:
            available = pool.counters.get(group["counterSet"], {})
            for name, value in group["counters"].items():
                total = Quantity.parse(value["value"]).value + sum(
                    _counter(one, group["counterSet"], name).value for one in using
                )
                if name not in available or total > available[name].value:
                    return False
        return True

    def _constraints_allow(self, pick: Pick) -> bool:
        claim = self._claims[pick.wanted.claim]
        for constraint in claim["spec"].get("devices", {}).get("constraints", []):
            names = constraint.get("requests", [])
            if names and pick.wanted.request not in names and pick.wanted.base not in names:
                continue
            attribute = constraint["matchAttribute"]
            value = pick.device.attribute(attribute)
            if value is None:
                return False
            others = [
                one.device.attribute(attribute)
                for one in self.picks
                if one.wanted.claim == pick.wanted.claim
                and (not names or one.wanted.request in names or one.wanted.base in names)
            ]
            if any(other != value for other in others):
                return False
        return True


def _counter(device: Device, group: str, name: str) -> Quantity:
    for one in device.spec.get("consumesCounters", []):
        if one["counterSet"] == group and name in one["counters"]:
            return Quantity.parse(one["counters"][name]["value"])
    return Quantity(Fraction(0))


# --- consumable capacity (KEP-5075): what one share of a device takes, rounded by its request policy ------------------


def _consumed(capacities: Mapping[str, JSON], requests: Mapping[str, str]) -> dict[str, Quantity] | None:
    """Return how much of each capacity a share takes; None if the device cannot serve the requests at all.

    Without a request, that is the default of the capacity's policy; without a policy, all of the capacity.
    """
    if not requests.keys() <= capacities.keys():
        return None
    taken: dict[str, Quantity] = {}
    for name, capacity in capacities.items():
        whole = Quantity.parse(capacity["value"])
        amount = _rounded(requests.get(name), capacity.get("requestPolicy"), whole)
        if amount is None or amount > whole:
            return None
        taken[name] = amount
    return taken


def _covers(capacities: Mapping[str, JSON], requests: Mapping[str, str]) -> bool:
    """Whether a device that is given as a whole is large enough."""
    return all(
        name in capacities and Quantity.parse(capacities[name]["value"]) >= Quantity.parse(amount)
        for name, amount in requests.items()
    )


def _fits(capacities: Mapping[str, JSON], used: Mapping[str, Quantity], wanted: Mapping[str, Quantity]) -> bool:
    """Whether what is used and what is wanted stay within every capacity together."""
    zero = Quantity(Fraction(0))
    return all(
        used.get(name, zero) + amount <= Quantity.parse(capacities[name]["value"]) for name, amount in wanted.items()
    )


def _rounded(asked: str | None, policy: JSON | None, whole: Quantity) -> Quantity | None:
    if policy is None or "default" not in policy:
        return Quantity.parse(asked) if asked is not None else whole
    wanted = Quantity.parse(asked if asked is not None else policy["default"])
    if "validValues" in policy:
        larger = [value for value in map(Quantity.parse, policy["validValues"]) if value >= wanted]
        return min(larger, default=None)
    if "validRange" not in policy:
        return wanted
    span = policy["validRange"]
    low = Quantity.parse(span["min"])
    if wanted <= low:
        return low
    if "step" in span:
        step = Quantity.parse(span["step"]).value
        steps = -((low.value - wanted.value) // step)
        wanted = Quantity(low.value + steps * step, low.binary)
    if "max" in span and wanted > Quantity.parse(span["max"]):
        return None
    return wanted


# --- from picked devices to claim.status.allocation -------------------------------------------------------------------


def allocation(claim: JSON, picks: Sequence[Pick], node: str, release: Release, *, dated: bool) -> JSON:
    """Return the allocation as the claim's status has it; ``dated`` with the time that binding counts from."""
    devices: JSON = {"results": [pick.result() for pick in picks]}
    config = [*_from_classes(picks), *_from_claim(claim, picks, release)]
    if release.configurations_for_all_name_none:
        config = [_for_all(one, claim, picks) for one in config]
    if config:
        devices["config"] = config
    out: JSON = {"devices": devices} | ({"allocationTimestamp": timestamp()} if dated else {})
    selector = _node_selector(picks, node)
    return out | ({"nodeSelector": selector} if selector is not None else {})


def _from_classes(picks: Sequence[Pick]) -> list[JSON]:
    """Return the configurations of each class, once for all requests of the class."""
    requests: dict[str, dict[str, None]] = {}
    configs: dict[str, list[JSON]] = {}
    for pick in picks:
        name = pick.wanted.device_class["metadata"]["name"]
        requests.setdefault(name, {})[pick.wanted.request] = None
        configs[name] = pick.wanted.device_class["spec"].get("config", [])
    return [
        {"source": "FromClass", "requests": list(requests[name]), "opaque": one["opaque"]}
        for name, listed in configs.items()
        for one in listed
    ]


def _from_claim(claim: JSON, picks: Sequence[Pick], release: Release) -> list[JSON]:
    """Return the claim's configurations, except those for alternatives that were not taken."""
    taken = {pick.wanted.base: pick.wanted.request for pick in picks}
    out: list[JSON] = []
    for one in claim["spec"].get("devices", {}).get("config", []):
        names = one.get("requests", [])
        config = {"source": "FromClaim", **({"requests": names} if names else {}), "opaque": one["opaque"]}
        uses = [request for request in _requests(claim) if {request["name"], taken.get(request["name"])} & set(names)]
        times = len(uses) if release.configurations_repeat else bool(uses)
        out += [config] * (times if names else 1)
    return out


def _for_all(config: JSON, claim: JSON, picks: Sequence[Pick]) -> JSON:
    """Return the configuration without its requests, if it is for every request of the claim."""
    named = set(config.get("requests", []))
    taken = {pick.wanted.base: pick.wanted.request for pick in picks}
    if not all({one["name"], taken.get(one["name"])} & named for one in _requests(claim)):
        return config
    return {name: value for name, value in config.items() if name != "requests"}


def _node_selector(picks: Sequence[Pick], node: str) -> JSON | None:
    """Return one node when a device is local to it or binds to it, else the slices' own selectors.

    None without any.
    """
    selectors = [pick.device.node_selector for pick in picks if pick.device.node_selector is not None]
    if any(pick.device.spec.get("bindsToNode") for pick in picks) or node_term(node) in selectors:
        return node_term(node)
    if not selectors:
        return None
    expressions = [
        term for selector in selectors for term in selector["nodeSelectorTerms"][0].get("matchExpressions", [])
    ]
    return {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
