"""Run a small kernel by NVIDIA's driver alone: ``kernel.py run SECONDS`` keeps the GPU so long; ``kernel.py fault``;
``kernel.py share SECONDS`` as ``run``, beside others on the same GPU.

It runs in a container that has Python and nothing of CUDA's: what it needs enters with the device. The driver compiles
the kernel, so its compiler has to be there as well. Exit status: 0 as it should be, 1 CUDA failed, 42 the GPU is taken.
"""

from __future__ import annotations

import ctypes
import fcntl
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any

LOCKS = Path("/locks")
TAKEN = 42
HELD_BYTES = 512 << 20  # more than a context alone takes, so that NVML's numbers show it
COUNT = 1 << 16
BLOCK = 256
ILLEGAL = 16  # an address that no allocation has
ILLEGAL_ADDRESS = 700  # CUDA_ERROR_ILLEGAL_ADDRESS (cuda.h)
PTX = b"""\
.version 6.0
.target sm_50
.address_size 64
.visible .entry fill(.param .u64 numbers, .param .u32 count)
{
  .reg .pred %p<2>;
  .reg .b32 %r<7>;
  .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [numbers];
  ld.param.u32 %r1, [count];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  cvta.to.global.u64 %rd2, %rd1;
  mul.wide.u32 %rd3, %r5, 4;
  add.s64 %rd4, %rd2, %rd3;
  mul.lo.s32 %r6, %r5, 3;
  st.global.u32 [%rd4], %r6;
DONE:
  ret;
}
"""


class CudaError(Exception):
    """What a call came to."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"CUDA: {call}: {text or 'error'} ({code})")
        self.code = code


class Cuda:
    """The first GPU, and the kernel on it."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._kernel = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        identity = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid", identity, device)
        self.uuid = f"GPU-{uuid.UUID(bytes=bytes(identity))}"
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(PTX))
        self.call("cuModuleGetFunction", ctypes.byref(self._kernel), module, ctypes.c_char_p(b"fill"))

    def call(self, name: str, *arguments: Any) -> None:
        """Raises CudaError."""
        if code := getattr(self._cuda, name)(*arguments):
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(code, ctypes.byref(text))
            raise CudaError(name, code, (text.value or b"").decode())

    def fill(self, address: int, count: int) -> None:
        """Write 0, 3, 6 and so on to the address. Raises CudaError."""
        numbers, amount = ctypes.c_uint64(address), ctypes.c_uint32(count)
        pointers = (ctypes.c_void_p * 2)(*(ctypes.addressof(one) for one in (numbers, amount)))
        blocks = -(-count // BLOCK)
        self.call("cuLaunchKernel", self._kernel, blocks, 1, 1, BLOCK, 1, 1, 0, None, pointers, None)
        self.call("cuCtxSynchronize")

    def checked(self) -> int:
        """Run the kernel on memory that stays taken; the number of right values."""
        memory = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(HELD_BYTES))
        self.fill(memory.value, COUNT)
        found = (ctypes.c_uint32 * COUNT)()
        self.call("cuMemcpyDtoH_v2", found, memory, ctypes.c_size_t(ctypes.sizeof(found)))
        return sum(one == index * 3 for index, one in enumerate(found))


def main(words: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the first process of a container has no default
    try:
        cuda = Cuda()
        if LOCKS.is_dir() and words[0] != "share":
            lock = (LOCKS / cuda.uuid).open("w")  # until this process ends
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"{cuda.uuid} is taken", flush=True)
                return TAKEN
        if words[0] == "fault":
            return _fault(cuda)
        right = cuda.checked()
    except (OSError, CudaError) as error:
        print(error, flush=True)
        return 1
    print(f"kernel ran on {cuda.uuid}: {right} of {COUNT} values are right", flush=True)
    print("has all it wants", flush=True)  # as tests/cluster/workloads.py has it
    if right != COUNT:
        return 1
    time.sleep(float(words[1]))
    return 0


def _fault(cuda: Cuda) -> int:
    try:
        cuda.fill(ILLEGAL, 1)
    except CudaError as error:
        print(f"{error} on {cuda.uuid}", flush=True)
        return int(error.code != ILLEGAL_ADDRESS)
    print("an illegal address did no harm", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
