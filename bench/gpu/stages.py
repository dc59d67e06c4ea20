# SPDX-License-Identifier: Apache-2.0
"""The stages of bench/gpu.sh, in the order in which they run. run.py runs them; only rows are here.

A command is split at blanks. {…} in it is a Python expression over the names of run.py, evaluated when the command starts: {tarn_replay}
is that program of the benches, {new} the file that becomes the stage's results, {left} the seconds that the stage has left. An
expression that is a list becomes several arguments.
"""

EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}  # PyTorch reads its settings once per process


def step(command, **more):
    """limit: seconds; env: variables, None unsets one; when: a condition; each: a list, whose items are {item}; title: what is printed before
    it; to_new: its output is appended to {new}; folder: where it runs. After a failure the others run, unless must is set: then the
    stage ends with this status. With may_fail its failure is only printed."""
    return {"command": command, **more}


def stage(name, seconds, *steps, **more):
    """seconds: the limit, not what it takes; file: its results; needs: names of NEEDS or of programs, without which it is skipped, or with
    missing=1 fails; env: variables; evidence: what ./dev evidence reads of it; named: it runs only where it is named."""
    return {"name": name, "seconds": seconds, "steps": [step(s) if isinstance(s, str) else s for s in steps], **more}


def runs(name, seconds, program, *commands, before=(), **more):
    """Each allocator in a process of its own, so that none sees what another left behind and the death of one leaves the figures of the
    others."""
    steps = list(before)
    for command in commands:
        if "--json" in command:
            steps.append(step(f"{{{program}}} {command}", limit=60, to_new=True))
        else:
            steps.append(step(f"{{{program}}} {command} --json {{new}}", limit=90))
    return stage(name, seconds, *steps, file=f"{name}.jsonl", needs=[program], **more)


def pools(text, names):
    return [text.replace("POOL", name) for name in names.split()]


# Names of expressions, beside those of run.py.
PATHS = {
    "cuda": "{environ.get('CUDA_HOME') or '/usr/local/cuda'}",
    "cuda_tests": "{build}/tests/tarn_cuda_tests",
    "endings": "{build}/tests/faults/tarn_endings_cuda",
    "snapshot": "{build}/examples/snapshot_cuda",
    "tarn_c": "{build}/examples/libtarn_c.so",
    "tarn_torch": "{build}/tarn_torch/tarn_torch.so",
    "ninja_log": "{build}/.ninja_log",
    "packed": "{deps}/built/programs.tar.gz",
    "openmpi": "{root}/.gpu-mpi/openmpi",
    "ucx": "{root}/.gpu-mpi/ucx/lib",
    "libraries": "{environ.get('LD_LIBRARY_PATH', '')}",
    "rest": "{environ.get('TARN_BUILD_REST', 'ON')}",
    "mpi_programs": "{mpi_dir}/bin",
    "nccl_library": "{nccl_dir}/lib/libnccl.so.2",
}
# {name: (condition, the message where it does not hold)}
NEEDS = {
    "torch": ("torch_dir", "no PyTorch with CUDA in python3"),
    "rmm": ("rmm_dir", "RMM is not in .gpu-deps"),
    "tcnn": ("tcnn_dir", "tiny-cuda-nn is not in .gpu-deps"),
    "cupy": ("imports('cupy')", "python3 has no CuPy"),
    "tarn_c": ("exists(tarn_c)", "libtarn_c.so was not built"),
    "torch_tests": ("exists(deps / 'torch_tests/test/test_cuda.py')", "PyTorch's tests are not in .gpu-deps"),
    "rmm_tests": ("exists(deps / 'rmm_tests/cpp/tests')", "RMM's tests are not in .gpu-deps"),
    "two_gpus": ("devices", "there is one GPU"),
    "compute_sanitizer": ("which('compute-sanitizer')", "compute-sanitizer is not installed"),
    "mpi": ("exists(openmpi + '/bin/mpicxx')", "no .gpu-mpi"),
    "examples": ("glob(build / 'examples/*_cuda')", "no example was built"),
    "cuda_tests": ("exists(cuda_tests)", "tarn_cuda_tests was not built"),
    "endings": ("exists(endings)", "tarn_endings_cuda was not built"),
    "snapshot": ("exists(snapshot)", "snapshot_cuda was not built"),
}

