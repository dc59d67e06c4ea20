#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of tarn_cupy on a GPU: python3 test_cupy.py [-v] [TEST...]"""
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import unittest

import cupy
import numpy

import tarn_c
import tarn_cupy

MIB = 1 << 20
# Spins, then writes. The clock of the SM runs below 2.2 GHz, so this is at least 50 ms.
LATE_WRITE = cupy.RawKernel(r"""
extern "C" __global__ void late_write(int* p, long long n, int value, long long ticks) {
  long long const start = clock64();
  while (clock64() - start < ticks) {}
  for (long long i = threadIdx.x; i < n; i += blockDim.x) p[i] = value;
}""", "late_write")
TICKS = 110_000_000


def late_write(array, value):
    """Fills `array` on the current stream, after at least 50 ms."""
    LATE_WRITE((1,), (1024,), (array, array.size, value, TICKS))


def in_new_process(code, *arguments, **environment):
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=100,
                          cwd=pathlib.Path(__file__).resolve().parent, env=dict(os.environ, **environment))
    return done.returncode, done.stdout, done.stderr


class OnTarn(unittest.TestCase):
    def setUp(self):
        self.pool = tarn_cupy.install()
        cupy.cuda.Device().synchronize()
        self.pool.set_limit()
        self.pool.free_all_blocks()
        self.before = self.pool.used_bytes()

    def tearDown(self):
        cupy.cuda.Device().synchronize()
        self.pool.set_limit()

    def allocate_from_what_is_held(self, n):
        """Allocates n int32 while the pool may not grow, so that they get the memory of a block that was just freed."""
        self.pool.set_limit(size=max(self.pool.total_bytes(), 1))
        try:
            return cupy.empty(n, dtype=cupy.int32)
        finally:
            self.pool.set_limit()


class Statistics(OnTarn):
    def test_the_default_pool_is_tarns_and_counts(self):
        self.assertIs(cupy.get_default_memory_pool(), self.pool)
        a = cupy.empty(3 * MIB, dtype=cupy.uint8)
        self.assertEqual(self.pool.used_bytes() - self.before, 3 * MIB)
        b = cupy.empty(1000, dtype=cupy.uint8)
        self.assertEqual(self.pool.used_bytes() - self.before, 3 * MIB + 1024)
        self.assertGreaterEqual(self.pool.total_bytes(), 3 * MIB + 1024)
        self.assertEqual(self.pool.free_bytes(), self.pool.total_bytes() - self.pool.used_bytes())
        del a
        self.assertEqual(self.pool.used_bytes() - self.before, 1024)
        self.assertGreaterEqual(self.pool.free_bytes(), 3 * MIB)
        del b
        self.assertEqual(self.pool.used_bytes(), self.before)

    def test_free_all_blocks_gives_memory_back(self):
        a = cupy.zeros(256 * MIB, dtype=cupy.uint8)
        del a
        held = self.pool.total_bytes()
        free, _ = cupy.cuda.runtime.memGetInfo()
        self.pool.free_all_blocks()
        self.assertLessEqual(self.pool.total_bytes(), held - 256 * MIB)
        self.assertGreaterEqual(cupy.cuda.runtime.memGetInfo()[0], free + 200 * MIB)

    def test_peaks(self):
        self.pool.reset_peaks()
        a = cupy.empty(64 * MIB, dtype=cupy.uint8)
        del a
        self.assertEqual(self.pool.peak_used_bytes() - self.before, 64 * MIB)
        self.assertGreaterEqual(self.pool.peak_total_bytes(), 64 * MIB)

    def test_limit_by_size_and_fraction(self):
        self.assertEqual(self.pool.get_limit(), 0)
        self.pool.set_limit(fraction=0.25)
        total = cupy.cuda.runtime.memGetInfo()[1]
        self.assertEqual(self.pool.get_limit(), int(total * 0.25))
        self.assertRaises(ValueError, self.pool.set_limit, size=1, fraction=0.5)
        self.assertRaises(ValueError, self.pool.set_limit, fraction=1.5)
        self.pool.set_limit()
        self.assertEqual(self.pool.get_limit(), 0)

    def test_uninstall_restores_cupys_pool(self):
        a = cupy.full(1000, 7, dtype=cupy.int32)
        tarn_cupy.uninstall()
        try:
            self.assertIsInstance(cupy.get_default_memory_pool(), cupy.cuda.MemoryPool)
            b = cupy.arange(1000, dtype=cupy.int32)
            self.assertGreater(cupy.get_default_memory_pool().used_bytes(), 0)
            self.assertEqual(int((a + b).sum()), 7000 + 999 * 500)
        finally:
            tarn_cupy.install()
        del a
        self.assertEqual(self.pool.used_bytes(), self.before)

    def test_no_python_function_runs_per_allocation(self):
        called = []
        sys.setprofile(lambda frame, event, _: called.append(frame.f_code) if event == "call" else None)
        try:
            for _ in range(10):
                cupy.cuda.alloc(4096)
        finally:
            sys.setprofile(None)
        self.assertEqual(called, [])
        self.assertEqual(self.pool.used_bytes(), self.before)


