# SPDX-License-Identifier: Apache-2.0
"""The single header is current, and two files that include it link into one program that runs."""
import pathlib
import subprocess
import sys
import tempfile

root, compiler = pathlib.Path(sys.argv[1]), sys.argv[2]
subprocess.run([sys.executable, str(root / ".ci" / "amalgamate.py"), "--check"], check=True)
program = """#include <tarn/tarn.hpp>
int other();
int {name}() {{
  auto memory = tarn::host_memory{{}} | tarn::pooled{{}} | tarn::tracked{{}};
  auto buffer = tarn::make_device_buffer<int>(memory, 100, tarn::stream_ref{{}});
  return tarn::memory_allocated(memory) == 512 {more} ? 0 : 1;
}}
"""
with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    (folder / "main.cpp").write_text(program.format(name="main", more="&& other() == 0"))
    (folder / "other.cpp").write_text(program.format(name="other", more=""))
    sources = [str(folder / "main.cpp"), str(folder / "other.cpp")]
    subprocess.run([compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-pthread", "-DTARN_NO_CUDA", "-I", str(root / "single_include"), *sources, "-o", str(folder / "program")], check=True)
    subprocess.run([str(folder / "program")], check=True)
print("the single header is current, and two files that include it link")