CONFIGURE = (
    "cmake -S {root} -B {build} {['-G', 'Ninja'] if which('ninja') else []} -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH={deps}/usr "
    "-DTARN_BUILD_TESTS={rest} -DTARN_BUILD_EXAMPLES=ON -DTARN_BUILD_BENCH={rest} -DTARN_WARNINGS_AS_ERRORS=OFF "
    "-DTARN_BENCH_RMM_DIR={rmm_dir} -DTARN_BENCH_TORCH_DIR={torch_dir} -DTARN_BENCH_DALI_DIR={dali_dir} -DTARN_NANOVDB_DIR={nanovdb_dir} "
    "-DTARN_TCNN_DIR={tcnn_sources} -DTARN_AMREX_DIR={amrex_dir} "
    "{['-DMPI_CXX_COMPILER=' + mpi_programs + '/mpicxx.openmpi', '-DMPIEXEC_EXECUTABLE=' + mpi_programs + '/mpirun.openmpi'] if mpi_dir else []} "
    "{['-DTARN_NCCL_INCLUDE=' + nccl_dir + '/include', '-DTARN_NCCL_LIBRARY=' + nccl_library] if exists(nccl_library) else []}"
)
# Programs, and whether the stage build makes them beside cuda_programs.
TARGETS = [
    (["cuda_programs"], "not prebuilt"),
    (["tarn_replay", "tarn_hot_paths", "tarn_moving", "tarn_sleep", "tarn_compact", "tarn_growing", "tarn_reservations"], "not prebuilt and not only_two_gpus"),
    (["tarn_replay_rmm", "tarn_hot_paths_rmm"], "not prebuilt and not only_two_gpus and rmm_dir"),
    (["tarn_replay_dali", "tarn_hot_paths_dali"], "not prebuilt and not only_two_gpus and dali_dir"),
    (["tarn_replay_torch", "tarn_hot_paths_torch"],
     "torch_dir and not only_two_gpus and not (prebuilt and exists(build / 'bench/replay/tarn_replay_torch'))"),
]
# What prebuild packs for clients, where it stands in a build, the target that makes it, and whether that can be made here.
CLIENTS = [
    ("examples/libtarn_c.so", "example_tarn_c_cuda", "True"),
    ("bench/tarn_nanovdb", "tarn_nanovdb", "nanovdb_dir"),
    ("bench/tarn_tcnn", "tarn_tcnn", "tcnn_dir"),
    ("bench/tarn_amrex", "tarn_amrex", "amrex_dir"),
    ("tarn_torch/tarn_torch.so", "", ""),
]
UNPACK = "mkdir -p \"$(dirname \"$1\")\" && gunzip -c \"$0\" >\"$1\" && chmod +x \"$1\""
SLOWEST = "awk -F '\\t' 'NF == 5 { print $2 - $1, $4 }' \"$0\" | sort -rn | head -n 15"
BUILD_TORCH = "import tarn_torch; print(tarn_torch.build())"

TORCH = {"MAX_JOBS": "{jobs}", "TARN_TORCH_LIBRARY": "{tarn_torch}", "PYTHONDONTWRITEBYTECODE": "1"}
TORCH_FOLDER = "{root}/examples/integrations/pytorch"
TORCH_LIBRARY = step("python3 -c {BUILD_TORCH}", folder=TORCH_FOLDER, when="not exists(tarn_torch)", must=True)

# Also as root, on one GPU, and where there is no ssh.
TWO_PROCESSES = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_plm": "isolated",
                 "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