class Results(OnTarn):
    def test_random_programs_compute_what_numpy_does(self):
        for seed in range(5):
            random_numbers = random.Random(seed)
            arrays = []
            for step in range(300):
                if arrays and random_numbers.random() < 0.45:
                    mine, other = arrays.pop(random_numbers.randrange(len(arrays)))
                    numpy.testing.assert_array_equal(mine.get(), other)
                    continue
                n = int(2 ** random_numbers.uniform(0, 20))
                other = numpy.arange(step, step + n, dtype=numpy.int64)
                mine = cupy.asarray(other)
                if arrays and random_numbers.random() < 0.5:
                    add = arrays[-1]
                    k = min(n, add[1].size)
                    mine[:k] += add[0][:k]
                    other[:k] += add[1][:k]
                arrays.append((mine, other))
            del mine, arrays

    def test_fft_and_sparse_solvers_run_on_the_pool(self):
        import cupyx.scipy.sparse as sparse
        import cupyx.scipy.sparse.linalg as linalg

        x = cupy.random.RandomState(3).standard_normal(30_011)
        numpy.testing.assert_allclose(cupy.fft.ifft(cupy.fft.fft(x)).real.get(), x.get(), atol=1e-9)
        n = 4096
        matrix = sparse.diags([-1.0, 2.1, -1.0], [-1, 0, 1], shape=(n, n), format="csr")
        solved, _ = linalg.cg(matrix, matrix @ cupy.ones(n), rtol=1e-10)
        numpy.testing.assert_allclose(solved.get(), 1.0, atol=1e-6)

    def test_threads_with_streams_of_their_own(self):
        failures = []

        def work(seed):
            numbers = random.Random(seed)
            with cupy.cuda.Stream(non_blocking=True) as stream:
                for i in range(200):
                    n = int(2 ** numbers.uniform(4, 18))
                    a = cupy.full(n, seed, dtype=cupy.int32)
                    b = a + i
                    del a
                    # Not b.sum(): CuPy compiles kernels for it, in all threads at once.
                    if i % 20 == 0 and not (b.get() == seed + i).all():
                        failures.append((seed, i))
                stream.synchronize()

        threads = [threading.Thread(target=work, args=(s,)) for s in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failures, [])


