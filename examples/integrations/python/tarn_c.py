# SPDX-License-Identifier: Apache-2.0
"""Loads libtarn_c.so: tarn's pools behind plain C functions (tarn_c.cpp has the command that compiles it).

The library is looked for in TARN_C_LIBRARY, then beside this file."""
import ctypes
import math
import os
import pathlib
import sys
import weakref

NO_LIMIT = ctypes.c_size_t(-1).value
OUT_OF_MEMORY = 1


class Numbers(ctypes.Structure):
    """Bytes, and six counts; tarn_c.cpp says what each is."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("allocated", "requested", "reserved", "peak_allocated", "peak_reserved", "limit", "device_free",
                     "device_total", "blocks", "free_blocks", "refusals", "driver_calls", "host_waits", "device_waits")
    ]


class Error(RuntimeError):
    """tarn refused a call for another reason than memory."""


def _load():
    path = os.environ.get("TARN_C_LIBRARY") or pathlib.Path(__file__).resolve().parent / "libtarn_c.so"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"{error}; compile tarn_c.cpp, its first lines have the command") from None
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for name, result, parameters in (
        ("tarn_c_pool_of", address, [number]),
        ("tarn_c_record", address, [number, ctypes.c_char_p]),
        ("tarn_c_flush", number, [address]),
        ("tarn_c_allocate", address, [address, size, address]),
        ("tarn_c_allocate_for_every_stream", address, [address, size]),
        ("tarn_c_free", None, [address, address]),
        ("tarn_c_free_after", None, [address, address, address]),
        ("tarn_c_trim", size, [address, size]),
        ("tarn_c_set_limit", None, [address, size]),
        ("tarn_c_read", None, [address, ctypes.POINTER(Numbers)]),
        ("tarn_c_reset_peaks", None, [address]),
        ("tarn_c_error", ctypes.c_char_p, []),
        ("tarn_c_error_kind", number, []),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, parameters
    return library


lib = _load()


def error_text():
    """Returns why the last call on this thread failed."""
    return lib.tarn_c_error().decode("utf-8", "replace")


class Pool:
    """The pool of one device. All libraries of a process share it."""

    def __init__(self, device, trace=None):
        """trace: a file for tarn_replay, which gets all calls; only before the first use of the pool."""
        made = lib.tarn_c_pool_of(device) if trace is None else lib.tarn_c_record(device, os.fsencode(trace))
        if not made:
            raise Error(error_text())
        self.pointer = made

    def numbers(self):
        out = Numbers()
        lib.tarn_c_read(self.pointer, out)
        return out

    def trim(self, keep=0):
        """Returns cached memory to the driver until at most `keep` bytes are reserved."""
        return lib.tarn_c_trim(self.pointer, min(keep, NO_LIMIT))  # ctypes would take the lowest 64 bits

    def set_limit(self, size):
        """Bounds the bytes that the pool reserves; 0: no bound."""
        lib.tarn_c_set_limit(self.pointer, min(size or NO_LIMIT, NO_LIMIT))

    def reset_peaks(self):
        lib.tarn_c_reset_peaks(self.pointer)

    def flush(self):
        """Writes what the recorder of a trace has buffered; False if that failed or there is none."""
        return bool(lib.tarn_c_flush(self.pointer))


class Array:
    """Uninitialised memory of a pool with a shape, by the CUDA Array Interface, version 3: cupy.asarray(a), torch.as_tensor(a,
    device="cuda") and numba.cuda.as_cuda_array(a) use it without a copy and keep it alive. It is freed in the order of `stream` (a
    cudaStream_t as an integer; None: the legacy default stream), which they wait for when they take it: what they enqueue on other
    streams must be complete, or ordered before later work of `stream`, when the last of them is gone."""

    def __init__(self, pool, shape, typestr="<f4", stream=None):
        """typestr: as NumPy's, with the bytes of an element at its end."""
        if any(n < 0 for n in shape):
            raise ValueError(f"a shape has no negative size: {shape}")
        size = math.prod(shape) * int(typestr[2:])
        if size > sys.maxsize:  # ctypes would take its lowest 64 bits
            raise MemoryError(f"tarn: {size} bytes asked")
        address = lib.tarn_c_allocate(pool.pointer, size, stream)
        if not address and size:
            raise (MemoryError if lib.tarn_c_error_kind() == OUT_OF_MEMORY else Error)(error_text())
        # The process ends with this memory, which others may still use then.
        weakref.finalize(self, lib.tarn_c_free, pool.pointer, address).atexit = False
        legacy = 1  # 0 is ambiguous and not allowed
        self.__cuda_array_interface__ = {"version": 3, "shape": tuple(shape), "typestr": typestr, "strides": None,
                                         "data": (address or 0, False), "stream": stream or legacy}