OWN_MPI = {"OPAL_PREFIX": "{openmpi}", "LD_LIBRARY_PATH": "{openmpi}/lib:{libraries}", "OMPI_CXX": "g++"}
UCX = {**TWO_PROCESSES, "LD_LIBRARY_PATH": "{ucx}:{libraries}", "OMPI_CXX": "g++"}
UCX_RUN = ("{mpi_dir}/bin/mpirun.openmpi -n 2 env OMPI_MCA_pml=ucx OMPI_MCA_opal_common_ucx_tls=any OMPI_MCA_opal_common_ucx_devices=any "
           "TARN_TEST_MPI_HAS_CUDA=1 {build}/tests/tarn_mpi_cuda {item}")
HAS_UCX = "mpi_dir and exists(ucx + '/libucp.so.0') and exists(build / 'tests/tarn_mpi_cuda')"

REPLAY = "--device cuda --json --passes 6 --pool POOL {all_traces}"
SHORT = "--device cuda --json --passes 2 --pool POOL {small_traces}"
WORKLOAD = "--device cuda --json --passes 6 --threads 2 --pool POOL {workload_traces}"
PATTERN = "--device cuda --json --passes 6 --pool POOL --pattern all"
# Who survives on a GPU that has 1.00, 1.01, 1.02 and 1.05 times a trace's peak live bytes: a ballast takes the rest of it.
SURVIVAL = "--device cuda --json --cap 1.00,1.01,1.02,1.05 --pool POOL {all_traces}"
IN_TURN = ("python3 {root}/bench/replay/in_turn.py {new} --seconds {left - 5} --passes 21 --turn 4 --run "
           "{'env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True ' + str(tarn_replay_torch) + ' --device cuda --pool torch_expandable'} "
           "--run {str(tarn_replay) + ' --device cuda --pool ' + item[0]} {item[1]}")

TWO_GPUS = ["configure", "build", "nccl", "examples", "tests", "mpi", "convert", "torch_devices", "summary"]  # what more than one GPU changes


def simulated(text):
    return text.replace("--device cuda", "--device sim")


def limited(text):
    """The short traces: pools that ask the driver again at each refusal take minutes on the others."""
    return text.replace("{all_traces}", "{small_traces}")


