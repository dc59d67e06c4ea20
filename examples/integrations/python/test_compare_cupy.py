#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compare_cupy.py without CuPy and without a GPU: the turns, and what is made of the times."""
import types
import unittest

import compare_cupy


class Turns(unittest.TestCase):
    def test_each_turn_begins_with_another_allocator(self):
        children = [types.SimpleNamespace(name=name) for name in "abc"]
        asked = []
        for number in range(4):
            compare_cupy.in_turn(children, number, lambda one: asked.append(one.name))
        self.assertEqual("".join(asked), "abcbcacababc")


def repeat(times, sums=None):
    """One repeat of one program: the times of the passes of each allocator."""
    pools = compare_cupy.POOLS
    passes = [{name: {"ms": times[name][i], "sum": (sums or {}).get(name, 1), "calls": i if name == "tarn" else None} for name in pools}
              for i in range(len(times["tarn"]))]
    ends = {name: {"held": 10 + len(times[name]), "live": 7 if name == "tarn" else None} for name in pools}
    return [{name: 100 for name in pools}, {name: 300 for name in pools}, {name: 120 for name in pools}], {
        "work": {"passes": passes, "end": ends}}


class Rows(unittest.TestCase):
    def rows(self, *repeats):
        rows, same = compare_cupy.rows_of(repeats, {"gpu": "none"})
        return {row["pool"]: row for row in rows}, same

    def test_ratios_are_those_of_the_same_turn(self):
        # The machine is twice as slow in the second turn and four times in the third: that must not count.
        times = {"tarn": [50, 11, 22, 44], "cupy_pool": [70, 10, 20, 40], "cupy_async": [70, 9, 18, 36], "cupy_async_kept": [1, 2, 3, 4]}
        rows, same = self.rows(repeat(times), repeat({**times, "tarn": [30, 11, 24, 44]}))
        self.assertTrue(same)
        tarn = rows["tarn"]
        self.assertEqual((tarn["first_ms"], tarn["warm_ms"], tarn["pair_ns"]), (40, 23, 120))
        self.assertEqual((tarn["to_cupy_pool"], tarn["to_cupy_pool_quartiles"]), (1.1, [1.1, 1.1]))
        self.assertEqual((tarn["held_bytes"], tarn["live_bytes"], tarn["driver_calls_of_pass"]), (14, 7, [0, 1, 2, 3]))
        self.assertEqual(rows["cupy_async"]["to_cupy_pool"], 0.9)
        self.assertEqual(rows["cupy_pool"]["to_cupy_pool_quartiles"], [1, 1])
        self.assertEqual((rows["cupy_pool"]["live_bytes"], rows["cupy_pool"]["driver_calls_of_pass"]), (None, None))

    def test_checksums_that_differ_are_reported(self):
        times = {name: [4, 2, 2] for name in compare_cupy.POOLS}
        rows, same = self.rows(repeat(times, {"cupy_async": 2}))
        self.assertFalse(same)
        self.assertFalse(rows["tarn"]["same_checksums"])


if __name__ == "__main__":
    unittest.main()
