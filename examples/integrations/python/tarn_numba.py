# SPDX-License-Identifier: Apache-2.0
"""Numba's device memory from tarn's pool, by Numba's External Memory Management interface:

    from numba import cuda
    import tarn_numba
    cuda.set_memory_manager(tarn_numba.MemoryManager)     # before the first use of a device

or NUMBA_CUDA_MEMORY_MANAGER=tarn_numba in the environment. README.md says what stream order is promised."""
import contextlib
import ctypes
import functools
import sys
import weakref

from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError, MemoryPointer

import tarn_c

_CUDA_ERROR_OUT_OF_MEMORY = 2


class OutOfMemoryError(CudaAPIError, MemoryError):
    """What Numba raises when memory runs out, with tarn's report."""


class MemoryManager(cuda.HostOnlyCUDAMemoryManager):
    """Device memory from tarn, pinned host memory as Numba does it."""

    @property
    def _pool(self):
        return tarn_c.Pool(self.context.device.id)

    def initialize(self):
        """Numba calls this each time that it makes a context current; the pool makes itself at its first use."""

    def memalloc(self, size):
        if size > sys.maxsize:  # ctypes would take its lowest 64 bits
            raise OutOfMemoryError(_CUDA_ERROR_OUT_OF_MEMORY, f"tarn: {size} bytes asked")
        pool = self._pool
        address = tarn_c.lib.tarn_c_allocate_for_every_stream(pool.pointer, size)
        if not address and size:
            text = tarn_c.error_text()
            if tarn_c.lib.tarn_c_error_kind() == tarn_c.OUT_OF_MEMORY:
                raise OutOfMemoryError(_CUDA_ERROR_OUT_OF_MEMORY, text)
            raise tarn_c.Error(text)
        free = functools.partial(tarn_c.lib.tarn_c_free, pool.pointer, address)
        return MemoryPointer(weakref.proxy(self.context), ctypes.c_void_p(address or 0), size, finalizer=free)

    def get_memory_info(self):
        """What the device has free, and what the pool caches."""
        now = self._pool.numbers()
        return cuda.MemoryInfo(free=now.device_free + now.reserved - now.allocated, total=now.device_total)

    def get_ipc_handle(self, memory):
        raise NotImplementedError("CUDA has no IPC handles for mapped pages; <tarn/sharing.hpp> shares blocks by file descriptors")

    def reset(self):
        """Gives cached memory back. Arrays that are alive keep theirs."""
        super().reset()
        self._pool.trim()

    @contextlib.contextmanager
    def defer_cleanup(self):
        """Freed blocks stay in the pool, so there is nothing to defer for device memory."""
        with super().defer_cleanup():
            yield

    @property
    def interface_version(self):
        return 1


_numba_memory_manager = MemoryManager
