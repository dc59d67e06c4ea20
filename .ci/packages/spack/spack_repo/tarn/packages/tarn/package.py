# SPDX-License-Identifier: Apache-2.0
import pathlib

from spack_repo.builtin.build_systems.cmake import CMakePackage

from spack.package import *


class Tarn(CMakePackage):
    """RAII toolkit for GPU memory: C++20 headers."""

    git = str(pathlib.Path(__file__).resolve().parents[6])  # the clone of tarn around this file
    license("Apache-2.0")
    version("main", branch="main")

    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    conflicts("%gcc@:10", msg="tarn is C++20")

    def cmake_args(self):
        return [self.define(f"TARN_BUILD_{part}", False) for part in ("TESTS", "EXAMPLES", "BENCH")]
