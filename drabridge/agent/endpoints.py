"""What the agent shows: liveness, readiness, metrics; over a unix socket, for the operator, status and lanes too.

The page for people is on the unix socket and, unless asked for elsewhere, only on loopback addresses: it names pods.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
from collections.abc import Iterator
from http import HTTPStatus

from deviceplugin import ServerState
from drabridge import __version__
from drabridge.agent.drain import Drain
from drabridge.agent.manual_release import resolve
from drabridge.agent.runtime import Runtime
from drabridge.agent.standby import standbys
from drabridge.dra.lifecycle import ClaimSide
from drabridge.errors import ConfigError, DrabridgeError, HostError
from drabridge.evidence.kubelet import LIST_SECONDS
from drabridge.inventory.model import Presence
from drabridge.lanes.desired import Wishes
from drabridge.ledger.model import Lane, Owner
from drabridge.status import page
from drabridge.status.document import Document, Endpoint, allocation_labels, document
from drabridge.system.http import Handler, HttpServer, Request, Response
from drabridge.system.port import Port
from drabridge.system.untrusted import unreadable
from drabridge.telemetry.metrics import Sample

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 30.0  # the loop's own tick is every few seconds; ten times late means it is stuck


class Pages:
    """Reads the agent's state; changes nothing but by requests for lanes, releases and draining over the socket."""

    def __init__(self, runtime: Runtime, claims: ClaimSide, wishes: Wishes, port: Port) -> None:
        """``port`` may be bound already, by the standby that this agent was, or by then be another agent's yet."""
        self._runtime = runtime
        self._claims = claims
        self._wishes = wishes
        self._port = port
        self._draining = Drain(runtime, claims, wishes)
        self._control: HttpServer | None = None

    async def open(self) -> None:
        """Bind the control socket, which lies in our locked directory, and serve on it and on the port."""
        private: dict[tuple[str, str], Handler] = {
            ("GET", "/"): self._page,
            ("GET", "/status"): self._status,
            ("POST", "/lanes"): self._lanes,
            ("POST", "/release"): self._release,
            ("GET", "/drain"): self._drain,
            ("POST", "/drain"): self._drain,
        }
        self._control = HttpServer({**self._public(), **private})
        await self._control.listen_unix(self._runtime.paths.control_socket)
        self._serve_port()

    async def wait_for_port(self) -> None:
        """Serve on the port as soon as the agent before us has let it go."""
        await self._port.bind_when_free()
        self._serve_port()

    def _public(self) -> dict[tuple[str, str], Handler]:
        return {
            ("GET", "/healthz"): self._healthz,
            ("GET", "/readyz"): self._readyz,
            ("GET", "/metrics"): self._metrics,
        }

    def _serve_port(self) -> None:
        if not self._port.address:
            return
        pages: dict[str, Handler] = {"all": self._page, "local": self._local_page}
        page_handler = pages.get(self._runtime.options.page)
        routes = self._public()
        self._port.serve(routes if page_handler is None else {**routes, ("GET", "/"): page_handler})
        log.info("pages", extra={"address": self._port.address, "control": str(self._runtime.paths.control_socket)})

    async def renew(self) -> None:
        """Without its socket an agent is deaf to the operator: one that somebody removed is made again."""
        path = self._runtime.paths.control_socket
        try:
            if self._control is not None and await self._control.renew_unix(path):
                log.warning("the control socket was removed by somebody else; it is there again", extra={"path": path})
        except OSError as error:
            log.error("there is no control socket", extra={"path": path, "reason": str(error)})

    async def close(self) -> None:
        """Hang up; the port is free and our control socket is gone on return."""
        await self._port.close()
        if self._control is not None:
            await self._control.close()

    # --- readiness --------------------------------------------------------------------------------------------------

    def not_ready(self) -> list[str]:
        """Why not, in words; empty when ready: every resource registered and listened to, grants durable."""
        runtime = self._runtime
        reasons = [] if runtime.inventory.current.complete else ["the first enumeration of devices has not ended"]
        unwell = runtime.ledger_service.health.error
        trouble = f"{runtime.devices_error}. It is tried again; the log says more" if runtime.devices_error else ""
        if not reasons and not runtime.ledger_service.ledger.node.merged:
            why = trouble or unwell or f"kubelet is asked, for {LIST_SECONDS:g} s at most"
            reasons.append(
                f"nothing is granted before the ledger has been compared with what kubelet and CDI files say: {why}"
            )
        elif trouble:
            reasons.append(f"devices: {trouble}")
        if unwell and not any(unwell in reason for reason in reasons):
            reasons.append(f"ledger: {unwell}")
        if runtime.cdi_error:
            reasons.append(f"CDI: {runtime.cdi_error}")
        states = runtime.legacy.states
        if not states:
            reasons.append("no resource is served yet")
        reasons += [
            f"{state.resource}: {state.phase}{f' ({state.error})' if state.error else ''}"
            for state in states
            if not state.registered
        ]
        reasons += [rival for state in states if (rival := runtime.rivals.get(state.resource))]
        state = self._claims.state
        if self._claims.wanted and not (state and state.ready):
            reasons.append(f"claims: {self._claim_trouble()}")
        elif error := self._claims.records_error:
            reasons.append(f"claims: {error}")
        elif stranded := self._claims.stranded:
            reasons.append(f"claims: {stranded}")
        return reasons

    def _claim_trouble(self) -> str:
        """What the DRA side waits for, in words."""
        state = self._claims.state
        if state is None or not state.serving:
            return f"not served yet: {self._claims.error}" if self._claims.error else "not served yet"
        if not state.registration.registered:
            return f"kubelet has not taken the plugin {state.registration.error}".rstrip()
        return state.publisher.error or state.error

    def _no_slices(self) -> str:
        """Why there are none though all is well; empty while there are."""
        if self._runtime.off is not None:
            return self._runtime.off.why
        in_dra = any(entry.lane is Lane.DRA for entry in self._runtime.ledger_service.ledger.entries.values())
        behind = self._claims.state is not None and not self._claims.published  # what there is may be of before
        return "" if in_dra or behind else "no device is in the dra lane"

    def endpoints(self) -> list[Endpoint]:
        """Both sides' connections with kubelet."""
        loop_now = asyncio.get_running_loop().time()
        found = [self._endpoint(state, loop_now) for state in self._runtime.legacy.states]
        state = self._claims.state
        if self._claims.wanted:
            ready = state is not None and state.ready
            error = "" if ready else self._claim_trouble()
            found.append(Endpoint("dra", self._runtime.config.driver, "ready" if ready else "waiting", ready, 0, error))
        elif self._claims.stranded and (off := self._runtime.off):
            found.append(Endpoint("dra", self._runtime.config.driver, "off", False, 0, off.why))
        return found

    def _endpoint(self, state: ServerState, loop_now: float) -> Endpoint:
        since = self._runtime.now() - (loop_now - state.since)  # the server counts on the monotonic clock
        return Endpoint("deviceplugin", state.resource, str(state.phase), state.registered, since, state.error)

    def document(self) -> Document:
        runtime = self._runtime
        notes = [f"configuration on disk is refused: {fault}" for fault in runtime.config_error.splitlines()]
        if runtime.kubelet_evidence.error:
            notes.append(f"kubelet does not tell who holds devices: {runtime.kubelet_evidence.error}")
        if runtime.other_evidence.error:
            notes.append(f"open device nodes cannot be looked for: {runtime.other_evidence.error}")
        if (loaded := runtime.ledger_service.loaded).message:
            notes.append(f"ledger at the last start: {loaded.message}")
            if loaded.hint and self._quarantined():
                notes.append(loaded.hint)
        notes += [*runtime.other_evidence.notes(), *self._wishes.notes()]
        notes += [
            f"a standby waits to take over when this agent ends: {name}" for name in standbys(runtime.paths.state)
        ]
        if not self._claims.stranded and (why := self._no_slices()):
            notes.append(f"claims: no ResourceSlices: {why}")
        if (state := self._claims.state) is not None:
            notes += state.publisher.notes
        if runtime.inventory.status.unexpected:
            notes.append(f"device events: {runtime.inventory.status}")
        return document(
            node=runtime.options.node_name,
            driver=runtime.config.driver,
            version=__version__,
            now=runtime.now(),
            started_at=runtime.started_at,
            ledger=runtime.ledger_service.ledger,
            snapshot=runtime.snapshot,
            policy=runtime.ledger_service.policy,
            endpoints=self.endpoints(),
            not_ready=self.not_ready(),
            refusals=tuple(runtime.sinks.refusals),
            notes=notes,
            wanted={resource.name: self._wishes.describe(resource) for resource in runtime.config.resources},
            published=self._claims.published,
        )

    # --- handlers ---------------------------------------------------------------------------------------------------

    def _healthz(self, _: Request) -> Response:
        late = asyncio.get_running_loop().time() - self._runtime.beat
        if late > HEARTBEAT_SECONDS:
            return Response(f"stuck: no heartbeat for {late:.0f} s\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return Response("ok\n")

    def _readyz(self, _: Request) -> Response:
        reasons = self.not_ready()
        if reasons:
            return Response("".join(f"not ready: {reason}\n" for reason in reasons), HTTPStatus.SERVICE_UNAVAILABLE)
        return Response("ok\n")

    def _metrics(self, _: Request) -> Response:
        return Response(self._runtime.metrics.exposition(), content_type="text/plain; version=0.0.4; charset=utf-8")

    def _status(self, _: Request) -> Response:
        return Response.json(self.document())

    def _page(self, request: Request) -> Response:
        body = page.render(self.document(), refresh=request.query.get("refresh") != "off")
        return Response(body, content_type="text/html; charset=utf-8", headers=page.HEADERS)

    def _local_page(self, request: Request) -> Response:
        """Only on a loopback address: for who sits at this machine, or came into the pod by ``kubectl port-forward``.

        And only by a name of this machine: a web site whose name was made to mean 127.0.0.1 (DNS rebinding) must not
        read the page through the operator's browser.
        """
        if not request.loopback:
            listed = " ".join(sorted(path for _, path in self._public()))
            return Response(f"not found; here are: {listed}\n", HTTPStatus.NOT_FOUND)
        if not is_local_name(request.headers.get("host", "")):
            return Response(
                "this page is served to localhost only; --page serves it under any name\n",
                HTTPStatus.MISDIRECTED_REQUEST,
            )
        return self._page(request)

    async def _lanes(self, request: Request) -> Response:
        try:
            return Response.json(await self._wishes.set(request.body))
        except ConfigError as error:
            return Response.json({"error": str(error)}, HTTPStatus.BAD_REQUEST)
        except HostError as error:
            return Response.json({"error": str(error)}, HTTPStatus.CONFLICT)

    async def _release(self, request: Request) -> Response:
        try:
            return Response.json(await resolve(self._runtime, self._claims, request.body))
        except ConfigError as error:
            return Response.json({"error": str(error)}, HTTPStatus.BAD_REQUEST)
        except DrabridgeError as error:
            return Response.json({"error": str(error)}, HTTPStatus.CONFLICT)

    async def _drain(self, request: Request) -> Response:
        try:
            asked = self._draining.request(request.body) if request.body else self._draining.document()
            return Response.json(await asked)
        except ConfigError as error:
            return Response.json({"error": str(error)}, HTTPStatus.BAD_REQUEST)
        except DrabridgeError as error:
            return Response.json({"error": str(error)}, HTTPStatus.CONFLICT)

    def _quarantined(self) -> int:
        return sum(entry.owner is Owner.QUARANTINE for entry in self._runtime.ledger_service.ledger.entries.values())

    # --- metrics ----------------------------------------------------------------------------------------------------

    def samples(self) -> Iterator[Sample]:
        """Every gauge, from the state of this moment."""
        runtime = self._runtime
        ledger, snapshot = runtime.ledger_service.ledger, runtime.snapshot
        counts: dict[tuple[str, tuple[str, ...]], float] = {}

        def add(name: str, *labels: str) -> None:
            counts[name, labels] = counts.get((name, labels), 0) + 1

        for device in snapshot.devices:
            add("devices", device.resource, str(device.presence))
            numa = ",".join(map(str, device.numa_nodes))
            yield "device_info", (device.name, device.id, device.resource, device.pci_bus_id, numa), 1
            yield "device_healthy", (device.name, device.resource), float(device.presence is Presence.PRESENT)
        for entry in ledger.entries.values():
            resource = entry.device.resource
            add("lane_devices", resource, str(entry.lane))
            yield "device_lane", (entry.name, resource, str(entry.lane), str(entry.owner)), 1
            for labels in allocation_labels(entry):
                yield "device_allocation_info", labels, 1
            if entry.hold is not None:
                add("hold_reason", str(entry.hold.because))
        for (name, labels), value in counts.items():
            yield name, labels, value
        for name in (resource.name for resource in runtime.config.resources):
            for lane in (Lane.LEGACY, Lane.DRA):
                if ("lane_devices", (name, str(lane))) not in counts:
                    yield "lane_devices", (name, str(lane)), 0
        for state in runtime.legacy.states:
            yield "registered", ("deviceplugin", state.resource), float(state.registered)
        claims = self._claims.state
        if self._claims.wanted or self._claims.stranded:
            taken = claims is not None and claims.serving and claims.registration.registered
            yield "registered", ("dra", runtime.config.driver), float(taken)
        if self._claims.wanted:
            yield "resourceslices_published", (), float(claims is not None and claims.publisher.published)
        yield "quarantined_devices", (), self._quarantined()
        yield "inventory_collisions", (), len(snapshot.collisions)
        yield "inventory_last_reconcile_timestamp_seconds", (), runtime.sinks.reconciled_at
        yield "standby", (), 0.0
        yield "ledger_healthy", (), float(not runtime.ledger_service.health.error)
        yield "config_last_reload_successful", (), float(not runtime.config_error)
        for kind, count in unreadable().items():
            yield "unreadable_objects", (kind,), count


def is_local_name(host: str) -> bool:
    """Whether the value of a Host header means this machine: ``localhost:9400``, ``127.0.0.1``, ``[::1]:9400``."""
    name = re.sub(r":\d*$", "", host).strip("[]").lower()
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
