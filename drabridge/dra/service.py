"""NodePrepareResources and NodeUnprepareResources, v1 and v1beta1 from one implementation.

Every claim of a request gets an entry in the answer, with devices or with an error; kubelet treats a missing one as
"skipped" and fails the pod. The text of an error ends up in an event of the pod: it is the user interface.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from types import ModuleType
from typing import Any, Protocol

import grpc

from drabridge.dra.facts import Observer, Requested
from drabridge.dra.records import PreparedDevice
from drabridge.errors import DrabridgeError
from drabridge.ledger.model import ClaimRef
from drabridge.wire import dra_v1_pb2, dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc

log = logging.getLogger(__name__)

ERROR_CHARS = 900  # an Event's message holds 1024; kubelet puts about 100 in front


class Claims(Protocol):
    """Who does the work."""

    async def prepare(self, claim: ClaimRef) -> tuple[PreparedDevice, ...]: ...

    async def unprepare(self, claim: ClaimRef) -> None: ...


class ClaimService:
    """The implementation behind both versions; ``wire`` is the generated module of one of them."""

    def __init__(self, claims: Claims, observer: Observer) -> None:
        self._claims = claims
        self._observer = observer

    async def prepare(self, request: Any, wire: ModuleType) -> Any:
        response = wire.NodePrepareResourcesResponse()

        async def one(claim: ClaimRef) -> None:
            entry = response.claims[claim.uid]
            devices, entry.error = await _answer(self._claims.prepare(claim), claim, "prepare")
            entry.devices.extend(_device(wire, device) for device in devices or ())

        await self._each("NodePrepareResources", request, one)
        return response

    async def unprepare(self, request: Any, wire: ModuleType) -> Any:
        response = wire.NodeUnprepareResourcesResponse()

        async def one(claim: ClaimRef) -> None:
            entry = response.claims[claim.uid]  # touching it makes the empty entry that means success
            _, entry.error = await _answer(self._claims.unprepare(claim), claim, "unprepare")

        await self._each("NodeUnprepareResources", request, one)
        return response

    async def _each(self, method: str, request: Any, one: Callable[[ClaimRef], Awaitable[None]]) -> None:
        """All claims at once: one that waits does not make the others late."""
        started, code = time.monotonic(), "CANCELLED"
        try:
            claims = {claim.uid: ClaimRef(claim.uid, claim.namespace, claim.name) for claim in request.claims}
            await asyncio.gather(*(one(claim) for claim in claims.values()))
            code = "OK"
        finally:
            self._observer(Requested(method, code, time.monotonic() - started))


async def _answer(work: Awaitable[Any], claim: ClaimRef, method: str) -> tuple[Any, str]:
    """``(result, "")`` or ``(None, what to tell the person)``; nothing that a claim can do fails the whole call."""
    facts = {"claim": claim.uid, "namespace": claim.namespace, "claim_name": claim.name}
    try:
        return await work, ""
    except DrabridgeError as error:
        log.warning("%s failed", method, extra={**facts, "error": str(error)})
        return None, _shorten(str(error))
    except Exception as error:
        log.exception("%s failed unexpectedly", method, extra=facts)
        return None, _shorten(f"the agent failed ({type(error).__name__}); its log has the details")


def _shorten(text: str) -> str:
    return text if len(text) <= ERROR_CHARS else f"{text[: ERROR_CHARS - 3]}..."


def _device(wire: ModuleType, device: PreparedDevice) -> Any:
    message = wire.Device(
        request_names=[device.base_request],
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=list(_once(device.cdi_ids)),
    )
    if device.share_id and wire is dra_v1_pb2:  # v1beta1 has no such field
        message.share_id = device.share_id
    return message


def _once(ids: Sequence[str]) -> Sequence[str]:
    return tuple(dict.fromkeys(ids))


_Context = grpc.aio.ServicerContext[Any, Any]


class DraV1(dra_v1_pb2_grpc.DRAPluginServicer):
    """``k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin``, kubelet 1.34 and later."""

    def __init__(self, service: ClaimService) -> None:
        self._service = service

    async def NodePrepareResources(
        self, request: dra_v1_pb2.NodePrepareResourcesRequest, context: _Context
    ) -> dra_v1_pb2.NodePrepareResourcesResponse:
        answer: dra_v1_pb2.NodePrepareResourcesResponse = await self._service.prepare(request, dra_v1_pb2)
        return answer

    async def NodeUnprepareResources(
        self, request: dra_v1_pb2.NodeUnprepareResourcesRequest, context: _Context
    ) -> dra_v1_pb2.NodeUnprepareResourcesResponse:
        answer: dra_v1_pb2.NodeUnprepareResourcesResponse = await self._service.unprepare(request, dra_v1_pb2)
        return answer


class DraV1Beta1(dra_v1beta1_pb2_grpc.DRAPluginServicer):
    """``k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin``, kubelet 1.32 and later."""

    def __init__(self, service: ClaimService) -> None:
        self._service = service

    async def NodePrepareResources(
        self, request: dra_v1beta1_pb2.NodePrepareResourcesRequest, context: _Context
    ) -> dra_v1beta1_pb2.NodePrepareResourcesResponse:
        answer: dra_v1beta1_pb2.NodePrepareResourcesResponse = await self._service.prepare(request, dra_v1beta1_pb2)
        return answer

    async def NodeUnprepareResources(
        self, request: dra_v1beta1_pb2.NodeUnprepareResourcesRequest, context: _Context
    ) -> dra_v1beta1_pb2.NodeUnprepareResourcesResponse:
        answer: dra_v1beta1_pb2.NodeUnprepareResourcesResponse = await self._service.unprepare(request, dra_v1beta1_pb2)
        return answer
