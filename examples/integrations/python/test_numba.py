#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of tarn_numba on a GPU: python3 test_numba.py [-v] [TEST...]"""
import gc
import os
import pathlib
import subprocess
import sys
import unittest

import numpy

os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
if not hasattr(numpy, "row_stack"):
    numpy.row_stack = numpy.vstack  # numba-cuda 0.30 names it, NumPy 2.5 has it no more
from numba import cuda

import tarn_c
import tarn_numba

cuda.set_memory_manager(tarn_numba.MemoryManager)

MIB = 1 << 20


@cuda.jit
def add(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


@cuda.jit
def write(p, value, turns, sink):
    """Spins, then writes: the sum of a long dependent chain decides nothing, but cannot be left out."""
    i = cuda.grid(1)
    x = numpy.int64(i)
    for _ in range(turns):
        x = (x * 6364136223846793005 + 1442695040888963407) & 0x7FFFFFFFFFFFFFFF
    if x == 12345:
        sink[0] = x
    for k in range(i, p.size, cuda.gridsize(1)):
        p[k] = value


TURNS = 4_000_000  # some 30 ms


class OnTarn(unittest.TestCase):
    def setUp(self):
        gc.collect()
        cuda.synchronize()
        self.pool = tarn_c.Pool(cuda.get_current_device().id)
        self.pool.set_limit(0)
        self.pool.trim()
        self.before = self.pool.numbers().allocated

    def tearDown(self):
        cuda.synchronize()
        self.pool.set_limit(0)

    def test_arrays_come_from_the_pool_and_compute(self):
        host = numpy.arange(1_000_000, dtype=numpy.float32)
        a, b = cuda.to_device(host), cuda.to_device(2 * host)
        out = cuda.device_array_like(a)
        self.assertEqual(self.pool.numbers().allocated - self.before, 3 * 4_000_256)
        add.forall(out.size)(a, b, out)
        numpy.testing.assert_array_equal(out.copy_to_host(), 3 * host)
        del a, b, out
        self.assertEqual(self.pool.numbers().allocated, self.before)

    def test_out_of_memory_is_numbas_exception_and_a_memory_error(self):
        from numba.cuda.cudadrv.driver import CudaAPIError

        with self.assertRaises(CudaAPIError) as caught:
            cuda.device_array(1 << 50, dtype=numpy.uint8)
        self.assertEqual(caught.exception.code, 2)
        self.assertIsInstance(caught.exception, MemoryError)
        self.assertIn("check the size for overflow", str(caught.exception))
        self.test_arrays_come_from_the_pool_and_compute()

    def test_memory_info(self):
        a = cuda.device_array(256 * MIB, dtype=numpy.uint8)
        del a
        info = cuda.current_context().get_memory_info()
        now = self.pool.numbers()
        self.assertEqual(info.total, now.device_total)
        self.assertEqual(info.free, now.device_free + now.reserved - now.allocated)

    def test_ipc_is_refused(self):
        a = cuda.device_array(10)
        self.assertRaises(NotImplementedError, a.get_ipc_handle)

    def test_reset_keeps_what_is_alive(self):
        a = cuda.to_device(numpy.arange(1000))
        del_me = cuda.device_array(64 * MIB, dtype=numpy.uint8)
        del del_me
        cuda.current_context().memory_manager.reset()
        self.assertLess(self.pool.numbers().reserved, 64 * MIB)
        numpy.testing.assert_array_equal(a.copy_to_host(), numpy.arange(1000))

    def test_freed_memory_waits_for_the_kernels_of_all_streams(self):
        """A block is freed while a kernel on one stream still writes it; the next owner uses it on another stream."""
        one, two = cuda.stream(), cuda.stream()
        sink = cuda.device_array(1, dtype=numpy.int64)
        n = 16 * MIB
        warm = cuda.device_array(1024, dtype=numpy.int32)
        write[32, 256, one](warm, 0, 1, sink)
        del warm
        cuda.synchronize()
        self.pool.trim()
        a = cuda.device_array(n, dtype=numpy.int32)
        address = a.device_ctypes_pointer.value
        write[32, 256, one](a, 1, TURNS, sink)
        del a
        self.pool.set_limit(self.pool.numbers().reserved)
        b = cuda.device_array(n, dtype=numpy.int32)
        self.assertEqual(b.device_ctypes_pointer.value, address)
        write[32, 256, two](b, 2, 1, sink)
        cuda.synchronize()
        host = b.copy_to_host()
        self.assertEqual((host.min(), host.max()), (2, 2))

    def test_random_programs(self):
        numbers = numpy.random.default_rng(7)
        streams = [cuda.stream() for _ in range(3)]
        arrays = []
        for step in range(300):
            if arrays and numbers.random() < 0.5:
                mine, other = arrays.pop(int(numbers.integers(len(arrays))))
                numpy.testing.assert_array_equal(mine.copy_to_host(), other)
                continue
            other = numpy.full(int(2 ** numbers.uniform(0, 18)), step, dtype=numpy.int64)
            stream = streams[step % 3]
            mine = cuda.to_device(other, stream=stream)
            add.forall(other.size, stream=stream)(mine, mine, mine)
            stream.synchronize()
            arrays.append((mine, 2 * other))

    def test_arrays_that_live_to_the_end_of_the_process(self):
        code = """
import numpy
from numba import cuda
import tarn_numba
kept = [cuda.to_device(numpy.arange(1000)) for _ in range(10)]
assert isinstance(cuda.current_context().memory_manager, tarn_numba.MemoryManager)
print("done")
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100,
                              cwd=pathlib.Path(__file__).resolve().parent,
                              env=dict(os.environ, NUMBA_CUDA_MEMORY_MANAGER="tarn_numba"))
        self.assertEqual((done.returncode, done.stdout), (0, "done\n"), done.stderr)


if __name__ == "__main__":
    unittest.main()
