#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of tarn_c without a GPU, on a libtarn_c.so of the simulated device: TARN_C_LIBRARY=... python3 test_tarn_c.py"""
import ctypes
import os
import random
import subprocess
import sys
import tempfile
import threading
import unittest

import tarn_c

lib, MIB = tarn_c.lib, 1 << 20


class Functions(unittest.TestCase):
    def setUp(self):
        self.pool = tarn_c.Pool(0)
        self.p = self.pool.pointer
        self.pool.set_limit(0)
        self.pool.trim()
        self.assertEqual(self.pool.numbers().allocated, 0)

    def tearDown(self):
        self.assertEqual(self.pool.numbers().blocks, 0)

    def test_a_device_has_one_pool(self):
        self.assertEqual(tarn_c.Pool(0).pointer, self.p)
        self.assertRaises(tarn_c.Error, tarn_c.Pool, 64)
        self.assertRaises(tarn_c.Error, tarn_c.Pool, -1)

    def test_numbers_are_exact(self):
        a, b = lib.tarn_c_allocate(self.p, 1000, None), lib.tarn_c_allocate_for_every_stream(self.p, 3 * MIB)
        now = self.pool.numbers()
        self.assertEqual((now.allocated, now.requested, now.blocks), (3 * MIB + 1024, 3 * MIB + 1000, 2))
        self.assertGreaterEqual(now.reserved, now.allocated)
        self.assertEqual(a % 256, 0)
        lib.tarn_c_free(self.p, a)
        lib.tarn_c_free_after(self.p, b, None)
        now = self.pool.numbers()
        self.assertEqual((now.allocated, now.requested), (0, 0))
        self.assertGreaterEqual(now.peak_allocated, 3 * MIB + 1024)
        self.pool.reset_peaks()
        self.assertEqual(self.pool.numbers().peak_allocated, 0)
        self.pool.trim()
        self.assertEqual(self.pool.numbers().reserved, 0)

    def test_a_block_is_deferred_only_for_another_stream_than_its_own(self):
        default, per_thread = None, 2  # handles as CUDA defines them
        for own, user, is_reused in ((default, default, True), (per_thread, per_thread, True), (per_thread, default, False),
                                     (default, per_thread, False)):
            a = lib.tarn_c_allocate(self.p, 5000, own)
            lib.tarn_c_free_after(self.p, a, user)
            b = lib.tarn_c_allocate(self.p, 5000, own)
            lib.tarn_c_free(self.p, b)
            self.assertEqual(a == b, is_reused, (own, user))
            self.pool.trim()

    def test_zero_bytes_and_foreign_pointers(self):
        self.assertIsNone(lib.tarn_c_allocate(self.p, 0, None))
        self.assertEqual((lib.tarn_c_error_kind(), tarn_c.error_text()), (0, ""))
        lib.tarn_c_free(self.p, None)
        lib.tarn_c_free(self.p, 4096)
        a = lib.tarn_c_allocate(self.p, 100, None)
        lib.tarn_c_free(self.p, a)
        lib.tarn_c_free(self.p, a)
        self.assertEqual(self.pool.numbers().allocated, 0)

    def test_the_limit_bounds_what_is_reserved(self):
        self.assertEqual(self.pool.numbers().limit, tarn_c.NO_LIMIT)
        refused_before = self.pool.numbers().refusals
        self.pool.set_limit(40 * MIB)
        kept = [lib.tarn_c_allocate(self.p, 16 * MIB, None) for _ in range(3)]
        self.assertEqual([bool(k) for k in kept], [True, True, False])
        self.assertEqual(lib.tarn_c_error_kind(), tarn_c.OUT_OF_MEMORY)
        self.assertIn("refused by limited(40 MiB)", tarn_c.error_text())
        self.assertNotIn("tarn_c.cpp", tarn_c.error_text())
        self.assertLessEqual(self.pool.numbers().reserved, 40 * MIB)
        self.assertEqual(self.pool.numbers().refusals, refused_before + 1)
        for k in kept:
            lib.tarn_c_free(self.p, k)

    def test_errors_belong_to_their_thread(self):
        self.assertIsNone(lib.tarn_c_allocate(self.p, 1 << 60, None))
        seen = []
        thread = threading.Thread(target=lambda: seen.append(tarn_c.error_text()))
        thread.start()
        thread.join()
        self.assertEqual(seen, [""])
        self.assertNotEqual(tarn_c.error_text(), "")

    def test_each_of_many_live_blocks_is_found_once(self):
        live = [lib.tarn_c_allocate(self.p, 100, None) for _ in range(20_000)]
        self.assertEqual(len(set(live)), len(live))
        random.Random(1).shuffle(live)
        for left in (15_000, 3_000, 0):  # some parts of the table shrink, and are searched past freed places
            gone, live = live[left:], live[:left]
            for a in gone + gone[:1000]:
                lib.tarn_c_free(self.p, a)
            self.assertEqual(self.pool.numbers().blocks, left)
            if left:
                live += [lib.tarn_c_allocate(self.p, 100, None) for _ in range(500)]
                random.Random(left).shuffle(live)
                self.assertEqual(self.pool.numbers().blocks, left + 500)

    def test_many_threads(self):
        def work(seed):
            kept = []
            for i in range(2000):
                kept.append(lib.tarn_c_allocate(self.p, 1 + (seed * 7919 + i * 104729) % 100_000, None))
                if i % 3 == 0:
                    lib.tarn_c_free(self.p, kept.pop(len(kept) // 2))
            for k in kept:
                lib.tarn_c_free(self.p, k)

        threads = [threading.Thread(target=work, args=(s,)) for s in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(self.pool.numbers().allocated, 0)


class Arrays(unittest.TestCase):
    def setUp(self):
        self.pool = tarn_c.Pool(0)
        self.pool.set_limit(0)
        self.assertEqual(self.pool.numbers().blocks, 0)

    def test_an_array_shows_its_block_and_frees_it(self):
        a = tarn_c.Array(self.pool, (3, 5), "<c16")
        self.assertEqual(self.pool.numbers().requested, 3 * 5 * 16)
        shown = a.__cuda_array_interface__
        address, is_read_only = shown.pop("data")
        self.assertTrue(address and address % 256 == 0 and not is_read_only)
        self.assertEqual(shown, {"version": 3, "shape": (3, 5), "typestr": "<c16", "strides": None, "stream": 1})
        del a
        self.assertEqual(self.pool.numbers().blocks, 0)

    def test_an_array_of_another_stream_names_it_and_is_freed_on_it(self):
        per_thread = 2
        a = tarn_c.Array(self.pool, [100], stream=per_thread)
        address = a.__cuda_array_interface__["data"][0]
        self.assertEqual(a.__cuda_array_interface__["stream"], per_thread)
        del a
        again = lib.tarn_c_allocate(self.pool.pointer, 400, per_thread)
        self.assertEqual(again, address)
        lib.tarn_c_free(self.pool.pointer, again)

    def test_an_array_without_elements_has_no_address(self):
        self.assertEqual(tarn_c.Array(self.pool, (0, 7)).__cuda_array_interface__["data"], (0, False))
        self.assertEqual(tarn_c.Array(self.pool, ()).__cuda_array_interface__["shape"], ())

    def test_an_array_that_does_not_fit_is_a_memory_error(self):
        self.pool.set_limit(4 * MIB)
        self.assertRaisesRegex(MemoryError, "refused by limited", tarn_c.Array, self.pool, (100, MIB))
        self.assertRaisesRegex(MemoryError, "bytes asked", tarn_c.Array, self.pool, (2**62 + 1,), "<f4")  # 4 bytes in 64 bits
        self.assertRaises(ValueError, tarn_c.Array, self.pool, (-1, -1))
        self.assertEqual(self.pool.numbers().blocks, 0)

    def test_a_limit_above_64_bits_is_none(self):
        self.pool.set_limit(2**64 + 1)
        tarn_c.Array(self.pool, (1,))
        self.assertEqual(self.pool.trim(2**64), 0)


class CupyFunctions(unittest.TestCase):
    """tarn_c_cupy_malloc and _free, with functions of this file in place of CuPy's and Python's."""

    class Given(ctypes.Structure):
        _fields_ = [(name, ctypes.c_void_p) for name in
                    ("current_stream", "set_exception", "clear_exception", "build_value", "release", "out_of_memory_type",
                     "other_error_type", "save_thread", "restore_thread")] + [("is_ending", ctypes.c_int)]

    class Refused(Exception):
        pass

    class Other(Exception):
        pass

    def setUp(self):
        self.pool = tarn_c.Pool(0)
        self.pool.set_limit(0)
        self.asked = []
        self.stream = 0

        def current_stream(device):
            self.asked.append(device)
            return self.stream

        self.function = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int)(current_stream)
        api = ctypes.pythonapi

        def address(f):
            return ctypes.cast(f, ctypes.c_void_p).value

        self.given = self.Given(address(self.function), address(api.PyErr_SetObject), address(api.PyErr_Clear),
                                address(api.Py_BuildValue), address(api.Py_DecRef), id(self.Refused), id(self.Other),
                                address(api.PyEval_SaveThread), address(api.PyEval_RestoreThread), 0)
        # With the interpreter's lock held, as CuPy calls them; ctypes raises the exception that is set.
        library = ctypes.PyDLL(lib._name)
        self.malloc, self.free = library.tarn_c_cupy_malloc, library.tarn_c_cupy_free
        self.malloc.restype, self.free.restype = ctypes.c_void_p, None
        self.malloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self.free.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
        self.me = ctypes.addressof(self.given)

    def test_allocates_on_the_current_stream_of_the_device(self):
        a = self.malloc(self.me, 5000, 0)
        self.assertTrue(a)
        self.assertEqual((self.asked, self.pool.numbers().allocated), ([0], 5120))
        self.free(self.me, a, 0)
        self.assertEqual((self.asked, self.pool.numbers().allocated), ([0, 0], 0))

    def test_other_threads_of_python_run_meanwhile(self):
        released = []
        # The interpreter's lock stays held here: a function of Python cannot give back its own.
        saves = ctypes.PYFUNCTYPE(ctypes.c_void_p)(lambda: released.append("saved") or 77)
        restores = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(lambda state: released.append(state))
        self.given.save_thread = ctypes.cast(saves, ctypes.c_void_p).value
        self.given.restore_thread = ctypes.cast(restores, ctypes.c_void_p).value
        a = self.malloc(self.me, 5000, 0)
        self.free(self.me, a, 0)
        self.assertEqual(released, ["saved", 77] * 2)
        self.pool.set_limit(4 * MIB)
        with self.assertRaises(self.Refused):
            self.malloc(self.me, 100 * MIB, 0)
        self.assertEqual(released, ["saved", 77] * 3)

    def test_out_of_memory_has_size_total_limit_and_report(self):
        self.pool.set_limit(4 * MIB)
        with self.assertRaises(self.Refused) as caught:
            self.malloc(self.me, 100 * MIB, 0)
        size, total, limit, report = caught.exception.args
        self.assertEqual((size, limit), (100 * MIB, 4 * MIB))
        self.assertLessEqual(total, 4 * MIB)
        self.assertIn("refused by limited(4 MiB)", report)

    def test_other_errors(self):
        with self.assertRaises(self.Other) as caught:
            self.malloc(self.me, 100, -1)
        self.assertIn("no device of that number", str(caught.exception))

    def test_no_stream_is_asked_for_at_the_end(self):
        a = self.malloc(self.me, 5000, 0)
        self.given.is_ending = 1
        self.free(self.me, a, 0)
        self.assertEqual((len(self.asked), self.pool.numbers().allocated), (1, 0))

    def test_a_free_without_a_stream_frees(self):
        a = self.malloc(self.me, 5000, 0)
        self.stream = -1
        self.free(self.me, a, 0)
        self.assertEqual(self.pool.numbers().allocated, 0)


class Traces(unittest.TestCase):
    def test_a_trace_has_all_calls(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.trace")
            code = """
import sys, tarn_c
pool = tarn_c.Pool(0, trace=sys.argv[1])
a = tarn_c.lib.tarn_c_allocate(pool.pointer, 1003, None)
b = tarn_c.lib.tarn_c_allocate_for_every_stream(pool.pointer, 77)
tarn_c.lib.tarn_c_free(pool.pointer, a)
assert pool.flush()
"""
            subprocess.run([sys.executable, "-c", code, path], check=True, cwd=os.path.dirname(os.path.abspath(__file__)))
            with open(path) as file:
                lines = [line.strip() for line in file if not line.startswith("#")]
        self.assertEqual(lines, ["a 1 1003 0", "a 2 77 0", "f 1"])

    def test_a_trace_begins_before_the_pool_and_needs_a_file(self):
        tarn_c.Pool(0)
        with self.assertRaisesRegex(tarn_c.Error, "in use already"):
            tarn_c.Pool(0, trace="never.trace")
        self.assertFalse(tarn_c.Pool(0).flush())


if __name__ == "__main__":
    unittest.main()
