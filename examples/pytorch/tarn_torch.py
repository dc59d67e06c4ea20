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

__all__ = ["build", "install", "is_installed", "library"]

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
            str(_here.parent.parent / "include"),
            *cpp_extension.include_paths(device_type="cuda"),
        ],
        extra_cflags=["-O2", "-std=c++20", "-fvisibility=hidden"],
        extra_ldflags=[
            *(f"-L{folder}" for folder in folders),
            "-lc10_cuda",
            "-ltorch_cuda",
            "-lcudart",
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


def install() -> None:
    """Puts tarn under PyTorch in this process; compiles the library if there is none yet.

    Raises RuntimeError if CUDA was used before, or if PyTorch has no CUDA. Does nothing if tarn is installed already. It needs no
    GPU: without one, the first use of CUDA fails as it does without tarn.
    """
    if torch.version.cuda is None:
        raise RuntimeError("tarn_torch: this PyTorch was built without CUDA")
    path = library()
    if not path.exists():
        build()
    lib = ctypes.CDLL(str(path))
    lib.tarn_torch_install.restype = ctypes.c_int
    lib.tarn_torch_install.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    error = ctypes.create_string_buffer(4096)
    if lib.tarn_torch_install(error, len(error)) != 0:
        reason = error.value.decode(errors="replace").splitlines()[0]
        raise RuntimeError(f"tarn_torch.install() must come before the first use of CUDA: {reason}")
