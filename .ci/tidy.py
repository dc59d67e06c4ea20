#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""clang-tidy over every header of include/tarn, as .clang-tidy says. The CUDA headers are read where CUDA is installed.

Exits with 77, having said why, where there is no clang-tidy 14: another version knows other checks.
"""
import os
import pathlib
import shutil
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parent.parent
tidy = shutil.which("clang-tidy-14")
if tidy is None:
    print("SKIPPED: clang-tidy (no clang-tidy-14)")
    sys.exit(77)

cuda = next((p for p in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if p and os.path.exists(p + "/include/cuda.h")), None)
# Thrust and CUDA's C++ library are much to read and are not tarn's.
left_out = {"thrust.hpp", "cuda_mr.hpp"}
headers = sorted(h.relative_to(root / "include") for h in (root / "include" / "tarn").rglob("*.hpp"))
headers = [h for h in headers if h.name not in left_out and (cuda or not h.name.startswith("cuda_") or h.parent.name == "source")]
unit = root / "build" / "tidy" / "every_header.cpp"
unit.parent.mkdir(parents=True, exist_ok=True)
# Templates are looked into when they are defined; what depends on their arguments, when a program uses them.
unit.write_text("".join(f'#include "{h}"\n' for h in headers) + """
template class tarn::device_buffer<int, tarn::sim_pool>;
void use() {
  tarn::sim_pool const pool;
  tarn::peak_scope const peak(pool);
  tarn::device_buffer<int, tarn::sim_pool> buffer(pool, 100, tarn::stream_ref{});
  buffer.resize(200);
}
""")
command = [tidy, "--quiet", f"--config-file={root / '.clang-tidy'}", "--header-filter=include/tarn/", str(unit), "--",
           "-std=c++20", f"-I{root / 'include'}"]
command += [f"-isystem{cuda}/include"] if cuda else ["-DTARN_NO_CUDA"]
done = subprocess.run(command, capture_output=True, text=True)
findings = [line for line in done.stdout.splitlines() if ": error:" in line or ": warning:" in line]
if done.returncode != 0:
    print(done.stdout, end="")
    print(done.stderr if not findings else "", end="")
print(f"evidence: clang_tidy headers={len(headers)} findings={len(findings)}"
      f" cuda={'yes' if cuda else 'skipped'}")
sys.exit(1 if done.returncode != 0 else 0)
