# SPDX-License-Identifier: Apache-2.0
"""What is on this machine, by the names that the rows of stages.py use. Standard library only, Python 3.8 or newer."""
import datetime
import glob
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess

import stages

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEPS = ROOT / ".gpu-deps"
BUILD = pathlib.Path(os.environ.get("BUILD") or ROOT / "build-gpu")
LOGS = BUILD / "logs"
RESULTS = ROOT / "bench/results"
INSIDE = "TARN_STAGE_SECONDS" in os.environ  # whether this is the process of a stage


def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def first_match(pattern, *paths):
    for path in paths:
        try:
            found = re.search(pattern, pathlib.Path(path).read_text(errors="replace"), re.M)
        except OSError:
            continue
        if found:
            return ".".join(found.groups())
    return ""


def if_exists(path, *parts):
    return path if path and pathlib.Path(path, *parts).exists() else ""


def package_folder(name):
    try:
        return importlib.util.find_spec(name).submodule_search_locations[0]
    except (ImportError, AttributeError):
        return ""


class Machine:
    def __init__(self, wanted):
        environ = os.environ
        environ.setdefault("TARN_COMMIT", output("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD") or "unknown")
        # A fault in NVLink multicast can put all GPUs of a host out of service, which others may share.
        environ["NCCL_NVLS_ENABLE"] = "0"
        if not INSIDE:
            environ["TARN_DRIVER"] = output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0")
            # In the names of results that more than one GPU changes.
            environ["TARN_DEVICES"] = "_two_devices" if len(output("nvidia-smi", "-L").splitlines()) > 1 else ""
            environ["TARN_ONLY_TWO_GPUS"] = "yes" if wanted == ["two_gpus"] else ""
        self.torch_dir = if_exists(package_folder("torch"), "lib/libc10_cuda.so")
        self.nccl_dir = package_folder("nvidia.nccl")  # PyTorch's, which is often newer than the toolkit's
        self.rmm_dir = if_exists(DEPS / "rmm", "librmm")
        self.dali_dir = if_exists(DEPS / "dali", "libdali_core.so")
        self.nanovdb_dir = if_exists(DEPS / "nanovdb/nanovdb", "nanovdb/NanoVDB.h")
        self.amrex_dir = if_exists(DEPS / "amrex", "CMakeLists.txt")
        self.tcnn_sources = if_exists(DEPS / "tcnn", "dependencies/cutlass/include")
        # Beside a program that prebuild made, the image is enough.
        self.tcnn_dir = self.tcnn_sources or (DEPS / "tcnn" if self.packed_client("tarn_tcnn").exists() else "")
        self.mpi_dir = if_exists(DEPS / "usr", "bin/mpirun.openmpi")
        if self.mpi_dir:  # its libraries find the rest of it by these
            environ["OPAL_PREFIX"] = str(self.mpi_dir)
            environ["PMIX_INSTALL_PREFIX"] = f"{self.mpi_dir}/lib/x86_64-linux-gnu/pmix2"
            environ["PMIX_MCA_pcompress_base_silence_warning"] = "1"
        if not INSIDE:  # prebuilt programs name the folders of the machine that built them
            folders = [DEPS / "usr/lib/x86_64-linux-gnu", DEPS / "dali", DEPS / "rmm/librmm/lib64", DEPS / "rmm/rapids_logger/lib64",
                       self.nccl_dir and f"{self.nccl_dir}/lib", self.torch_dir and f"{self.torch_dir}/lib"]
            paths = [environ.get("LD_LIBRARY_PATH", ""), *(str(folder) for folder in folders if folder and os.path.isdir(folder))]
            environ.update({"LD_LIBRARY_PATH": ":".join(filter(None, paths))} if any(paths) else {})

    @staticmethod
    def packed_client(file):
        return DEPS / "built" / f"{pathlib.Path(file).name}.gz"

    @staticmethod
    def program(name):
        """A program of the benches, which need not have been built."""
        replay = BUILD / "bench/replay" / name
        return replay if replay.exists() or name.startswith("tarn_replay") else BUILD / "bench" / name

    @staticmethod
    def expected_of(program):
        """What this example prints, as NAME.expected beside its source."""
        name = f"{program.name[:-len('_cuda')]}.expected"
        return next((ROOT / "examples").rglob(name), ROOT / "examples" / name)

    def names(self, stage):
        """For the expressions of this stage's row."""
        recorded = ROOT / "examples/traces"
        traces = sorted(recorded.glob("*.trace.gz"))
        more = sorted(pathlib.Path(os.environ.get("TRACES") or DEPS / "traces").glob("*.trace.gz"))
        built_commit = first_match(r"^(\S+)", DEPS / "built/COMMIT")
        seconds = int(os.environ.get("TARN_STAGE_SECONDS") or stage["seconds"])
        names = {
            **vars(stages), **vars(self), "root": ROOT, "deps": DEPS, "build": BUILD, "logs": LOGS, "results": RESULTS,
            "environ": os.environ, "exists": os.path.exists, "which": shutil.which, "packed_client": self.packed_client,
            "glob": lambda pattern: [pathlib.Path(path) for path in sorted(glob.glob(str(pattern)))],
            "imports": lambda module: subprocess.run(["python3", "-c", f"import {module}"], capture_output=True).returncode == 0,
            "devices": os.environ["TARN_DEVICES"], "only_two_gpus": os.environ["TARN_ONLY_TWO_GPUS"],
            "jobs": os.environ.get("JOBS") or len(os.sched_getaffinity(0)),
            "stage_seconds": seconds, "left": seconds, "item": None, "failed": 0,
            "traces": traces, "all_traces": traces + [path for path in more if not (recorded / path.name).exists()],
            "small_traces": [path for path in traces if path.stat().st_size <= 199 * 1024],
            "workload_traces": sorted((recorded / "workloads").glob("*.trace.gz")),
            "prebuilt": (DEPS / "built/programs.tar.gz").exists() and built_commit == os.environ["TARN_COMMIT"],
            "expected_of": self.expected_of,
            "keep_going": lambda: "-k0" if (BUILD / "build.ninja").exists() else "-k",
        }
        for name, text in stages.PATHS.items():
            names[name] = fill(text, names)
        names["targets"] = lambda: sum((what for what, when in stages.TARGETS if eval(when, names)), [])
        names["client_targets"] = lambda: [target for file, target, when in stages.CLIENTS
                                           if target and not self.packed_client(file).exists() and eval(when, names)]
        for need in {need for stage in stages.STAGES for need in stage.get("needs", []) if need.startswith("tarn_")} - {"tarn_c"}:
            names[need] = self.program(need)
        if "file" in stage:
            names["new"] = RESULTS / f"{fill(stage['file'], names)}.new"
        return names

    def environment(self):
        """The version of PyTorch without importing it, which takes many seconds on a machine that has just started."""
        nccl = [f"{folder}/nccl.h" for folder in (f"{self.nccl_dir}/include", "/usr/local/cuda/include", "/usr/include")]
        return {
            "gpu": output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "-i", "0") or "none",
            "driver": os.environ["TARN_DRIVER"] or "none",
            "cuda toolkit": "".join(re.findall(r"release ([0-9.]*)", output("nvcc", "--version"))),
            "compiler": output("g++", "--version").partition("\n")[0],
            "cpu": f"{first_match(r'^model name[^:]*: (.*)', '/proc/cpuinfo')}, {len(os.sched_getaffinity(0))} cores",
            "torch": self.torch_dir and first_match(r"^__version__ = '(.*)'", f"{self.torch_dir}/version.py") or "none",
            "rmm": first_match(r"(.*)", DEPS / "rmm/librmm/VERSION") or "none",
            "dali": first_match(r"(.*)", DEPS / "dali/VERSION") or "none",
            "nccl": first_match(r"^#define NCCL_MAJOR (\d+)\n#define NCCL_MINOR (\d+)\n#define NCCL_PATCH (\d+)", *nccl) or "none",
            "commit": os.environ["TARN_COMMIT"],
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
        }


def fill(text, names):
    return re.sub(r"\{([^}]*)\}", lambda found: str(eval(found[1], names)), text)
