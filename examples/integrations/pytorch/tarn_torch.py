# SPDX-License-Identifier: Apache-2.0
"""Puts tarn's device_pool under PyTorch.

    import tarn_torch
    tarn_torch.install()  # before CUDA is used
    import torch          # torch.cuda as before
"""

import ctypes
import os
import pathlib

import torch

__all__ = ["build", "install", "is_installed", "library", "pool_counters"]

# A compiler may be set up to link the C++ library and the unwinder statically. PyTorch brings those of the process, and a second copy of
# another version crashes beside them; so the shared ones come first.
LINK_SHARED_CPP = ("-l:libstdc++.so.6", "-l:libgcc_s.so.1")

_here = pathlib.Path(__file__).resolve().parent
_name = "tarn_torch"


def library() -> pathlib.Path:
    """Returns the path of the shared library: TARN_TORCH_LIBRARY, or where build() puts it."""
    set_by_user = os.environ.get("TARN_TORCH_LIBRARY")
    if set_by_user:
        return pathlib.Path(set_by_user)
    return _here / "build" / f"torch-{torch.__version__}" / f"{_name}.so"


def build(verbose: bool = False) -> pathlib.Path:
    """Compiles the library for this PyTorch, with torch.utils.cpp_extension; returns its path. Takes a minute.

    Needs ninja, a C++20 compiler and the headers of the CUDA Toolkit that PyTorch was built for.
    """
    from torch.utils import cpp_extension

    path = library()
    path.parent.mkdir(parents=True, exist_ok=True)
    folders = cpp_extension.library_paths(device_type="cuda")
    cpp_extension.load(
        name=_name,
        sources=[str(_here / "allocator.cpp")],
        extra_include_paths=[
            str(_here.parents[2] / "include"),
            *cpp_extension.include_paths(device_type="cuda"),
        ],
        extra_cflags=["-O2", "-std=c++20", "-fvisibility=hidden"],
        extra_ldflags=[
            *(f"-L{folder}" for folder in folders),
            "-lc10_cuda",
            "-ltorch_cuda",
            "-lcudart",
            *LINK_SHARED_CPP,
        ],
        build_directory=str(path.parent),
        with_cuda=False,  # there is no code for the device
        is_python_module=False,
        verbose=verbose,
    )
    return path


def is_installed() -> bool:
    """Whether PyTorch's CUDA memory comes from tarn in this process."""
    return torch.cuda.get_allocator_backend() == "tarn"


def _load() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(library()))
    lib.tarn_torch_install.restype = ctypes.c_int
    lib.tarn_torch_install.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    lib.tarn_torch_set_pool.restype = ctypes.c_int
    lib.tarn_torch_set_pool.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    lib.tarn_torch_pool_counters.restype = ctypes.c_int
    lib.tarn_torch_pool_counters.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)]
    return lib


def install(*, remap: bool = True, slack_per_mille: int | None = None, largest_handle: int | None = None) -> None:
    """Puts tarn under PyTorch in this process; compiles the library if there is none yet.

    The options are those of tarn's pool (include/tarn/pool/options.hpp): whether free physical handles are remapped, how far reserved
    memory may exceed the peak of live bytes before they are, and the largest handle in bytes. The defaults suit most programs.

    Raises RuntimeError if CUDA was used before, if tarn is installed already and options are given, if PyTorch has no CUDA, or if the
    library has a C++ standard library of its own. Does nothing if tarn is installed already. It needs no GPU: without one, the first use
    of CUDA fails as it does without tarn.
    """
    if torch.version.cuda is None:
        raise RuntimeError("tarn_torch: this PyTorch was built without CUDA")
    if (slack_per_mille or 0) < 0 or (largest_handle or 0) < 0:
        raise ValueError("tarn_torch.install(): slack_per_mille and largest_handle must not be negative")
    if not library().exists():
        build()
    lib = _load()
    if not remap or slack_per_mille is not None or largest_handle is not None:
        numbers = [-1 if given is None else given for given in (slack_per_mille, largest_handle)]
        if lib.tarn_torch_set_pool(int(remap), *numbers) != 0:
            raise RuntimeError("tarn_torch.install(): tarn is installed already, and its options cannot change")
    error = ctypes.create_string_buffer(4096)
    result = lib.tarn_torch_install(error, len(error))
    if result != 0:
        reason = error.value.decode(errors="replace").splitlines()[0]
        if result == 2:
            raise RuntimeError(f"tarn_torch.install(): {library()}: {reason}")
        raise RuntimeError(f"tarn_torch.install() must come before the first use of CUDA: {reason}")


def pool_counters(device: int | None = None) -> dict[str, int]:
    """Returns what tarn's pool of a device did since its start: physical handles created and destroyed, mappings made and removed, how
    many of those moved a handle to another address, waits of the host and of a stream for a stream, and searches of the whole cache
    after a refusal."""
    names = ("creates", "destroys", "maps", "unmaps", "remaps", "host_waits", "device_waits", "cache_searches")
    values = (ctypes.c_uint64 * len(names))()
    if _load().tarn_torch_pool_counters(torch.cuda.current_device() if device is None else device, values) != 0:
        raise RuntimeError("tarn_torch.pool_counters(): there is no such device")
    return dict(zip(names, values))