class StreamOrder(OnTarn):
    n = 16 * MIB  # int32: blocks of 64 MiB

    def assert_all(self, array, value):
        """After all work of the device. On the host: CuPy would compile kernels for reductions, and allocate."""
        cupy.cuda.Device().synchronize()
        host = array.get()
        self.assertEqual((host.min(), host.max()), (value, value))

    def test_a_stream_reuses_its_own_memory_at_once(self):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            a = cupy.empty(self.n, dtype=cupy.int32)
            late_write(a, 1)
            address = a.data.ptr
            del a
            b = cupy.empty(self.n, dtype=cupy.int32)
            self.assertFalse(stream.done, "the host waited for the stream")
            self.assertEqual(b.data.ptr, address)
            b.fill(2)
        self.assert_all(b, 2)

    def test_another_stream_gets_memory_only_after_its_last_work(self):
        one, two = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        with one:
            a = cupy.empty(self.n, dtype=cupy.int32)
            late_write(a, 1)
            address = a.data.ptr
            del a
        with two:
            b = self.allocate_from_what_is_held(self.n)
            self.assertEqual(b.data.ptr, address)
            b.fill(2)
        self.assert_all(b, 2)

    def test_memory_waits_for_the_stream_that_is_current_at_the_free(self):
        """Allocated on one stream, used and freed while another is current."""
        one = cupy.cuda.Stream(non_blocking=True)
        for two in (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null):
            with one:
                a = cupy.empty(self.n, dtype=cupy.int32)
            one.synchronize()
            with two:
                late_write(a, 1)
                del a
            with one:
                b = self.allocate_from_what_is_held(self.n)  # at any address: the block of `a` is deferred
                b.fill(2)
            self.assert_all(b, 2)

    def test_a_capture_goes_on_where_memory_is_freed_or_refused(self):
        a = cupy.ones(1000, dtype=cupy.float32)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            b, total = cupy.ones(1000, dtype=cupy.float32), cupy.zeros(1000, dtype=cupy.float32)
            stream.begin_capture()
            with self.assertRaisesRegex(tarn_c.Error, "Allocate before the capture"):
                cupy.empty(10)
            cupy.add(total, 1, out=total)
            del a, b
            graph = stream.end_capture()
            graph.launch(stream)
            graph.launch(stream)
            self.assertEqual(float(total.sum()), 2000)

    def test_install_inside_using_allocator_changes_nothing(self):
        tarn_cupy.uninstall()
        try:
            before = cupy.get_default_memory_pool()
            with cupy.cuda.using_allocator(cupy.cuda.MemoryPool().malloc):
                self.assertRaises(ValueError, tarn_cupy.install)
            self.assertIs(cupy.get_default_memory_pool(), before)
        finally:
            tarn_cupy.install()
        self.assertIs(cupy.get_default_memory_pool(), tarn_cupy.install())

    def test_memory_of_the_default_stream(self):
        two = cupy.cuda.Stream(non_blocking=True)
        a = cupy.empty(self.n, dtype=cupy.int32)
        address = a.data.ptr
        late_write(a, 1)
        del a
        with two:
            b = self.allocate_from_what_is_held(self.n)
            self.assertEqual(b.data.ptr, address)
            b.fill(2)
        self.assert_all(b, 2)

    def test_an_array_may_outlive_its_stream(self):
        for _ in range(20):
            stream = cupy.cuda.Stream(non_blocking=True)
            with stream:
                a = cupy.full(self.n, 1, dtype=cupy.int32)
            del stream
            cupy.cuda.Stream(non_blocking=True).synchronize()
            del a
            self.assert_all(cupy.full(self.n, 2, dtype=cupy.int32), 2)

    def test_per_thread_default_streams(self):
        code = """
import threading, cupy, tarn_cupy
pool = tarn_cupy.install()
bad = []
def work(k):
    for i in range(300):
        a = cupy.full(100_000 + 1000 * (i % 7), k, dtype=cupy.int32)
        b = a * 2
        del a
        if i % 30 == 0 and not (b.get() == 2 * k).all(): bad.append((k, i))
kept = [cupy.full(1000, 1)]
def free_elsewhere(): kept.clear()
for f in ([threading.Thread(target=work, args=(k,)) for k in range(6)], [threading.Thread(target=free_elsewhere)]):
    for t in f: t.start()
    for t in f: t.join()
print(len(bad), pool.used_bytes())
"""
        status, out, errors = in_new_process(code, CUPY_CUDA_PER_THREAD_DEFAULT_STREAM="1")
        self.assertEqual((status, out.split()), (0, ["0", "0"]), errors)


