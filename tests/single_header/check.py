# SPDX-License-Identifier: Apache-2.0
"""Checks that the single header is current, and that two files that include it and the interop headers link into one program
that runs. It must also compile with CUDA's headers: code behind an #if must be in an order that is valid there."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

root, compiler = pathlib.Path(sys.argv[1]), sys.argv[2]
subprocess.run([sys.executable, str(root / ".ci" / "amalgamate.py"), "--check"], check=True)
program = """#include <tarn/tarn.hpp>
#include <tarn/transfer.hpp>
#include <tarn/pmr.hpp>
#include <tarn/sim.hpp>
#include <tarn/stl.hpp>
#include <tarn/diagnostics.hpp>
#include <tarn/sharing.hpp>
#include <tarn/testing.hpp>
int other();
int {name}() {{
  auto memory = tarn::host_memory{{}} | tarn::pooled{{}} | tarn::tracked{{}};
  auto buffer = tarn::make_device_buffer<int>(memory, 100, tarn::stream_ref{{}});
  tarn::sim_pool simulated;
  auto far = tarn::make_device_buffer<int>(simulated, 100, tarn::stream_ref{{}});
  return tarn::memory_allocated(memory) == 512 && tarn::memory_allocated(simulated) == 512 {more} ? 0 : 1;
}}
"""
errors = ["-Werror"] if os.environ.get("TARN_WARNINGS_AS_ERRORS") else []
flags = ["-std=c++20", "-Wall", "-Wextra", *errors, "-pthread", "-I", str(root / "single_include")]
compilers = [compiler] + (["clang++"] if "clang" not in compiler and shutil.which("clang++") else [])
cuda = pathlib.Path("/usr/local/cuda/include")
with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    (folder / "main.cpp").write_text(program.format(name="main", more="&& other() == 0"))
    (folder / "other.cpp").write_text(program.format(name="other", more=""))
    sources = [str(folder / "main.cpp"), str(folder / "other.cpp")]
    for one in compilers:
        subprocess.run([one, *flags, "-DTARN_NO_CUDA", *sources, "-o", str(folder / "program")], check=True)
        subprocess.run([str(folder / "program")], check=True)
        print(f"two files that include it link ({one})")
    if cuda.exists():
        headers = "".join(f"#include <tarn/{header.name}>\n" for header in sorted((root / "single_include" / "tarn").glob("*.hpp")))
        (folder / "headers.cpp").write_text(headers + "int main() {}\n")
        with_cuda = ["-isystem", str(cuda / "cccl"), "-isystem", str(cuda)]
        subprocess.run([compiler, *flags, *with_cuda, "-fsyntax-only", str(folder / "headers.cpp")], check=True)
        print("with CUDA's headers it compiles, all headers included")
    else:
        print("skipped CUDA: no headers of it here")
