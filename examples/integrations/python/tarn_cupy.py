# SPDX-License-Identifier: Apache-2.0
"""CuPy on tarn's pool, without a call of Python per allocation:

    import cupy, tarn_cupy
    tarn_cupy.install()

cupy.get_default_memory_pool() then returns an object with the methods of CuPy's pool and tarn's numbers. README.md says what
stream order is promised and what is different."""
import atexit
import ctypes

import cupy
from cupy.cuda import memory as cupy_memory
from cupy_backends.cuda import stream as cupy_stream

import tarn_c


class OutOfMemoryError(cupy_memory.OutOfMemoryError):
    """CuPy's exception, with tarn's report in `report` and in the text."""

    def __init__(self, size, total, limit, report=""):
        super().__init__(size, total, limit)
        self.report = report

    def __str__(self):
        return f"{super().__str__()} {self.report}"

    def __reduce__(self):
        return (type(self), (self._size, self._total, self._limit, self.report))


class _Functions(ctypes.Structure):
    """struct tarn_c_cupy of tarn_c.cpp."""

    _fields_ = [(name, ctypes.c_void_p) for name in
                ("current_stream", "set_exception", "clear_exception", "build_value", "release", "out_of_memory_type",
                 "other_error_type", "save_thread", "restore_thread")] + [("is_ending", ctypes.c_int)]


def _function_of_cython(module, name, signature):
    """The address of a C function that a Cython module exports to other modules; checked by its signature."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    capsule = getattr(module, "__pyx_capi__", {}).get(name)
    found = api.PyCapsule_GetName(capsule) if capsule is not None else None
    if found != signature:
        raise RuntimeError(f"CuPy {cupy.__version__} has no {name} of type {signature.decode()}: tarn_cupy does not know its current "
                           "stream. It was tried with CuPy 14.2")
    return api.PyCapsule_GetPointer(capsule, found)


def _address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def _fill_functions():
    api = ctypes.pythonapi
    return _Functions(
        current_stream=_function_of_cython(cupy_stream, "get_stream_ptr", b"intptr_t (int)"),
        set_exception=_address(api.PyErr_SetObject), clear_exception=_address(api.PyErr_Clear),
        build_value=_address(api.Py_BuildValue), release=_address(api.Py_DecRef),
        out_of_memory_type=id(OutOfMemoryError), other_error_type=id(tarn_c.Error), save_thread=_address(api.PyEval_SaveThread),
        restore_thread=_address(api.PyEval_RestoreThread), is_ending=0)


_functions = _fill_functions()
_malloc, _free = _address(tarn_c.lib.tarn_c_cupy_malloc), _address(tarn_c.lib.tarn_c_cupy_free)


@atexit.register
def _end():
    _functions.is_ending = 1


def _check_that_errors_arrive():
    """A CuPy that does not look for exceptions after the C function would use the address -1 as memory."""
    try:
        # Device -1 has no pool; for CuPy it is the current one.
        cupy_memory.CFunctionAllocatorMemory(1, ctypes.addressof(_functions), _malloc, _free, -1)
    except Exception:
        return
    raise RuntimeError(f"CuPy {cupy.__version__} drops the exceptions of a C allocator; tarn_cupy was tried with CuPy 14.2")


class MemoryPool:
    """The methods of cupy.cuda.MemoryPool on tarn's pools, and the peaks, which CuPy does not have. Each call concerns the
    current device. Bytes are as the pool rounds them: to size classes up to 1 MiB, to 512 bytes above."""

    def __init__(self):
        self._allocator = cupy_memory.CFunctionAllocator(ctypes.addressof(_functions), _malloc, _free,
                                                         (_functions, tarn_c.lib))
        self.malloc = self._allocator.malloc

    @staticmethod
    def _pool():
        return tarn_c.Pool(cupy.cuda.runtime.getDevice())

    def used_bytes(self):
        return self._pool().numbers().allocated

    def total_bytes(self):
        return self._pool().numbers().reserved

    def free_bytes(self):
        now = self._pool().numbers()
        return now.reserved - now.allocated

    def n_free_blocks(self):
        """Free ranges of the pool; blocks that a thread keeps for reuse are not among them."""
        return self._pool().numbers().free_blocks

    def free_all_blocks(self, stream=None):
        """Gives cached memory back to the driver. Waits for the streams that freed it. Of all streams: `stream` must be None."""
        if stream is not None:
            raise NotImplementedError("tarn has no arena per stream: call free_all_blocks() without a stream")
        self._pool().trim()

    free_all_free = free_all_blocks

    def set_limit(self, size=None, fraction=None):
        """Bounds total_bytes() of the current device; 0 or nothing: no limit."""
        if size is not None and fraction is not None:
            raise ValueError("size and fraction cannot be specified at one time")
        if fraction is not None:
            if not 0 <= fraction <= 1:
                raise ValueError(f"memory limit fraction out of range: {fraction}")
            size = int(fraction * cupy.cuda.runtime.memGetInfo()[1])
        size = size or 0
        if size < 0:
            raise ValueError(f"memory limit size out of range: {size}")
        self._pool().set_limit(size)

    def get_limit(self):
        limit = self._pool().numbers().limit
        return 0 if limit == tarn_c.NO_LIMIT else limit

    def peak_used_bytes(self):
        return self._pool().numbers().peak_allocated

    def peak_total_bytes(self):
        return self._pool().numbers().peak_reserved

    def reset_peaks(self):
        self._pool().reset_peaks()


_before = None


def install():
    """Makes tarn's pool CuPy's allocator, and cupy.get_default_memory_pool() its numbers. Arrays of before stay valid. Returns
    the pool. @throws RuntimeError on a CuPy that lacks what is needed, ValueError inside cupy.cuda.using_allocator(); nothing has
    changed"""
    global _before
    if _before is not None:
        return cupy.get_default_memory_pool()
    _check_that_errors_arrive()
    pool = MemoryPool()
    before = (cupy.cuda.get_allocator(), cupy._default_memory_pool)
    cupy.cuda.set_allocator(pool.malloc)  # refused inside using_allocator()
    cupy._default_memory_pool, _before = pool, before
    return pool


def uninstall():
    """Restores the allocator and the pool of before. Arrays of tarn's stay valid."""
    global _before
    if _before is None:
        return
    cupy.cuda.set_allocator(_before[0])  # refused inside using_allocator()
    cupy._default_memory_pool, _before = _before[1], None