class Failures(OnTarn):
    def test_out_of_memory_is_cupys_exception_with_tarns_report(self):
        with self.assertRaises(cupy.cuda.memory.OutOfMemoryError) as caught:
            cupy.empty(1 << 50, dtype=cupy.uint8)
        self.assertIsInstance(caught.exception, MemoryError)
        self.assertIn("1,125,899,906,842,624 bytes", str(caught.exception))
        self.assertIn("check the size for overflow", caught.exception.report)
        self.assertEqual(int(cupy.arange(100).sum()), 4950)

    def test_the_limit_refuses_and_leaves_the_pool_usable(self):
        self.pool.set_limit(size=100 * MIB)
        with self.assertRaises(cupy.cuda.memory.OutOfMemoryError) as caught:
            kept = [cupy.empty(30 * MIB, dtype=cupy.uint8) for _ in range(10)]
        self.assertIn("limit set to: 104,857,600 bytes", str(caught.exception))
        self.assertLessEqual(self.pool.total_bytes(), 100 * MIB)
        del caught
        self.assertEqual(self.pool.used_bytes(), self.before)
        kept = cupy.ones(30 * MIB, dtype=cupy.uint8)
        self.assertEqual(int(kept.sum(dtype=cupy.int64)), 30 * MIB)

    def test_refusals_leak_nothing(self):
        def refuse():
            try:
                cupy.empty(1 << 50, dtype=cupy.uint8)
            except cupy.cuda.memory.OutOfMemoryError:
                return
            self.fail("not refused")

        refuse()
        references = sys.getrefcount(tarn_cupy.OutOfMemoryError)
        for _ in range(1000):
            refuse()
        self.assertLess(sys.getrefcount(tarn_cupy.OutOfMemoryError), references + 10)
        self.assertEqual(self.pool.used_bytes(), self.before)

    def test_a_full_device(self):
        kept = []
        with self.assertRaises(cupy.cuda.memory.OutOfMemoryError):
            while True:
                kept.append(cupy.empty(4 << 30, dtype=cupy.uint8))
        self.assertGreater(len(kept), 5)
        del kept
        self.assertEqual(self.pool.used_bytes(), self.before)


class WholeProcesses(unittest.TestCase):
    def test_arrays_that_live_to_the_end_of_the_process(self):
        code = """
import cupy, tarn_cupy
tarn_cupy.install()
class Ring: pass
ring = Ring(); ring.me = ring; ring.array = cupy.ones(1000)
kept = [cupy.zeros(i + 1) for i in range(100)]
import builtins
builtins.last_of_all = cupy.ones(10)
with cupy.cuda.Stream(non_blocking=True): other = cupy.ones(1_000_000)
print("done")
"""
        self.assertEqual(in_new_process(code), (0, "done\n", ""))

    def test_a_recorded_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.trace")
            code = """
import sys, cupy, tarn_c, tarn_cupy
pool = tarn_c.Pool(0, trace=sys.argv[1])
tarn_cupy.install()
a = cupy.zeros(1_000_003, dtype=cupy.uint8)
with cupy.cuda.Stream(non_blocking=True): b = cupy.zeros(77, dtype=cupy.uint8)
del a, b
assert pool.flush()
"""
            status, _, errors = in_new_process(code, path)
            self.assertEqual(status, 0, errors)
            with open(path) as file:
                lines = [line.split() for line in file if not line.startswith("#")]
        self.assertIn(["a", "1", "1000003", "0"], lines)
        self.assertIn(["a", "2", "77", "1"], lines)
        self.assertEqual(sorted(line[1] for line in lines if line[0] == "f"), ["1", "2"])

    def test_the_trace_must_begin_before_the_pool(self):
        tarn_c.Pool(0)
        self.assertRaises(tarn_c.Error, tarn_c.Pool, 0, "never.trace")

    def test_an_unknown_cupy_is_refused(self):
        code = """
import cupy
import cupy_backends.cuda.stream as s
s.__pyx_capi__ = {}
try:
    import tarn_cupy
except RuntimeError as error:
    print("refused:", error)
"""
        status, out, errors = in_new_process(code)
        self.assertEqual(status, 0, errors)
        self.assertIn("refused: CuPy", out)


if __name__ == "__main__":
    unittest.main()
