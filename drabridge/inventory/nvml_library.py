"""Call functions of libnvidia-ml.so.1 by ctypes. The table ``ANSWERS`` lists them, with the types that each returns.

Names, structures and numbers are those of nvml.h (CUDA 13). A test compares them with NVIDIA's ``nvidia-ml-py``.

To add a call, add a line to ``ANSWERS``, and a structure of nvml.h if the function fills one; then
``library.call("nvmlDeviceGetPowerUsage", handle)`` returns the answer, and ``Gpu.ask`` of ``nvml_worker.py`` does so
for a GPU.
"""

from __future__ import annotations

from ctypes import (
    CDLL,
    Array,
    Structure,
    byref,
    c_char,
    c_char_p,
    c_int,
    c_int64,
    c_ubyte,
    c_uint,
    c_ulonglong,
    c_void_p,
    sizeof,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NOT_FOUND, INSUFFICIENT_SIZE = 6, 7
TIMEOUT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED = 10, 12, 13, 15, 16

TEMPERATURE_GPU = 0
TEMPERATURE_THRESHOLD_SHUTDOWN = 0
UNCORRECTED, VOLATILE = 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t
THROTTLED_BY_HEAT = 0x40  # nvmlClocksEventReasonHwThermalSlowdown
SINGLE_BIT_ECC_EVENT, DOUBLE_BIT_ECC_EVENT, XID_EVENT = 1, 2, 8
ROWS_MAX = 10_000
NOT_AVAILABLE = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE, in place of a process's memory
GPU_INSTANCE_PROFILES = 0x12
RECOVERY_ACTION_FIELD = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION


class NvmlError(Exception):
    """What NVML answered in place of success."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class PciInfo(Structure):
    _fields_ = (
        ("busIdLegacy", c_char * 16), ("domain", c_uint), ("bus", c_uint), ("device", c_uint), ("pciDeviceId", c_uint),
        ("pciSubSystemId", c_uint), ("busId", c_char * 32),
    )  # fmt: skip


class Memory(Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class AddressingMode(Structure):
    _fields_ = (("version", c_uint), ("value", c_uint))

    def __init__(self) -> None:
        super().__init__(version=0x1000008)


class GpuFabricInfo(Structure):
    _fields_ = (("clusterUuid", c_ubyte * 16), ("status", c_uint), ("cliqueId", c_uint), ("state", c_uint))


class FieldValue(Structure):
    """``value`` is a union of 8 bytes; the fields asked for here use its first four, an unsigned int."""

    _fields_ = (
        ("fieldId", c_uint), ("scopeId", c_uint), ("timestamp", c_int64), ("latencyUsec", c_int64),
        ("valueType", c_uint), ("nvmlReturn", c_uint), ("value", c_uint), ("_rest", c_uint),
    )  # fmt: skip


class EventData(Structure):
    _fields_ = (
        ("device", c_void_p), ("eventType", c_ulonglong), ("eventData", c_ulonglong), ("gpuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    )  # fmt: skip


class DeviceAttributes(Structure):
    _fields_ = (
        ("multiprocessorCount", c_uint), ("sharedCopyEngineCount", c_uint), ("sharedDecoderCount", c_uint),
        ("sharedEncoderCount", c_uint), ("sharedJpegCount", c_uint), ("sharedOfaCount", c_uint),
        ("gpuInstanceSliceCount", c_uint), ("computeInstanceSliceCount", c_uint), ("memorySizeMB", c_ulonglong),
    )  # fmt: skip


class GpuInstancePlacement(Structure):
    _fields_ = (("start", c_uint), ("size", c_uint))


class GpuInstanceInfo(Structure):
    _fields_ = (("device", c_void_p), ("id", c_uint), ("profileId", c_uint), ("placement", GpuInstancePlacement))


class GpuInstanceProfileInfo(Structure):
    """``nvmlGpuInstanceProfileInfo_v2_t``."""

    _fields_ = (
        ("version", c_uint), ("id", c_uint), ("isP2pSupported", c_uint), ("sliceCount", c_uint),
        ("instanceCount", c_uint), ("multiprocessorCount", c_uint), ("copyEngineCount", c_uint),
        ("decoderCount", c_uint), ("encoderCount", c_uint), ("jpegCount", c_uint), ("ofaCount", c_uint),
        ("memorySizeMB", c_ulonglong), ("name", c_char * 96),
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__(version=0x2000098)


class ProcessInfo(Structure):
    _fields_ = (
        ("pid", c_uint), ("usedGpuMemory", c_ulonglong), ("gpuInstanceId", c_uint), ("computeInstanceId", c_uint),
    )  # fmt: skip


class ProcessSample(Structure):
    """``nvmlProcessUtilizationSample_t``."""

    _fields_ = (
        ("pid", c_uint), ("timeStamp", c_ulonglong), ("smUtil", c_uint), ("memUtil", c_uint), ("encUtil", c_uint),
        ("decUtil", c_uint),
    )  # fmt: skip


TEXT = (c_char * 96,)
NUMBER = (c_uint,)
LONG = (c_ulonglong,)
HANDLE = (c_void_p,)
ANSWERS: dict[str, tuple[type[Any], ...]] = {
    "nvmlInitWithFlags": (),
    "nvmlSystemGetDriverVersion": TEXT,
    "nvmlSystemGetCudaDriverVersion_v2": (c_int,),
    "nvmlDeviceGetCount_v2": NUMBER,
    "nvmlDeviceGetHandleByIndex_v2": HANDLE,
    # a GPU
    "nvmlDeviceGetUUID": TEXT,
    "nvmlDeviceGetPciInfo_v3": (PciInfo,),
    "nvmlDeviceGetName": TEXT,
    "nvmlDeviceGetMinorNumber": NUMBER,
    "nvmlDeviceGetSerial": TEXT,
    "nvmlDeviceGetMemoryInfo": (Memory,),
    "nvmlDeviceGetCudaComputeCapability": (c_int, c_int),
    "nvmlDeviceGetArchitecture": NUMBER,
    "nvmlDeviceGetBrand": NUMBER,
    "nvmlDeviceGetAddressingMode": (AddressingMode,),
    "nvmlDeviceGetGpuFabricInfo": (GpuFabricInfo,),
    # its health
    "nvmlDeviceGetTemperature": NUMBER,
    "nvmlDeviceGetTemperatureThreshold": NUMBER,
    "nvmlDeviceGetCurrentClocksThrottleReasons": LONG,
    "nvmlDeviceGetTotalEccErrors": LONG,
    "nvmlDeviceGetRemappedRows": (c_uint, c_uint, c_uint, c_uint),
    "nvmlDeviceGetRetiredPagesPendingStatus": NUMBER,
    "nvmlDeviceGetFieldValues": (),  # written into the array that is given
    # its processes: written into the array that is given, see Library.rows
    "nvmlDeviceGetComputeRunningProcesses_v3": (),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": (),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": (),
    "nvmlDeviceGetProcessUtilization": (),
    # events
    "nvmlEventSetCreate": HANDLE,
    "nvmlDeviceGetSupportedEventTypes": LONG,
    "nvmlDeviceRegisterEvents": (),
    "nvmlEventSetWait_v2": (),  # written into the structure that is given
    # MIG
    "nvmlDeviceGetMigMode": (c_uint, c_uint),
    "nvmlDeviceGetMaxMigDeviceCount": NUMBER,
    "nvmlDeviceGetMigDeviceHandleByIndex": HANDLE,
    "nvmlDeviceGetGpuInstanceId": NUMBER,
    "nvmlDeviceGetComputeInstanceId": NUMBER,
    "nvmlDeviceGetAttributes_v2": (DeviceAttributes,),
    "nvmlDeviceGetGpuInstanceById": HANDLE,
    "nvmlGpuInstanceGetInfo": (GpuInstanceInfo,),
    "nvmlDeviceGetGpuInstanceProfileInfoV": (GpuInstanceProfileInfo,),
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2": (),  # written into the array that is given
}
"""Function -> types that it writes through its last arguments, which are pointers. After a text the size is passed."""


class Library:
    """The driver's library."""

    def __init__(self, path: str) -> None:
        """Load it. Raises OSError if the file is no library, or not for this machine."""
        self._library = CDLL(path)

    def call(self, function: str, *given: Any) -> Any:
        """Return what a function of ``ANSWERS`` answers: one value, a tuple of values, a structure, or None.

        ``given``: the arguments before the answers; an int is passed as ``unsigned int``. Raises NvmlError; ValueError
        if a text is not UTF-8.
        """
        try:
            called = getattr(self._library, function)
        except AttributeError:
            raise NvmlError(FUNCTION_NOT_FOUND, f"this driver has no {function}") from None
        answers = [kind() for kind in ANSWERS[function]]
        arguments = [c_uint(one) if isinstance(one, int) else one for one in given]
        for answer in answers:
            arguments += [byref(answer), c_uint(sizeof(answer))] if isinstance(answer, Array) else [byref(answer)]
        if code := called(*arguments):
            raise NvmlError(code, self._text(code))
        values = [_value(answer) for answer in answers]
        return tuple(values) if len(values) > 1 else values[0] if values else None

    def rows(self, function: str, kind: type[Any], arguments: Callable[[Any, Any], tuple[Any, ...]]) -> list[Any]:
        """Return the rows of an array that a function fills. Raises NvmlError.

        ``arguments`` returns the function's arguments. It gets the array (None in the first call, which only counts)
        and a pointer to the number of rows.
        """
        count = c_uint(0)
        try:
            self.call(function, *arguments(None, byref(count)))
        except NvmlError as error:
            if error.code != INSUFFICIENT_SIZE:
                raise
        else:
            return []
        count.value = min(2 * count.value + 5, ROWS_MAX)  # there may be more rows in the next call
        array = (kind * count.value)()
        self.call(function, *arguments(array, byref(count)))
        return list(array[: count.value])

    def _text(self, code: int) -> str:
        text = self._library.nvmlErrorString
        text.restype = c_char_p
        return (text(code) or b"").decode(errors="replace")


def _value(answer: Any) -> Any:
    if isinstance(answer, Structure | c_void_p):
        return answer
    return answer.value.decode() if isinstance(answer, Array) else answer.value