STAGES = [
    stage("configure", 40, CONFIGURE),
    # Only what runs here, each program once, and all that compiles even if one does not.
    stage("build", 200,
          step("tar -C {build} -xzf {packed}", when="prebuilt", title="prebuilt", must=True),
          step("cmake --build {build} -j {jobs} --target {targets()} -- {keep_going()}", when="targets()"),
          step("bash -c {SLOWEST} {ninja_log}", when="targets() and exists(ninja_log)", may_fail=True, title="slowest, in milliseconds")),
    # A machine that has just started is slow, whoever runs first: the simulated device and the host's pools come before the
    # GPU's, and the GPU's first process does not count. PyTorch follows at once.
    runs("replay_tarn", 120, "tarn_replay",
         *pools(simulated(REPLAY), "tarn tarn_no_remap host_malloc std_pmr mimalloc"),
         *pools(REPLAY, "tarn tarn_identified tarn_no_remap tarn_tracked"),
         before=[step("{tarn_replay} --device cuda --passes 20 --pool tarn {all_traces}", may_fail=True)]),
    runs("replay_torch_expandable", 40, "tarn_replay_torch", *pools(REPLAY, "torch_expandable"), env=EXPANDABLE),
    runs("replay_torch", 40, "tarn_replay_torch", *pools(REPLAY, "torch")),
    # What is measured at the same moments can be compared although the machine is shared. Two processes, each with a pool of its own.
    stage("in_turn", 220,
          step(IN_TURN, each="[('tarn_tracked', ['--repeats', '4', *all_traces]), "
                             "('tarn_tracked', ['--repeats', '3', '--threads', '2', *workload_traces]), "
                             "('tarn_identified', ['--repeats', '2', *all_traces])]"),
          file="in_turn.jsonl", needs=["tarn_replay", "tarn_replay_torch"]),
    # A driver call per block: short traces, twice. stack_arena fills the device, and is refused after that.
    runs("replay_cuda", 100, "tarn_replay", *pools(REPLAY, "cuda_async cub thrust_mr"), *pools(SHORT, "cub_default cuda_malloc stack_arena")),
    # Recorded from programs of PyTorch, whose backward pass has a thread of its own.
    runs("workloads_tarn", 40, "tarn_replay", *pools(simulated(WORKLOAD), "tarn"), *pools(WORKLOAD, "tarn tarn_tracked")),
    runs("workloads_torch_expandable", 20, "tarn_replay_torch", *pools(WORKLOAD, "torch_expandable"), env=EXPANDABLE),
    runs("workloads_torch", 20, "tarn_replay_torch", *pools(WORKLOAD, "torch")),
    # Several processes, so that the peers' slow windows do not cost the other works their time. Not with a million blocks: what
    # takes minutes to free them (thrust_mr), and cuda_malloc.
    runs("hot_paths_cuda", 240, "tarn_hot_paths",
         "--device cuda --limit 60 --filter ^(hot_pair|two_streams|other_thread|threads|tail)",
         "--device cuda --limit 60 --filter ^window",
         "--device cuda --limit 40 --filter ^live --pool tarn,tarn_tracked,tarn_identified,cuda_async,cub",
         "--device cuda --limit 20 --filter ^fail/(above|limited)",
         "--device cuda --limit 40 --filter ^fail/full --pool tarn,tarn_tracked,cuda_async,cub,thrust_mr"),
    runs("hot_paths_torch", 55, "tarn_hot_paths_torch", "--limit 20 --filter ^[^f]", "--limit 15 --filter ^fail"),
    runs("hot_paths_torch_expandable", 55, "tarn_hot_paths_torch", "--limit 20 --filter ^[^f]", "--limit 15 --filter ^fail", env=EXPANDABLE),
    runs("hot_paths_host", 95, "tarn_hot_paths", "--device sim --limit 45", "--device host --limit 40"),
    # Batches between host and device, and pinning; PyTorch's after it, whose import alone takes many seconds.
    stage("moving", 70,
          step("{tarn_moving} --device cuda --json {new}", limit=25),
          step("python3 {root}/bench/moving/torch_moving.py {new}", limit=40, when="torch_dir", may_fail=True),
          file="moving.jsonl", needs=["tarn_moving"]),
    stage("sleep", 60, "{tarn_sleep} --device cuda --json {new}", file="sleep.jsonl", needs=["tarn_sleep"]),
    # Compaction of a checkerboard and of each trace.
    stage("growing", 60, "{tarn_growing} --device sim --json {new}", "{tarn_growing} --device cuda --json {new}",
          file="growing.jsonl", needs=["tarn_growing"]),
    stage("compact", 60, "{tarn_compact} --device cuda --json {new} {all_traces}", file="compact.jsonl", needs=["tarn_compact"]),
    # Tasks whose peaks exceed the device.
    stage("reservations", 60, "{tarn_reservations} --device cuda --json {new}", file="reservations.jsonl", needs=["tarn_reservations"]),
    # Conversions, and copies between two GPUs where there are two.
    stage("convert", 20, "{tarn_convert} --json {new}", file="convert{devices}.jsonl", needs=["tarn_convert"]),
    # Captures with the pool, against memory allocated before.
    stage("graphs", 30, "{tarn_graphs} --json {new}", file="graphs.jsonl", needs=["tarn_graphs"]),
    # Collectives on a pool's memory.
    stage("nccl", 90, "{tarn_nccl} --repetitions 25 --json {new}", file="nccl.jsonl", needs=["two_gpus", "tarn_nccl"]),
    stage("tests", 90, "{cuda_tests} --durations yes", needs=["cuda_tests"], missing=1, evidence="gpu_tests {catch2()}"),
    stage("endings", 60, "python3 {root}/tests/faults/endings.py {endings} {build}/tests/faults/libtarn_ending_plugin_cuda.so",
          needs=["endings"], missing=1, evidence="endings failed={failed}"),
    # Not the refusals: the tests provoke them.
    stage("sanitize", 120, "compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 {cuda_tests} [cuda]",
          needs=["compute_sanitizer"], evidence="gpu_memcheck errors={found(r'ERROR SUMMARY: (\\d+)')} {catch2()}"),
    # What a user's mistakes inside a pool look like to the tool; 33 runs, side by side.
    stage("planted", 120,
          "bash {root}/tests/sanitizer/check.sh {build}/tests",
          step("bash {root}/tests/sanitizer/check.sh {build}/tests --diagnose", when="failed", may_fail=True),
          needs=["compute_sanitizer"], evidence="misuse_compute_sanitizer failed={failed}"),
    # data_parallel runs as one process for each of two GPUs, or for the one.
    stage("examples", 80,
          step("python3 {root}/examples/compare.py --gpu {expected_of(item)} {item}", each="glob(build / 'examples/*_cuda')", limit=30,
               title="{item.name[:-5]}"),
          step("python3 {root}/examples/compare.py --gpu {root}/examples/integrations/data_parallel/data_parallel_mpi.expected {mpi_dir}/bin/mpirun.openmpi -n "
               "{2 if devices else 1} {build}/examples/data_parallel_cuda_mpi", limit=60, title="data_parallel, started by mpirun",
               env={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_plm": "isolated"},
               when="mpi_dir and exists(build / 'examples/data_parallel_cuda_mpi')", otherwise="skipped data_parallel_mpi: no Open MPI here"),
          needs=["examples"], missing=1, evidence="examples programs={count('^-- ')} failed={failed} skipped={count('^skipped')}"),
    # A snapshot of a pool on the GPU, read by Python and by the viewer of the PyTorch that is installed; a trace's report.
    stage("snapshots", 40,
          step("mkdir -p {logs}/snapshot", must=True),
          step("{snapshot} {logs}/snapshot", must=True),
          step("python3 {root}/tests/snapshots/check.py {logs}/snapshot/snapshot.pickle", must=True),
          step("{tarn_replay} --device cuda --pool tarn --report {logs}/snapshot/report.html {traces[0]}"),
          needs=["snapshot", "tarn_replay"], missing=1, evidence="snapshots failed={failed}"),
    # Blocks that MPI sends and receives itself. Open MPI's own transports must carry blocks of one handle and of several, UCX those
    # of one; what UCX does with several is only printed.
    stage("mpi", 150,
          step("{openmpi}/bin/mpicxx -std=c++20 -O1 -I{root}/include -I{cuda}/include {root}/tests/interop/mpi.cpp -o {build}/mpi_with_cuda "
               "-L{cuda}/lib64 -lcudart_static -pthread -ldl -lrt", env=OWN_MPI, must=True),
          step("{openmpi}/bin/mpirun -n 2 env {item} {build}/mpi_with_cuda", each="[[], ['OMPI_MCA_btl_smcuda_use_cuda_ipc=0']]", limit=40,
               env={**TWO_PROCESSES, **OWN_MPI, "PMIX_INSTALL_PREFIX": None},
               title="Open MPI with CUDA support, its own transports{', without cudaIpc' if item else ''}"),
          step(UCX_RUN, each="['one']", limit=40, env=UCX, when=HAS_UCX, otherwise="skipped UCX: it, or Debian's Open MPI, is not here",
               title="Debian's Open MPI over UCX with CUDA support, blocks of {item}"),
          step(UCX_RUN, each="['several']", limit=40, env=UCX, when=HAS_UCX, may_fail=True, title="the same, blocks of {item}"),
          needs=["mpi"], evidence="mpi_with_cuda passed={count('^MPI sent and received')} failed={failed} skipped={count('^skipped')}"),
    runs("replay_rmm", 60, "tarn_replay_rmm", *pools(REPLAY, "rmm_pool rmm_arena rmm_binning cccl")),
    runs("hot_paths_rmm", 160, "tarn_hot_paths_rmm", *pools("--pool POOL --limit 25 --filter ^[^f]", "rmm_binning rmm_pool rmm_arena cccl"),
         *pools("--pool POOL --limit 15 --filter ^fail", "rmm_binning rmm_pool rmm_arena cccl")),
    # Patterns that are hard on pools, on the same pools but those that call the driver for each block.
    runs("patterns_tarn", 60, "tarn_replay", *pools(simulated(PATTERN), "tarn tarn_segments host_malloc std_pmr mimalloc"),
         *pools(PATTERN, "tarn tarn_identified tarn_no_remap tarn_segments tarn_tracked")),
    runs("patterns_torch_expandable", 30, "tarn_replay_torch", *pools(PATTERN, "torch_expandable"), env=EXPANDABLE),
    runs("patterns_torch", 30, "tarn_replay_torch", *pools(PATTERN, "torch")),
    runs("patterns_cuda", 60, "tarn_replay", *pools(PATTERN, "cuda_async cub thrust_mr"),
         *pools(PATTERN.replace("--passes 6", "--passes 2"), "stack_arena")),
    runs("patterns_rmm", 60, "tarn_replay_rmm", *pools(PATTERN, "rmm_pool rmm_arena rmm_binning cccl")),
    runs("replay_dali", 40, "tarn_replay_dali", *pools(REPLAY, "dali")),
    runs("patterns_dali", 30, "tarn_replay_dali", *pools(PATTERN, "dali")),
    runs("hot_paths_dali", 45, "tarn_hot_paths_dali", "--limit 25 --filter ^[^f]", "--limit 15 --filter ^fail"),

    runs("survival_tarn", 150, "tarn_replay", *pools(simulated(SURVIVAL), "tarn tarn_no_remap std_pmr"), *pools(SURVIVAL, "tarn tarn_no_remap"),
         named=True),
    runs("survival_torch_expandable", 60, "tarn_replay_torch", *pools(SURVIVAL, "torch_expandable"), env=EXPANDABLE, named=True),
    runs("survival_torch", 60, "tarn_replay_torch", *pools(SURVIVAL, "torch"), named=True),
    runs("survival_cuda", 150, "tarn_replay", *pools(SURVIVAL, "cuda_async"), *pools(limited(SURVIVAL), "cub thrust_mr cuda_malloc"), named=True),
    runs("survival_rmm", 90, "tarn_replay_rmm", *pools(SURVIVAL, "rmm_pool rmm_arena rmm_binning"), named=True),
    # The tests of PyTorch on two GPUs alone.
    stage("torch_devices", 180,
          step("bash -c {UNPACK} {deps}/built/tarn_torch.so.gz {tarn_torch}", when="exists(deps / 'built/tarn_torch.so.gz')"),
          TORCH_LIBRARY,
          step("python3 -m unittest -v test_tarn_torch.TwoDevices", folder=TORCH_FOLDER, limit="stage_seconds - 5"),
          needs=["torch"], env=TORCH, named=True, evidence="torch_devices {unittests()}"),

    stage("torch_library", 600, TORCH_LIBRARY, needs=["torch"], env=TORCH, named=True),  # for prebuild

    # Other people's programs on tarn. What they need, and nothing else: configured without tests and benches where there is no build yet.
    # tiny-cuda-nn and AMReX take minutes to compile; what prebuild made is taken as it is. The last stage uses all the time that is left.
    stage("clients_build", 400,
          step("bash -c {UNPACK} {packed_client(item)} {build}/{item}", each="[c[0] for c in CLIENTS if exists(packed_client(c[0]))]",
               title="prebuilt: {item}", may_fail=True),
          step(CONFIGURE.replace("{rest}", "OFF"), when="client_targets() and not exists(build / 'CMakeCache.txt')", must=True),
          step("cmake --build {build} -j {jobs} --target {client_targets()} -- {keep_going()}", when="client_targets()"),
          named=True),
    stage("clients_nanovdb", 150, "{tarn_nanovdb} --repeats {2 if stage_seconds < 120 else 3} --json {new}",
          file="clients_nanovdb.jsonl", needs=["tarn_nanovdb"], named=True, evidence="clients_nanovdb failed={failed}"),
    # CuPy and Numba: their tests, and the comparison with CuPy's allocators.
    stage("clients_cupy", 400,
          step("python3 {root}/examples/integrations/python/test_cupy.py -v", limit="stage_seconds // 3"),
          step("python3 {root}/examples/integrations/python/test_numba.py -v", limit="stage_seconds // 5", when="imports('numba.cuda')",
               otherwise="skipped Numba: python3 has none"),
          step("python3 {root}/examples/integrations/python/compare_cupy.py --seconds {left - 5} --passes {3 if stage_seconds < 150 else 5} --json {new}",
               limit="left - 2"),
          file="clients_cupy.jsonl", needs=["cupy", "tarn_c"], env={"TARN_C_LIBRARY": "{tarn_c}", "PYTHONDONTWRITEBYTECODE": "1"}, named=True,
          evidence="clients_cupy {unittests()}"),
    stage("clients_tcnn", 150, "{tarn_tcnn} {tcnn_dir}/data/images/albert.jpg --repeats {2 if stage_seconds < 90 else 3} --json {new}",
          file="clients_tcnn.jsonl", needs=["tcnn", "tarn_tcnn"], named=True, evidence="clients_tcnn failed={failed}"),
    stage("clients_amrex", 100, "{tarn_amrex} --repeats {3 if stage_seconds < 90 else 5} --json {new}",
          file="clients_amrex.jsonl", needs=["tarn_amrex"], named=True, evidence="clients_amrex failed={failed}"),
    # RMM's own suites of resources, compiled here: 20 s of compiling each.
    stage("clients_rmm", 300,
          "python3 -B {root}/examples/integrations/rmm/run_suites.py --rmm {rmm_dir} --tests {deps}/rmm_tests/cpp/tests --prefix {deps}/usr "
          "--build {build}/clients_rmm --jobs {jobs} --json {new}",
          file="clients_rmm.jsonl", needs=["rmm", "rmm_tests"], named=True, evidence="clients_rmm failed={failed}"),
    # PyTorch's own tests of its allocator, with tarn installed.
    stage("clients_torch_tests", 300,
          step("python3 {root}/examples/integrations/pytorch/run_torch_tests.py {deps}/torch_tests/test/test_cuda.py --json {new} "
               "--first {results}/clients_torch_tests.jsonl --seconds {stage_seconds - 5}", env={"PYTHONPATH": "{deps}/torch_tests/python"}),
          file="clients_torch_tests.jsonl", needs=["torch", "torch_tests"], env=TORCH, named=True, evidence="clients_torch_tests failed={failed}"),
    # PyTorch: builds the extension, runs its tests, and compares workloads under PyTorch's allocators and tarn. A workload's rows are in
    # the file as soon as it is measured.
    stage("clients_torch", 600,
          TORCH_LIBRARY,
          step("python3 -m unittest -v test_tarn_torch", folder=TORCH_FOLDER, limit="left * 2 // 5"),
          step("python3 compare_workloads.py --diagnose {environ['TORCH_DIAGNOSE']}", folder=TORCH_FOLDER, limit="left // 4",
               when="environ.get('TORCH_DIAGNOSE')"),
          step("python3 compare_workloads.py {results}/clients_torch.jsonl --seconds {left - 4} --repeats {2 if stage_seconds < 400 else 3} "
               "{environ.get('TORCH_COMPARE', '').split()}", folder=TORCH_FOLDER, limit="left - 2"),
          needs=["torch"], env=TORCH, named=True,
          evidence="clients_torch {unittests()}"),

    stage("summary", 25,
          step("python3 {root}/bench/summary.py {results}", must=True),
          step("python3 {root}/bench/plots.py {results}", when="imports('matplotlib')", otherwise="skipped the picture: no matplotlib")),
]
