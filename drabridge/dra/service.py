"""Answer NodePrepareResources and NodeUnprepareResources, for every version of the DRAPlugin service.

Every claim of a request gets an entry in the answer, with devices or with an error; kubelet takes a missing one for
"skipped" and fails the pod. The text of an error ends up in an event of the pod: it is the user interface.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import grpc

from drabridge.dra.observer import Observer, Requested
from drabridge.dra.records import PreparedDevice
from drabridge.errors import DrabridgeError
from drabridge.ledger.entries import ClaimRef

if TYPE_CHECKING:
    from drabridge.dra.prepare import Preparer

log = logging.getLogger(__name__)

ERROR_CHARS = 900  # an Event's message has at most 1024; kubelet puts about 100 in front

_Context = grpc.aio.ServicerContext[Any, Any]


class ClaimServicer:
    """One version of ``k8s.io.kubelet.pkg.apis.dra.<version>.DRAPlugin``."""

    def __init__(self, preparer: Preparer, observer: Observer, messages: ModuleType) -> None:
        """``messages``: the generated module of this version."""
        self._preparer = preparer
        self._observer = observer
        self._messages = messages

    async def NodePrepareResources(self, request: Any, context: _Context) -> Any:
        response = self._messages.NodePrepareResourcesResponse()

        async def prepare(claim: ClaimRef) -> None:
            entry = response.claims[claim.uid]
            devices, entry.error = await _result_or_error(self._preparer.prepare(claim), claim, "prepare")
            entry.devices.extend(self._device(device) for device in devices or ())

        await self._for_each_claim("NodePrepareResources", request, prepare)
        return response

    async def NodeUnprepareResources(self, request: Any, context: _Context) -> Any:
        response = self._messages.NodeUnprepareResourcesResponse()

        async def unprepare(claim: ClaimRef) -> None:
            entry = response.claims[claim.uid]  # the lookup creates the empty entry that means success
            _, entry.error = await _result_or_error(self._preparer.unprepare(claim), claim, "unprepare")

        await self._for_each_claim("NodeUnprepareResources", request, unprepare)
        return response

    async def _for_each_claim(self, method: str, request: Any, handle: Callable[[ClaimRef], Awaitable[None]]) -> None:
        """Handle all claims at once, so that one that waits does not delay the others."""
        started, code = time.monotonic(), "CANCELLED"
        try:
            claims = {claim.uid: ClaimRef(claim.uid, claim.namespace, claim.name) for claim in request.claims}
            await asyncio.gather(*(handle(claim) for claim in claims.values()))
            code = "OK"
        finally:
            self._observer(Requested(method, code, time.monotonic() - started))

    def _device(self, device: PreparedDevice) -> Any:
        message = self._messages.Device(
            request_names=[device.base_request],
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=list(dict.fromkeys(device.cdi_ids)),
        )
        if device.share_id and "share_id" in message.DESCRIPTOR.fields_by_name:  # v1beta1 has no such field
            message.share_id = device.share_id
        return message


async def _result_or_error(work: Awaitable[Any], claim: ClaimRef, method: str) -> tuple[Any, str]:
    """Return ``(result, "")`` or ``(None, text for a person)``: one claim never fails the whole call."""
    fields = {"claim": claim.uid, "namespace": claim.namespace, "claim_name": claim.name}
    try:
        return await work, ""
    except DrabridgeError as error:
        log.warning("%s failed", method, extra={**fields, "reason": str(error)})
        return None, _shorten(str(error))
    except Exception as error:
        log.exception("%s failed unexpectedly", method, extra=fields)
        return None, _shorten(f"the agent failed ({type(error).__name__}); its log has the details")


def _shorten(text: str) -> str:
    return text if len(text) <= ERROR_CHARS else f"{text[: ERROR_CHARS - 3]}..."
