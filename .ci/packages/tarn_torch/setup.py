# SPDX-License-Identifier: Apache-2.0
"""A wheel of tarn_torch (examples/integrations/pytorch) for the PyTorch that is installed: it compiles the library."""

import importlib.util
import os
import pathlib
import re
import shutil

import torch
from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

ROOT = pathlib.Path(__file__).resolve().parents[3]
SOURCE = ROOT / "examples/integrations/pytorch/tarn_torch.py"
NUMBER = int(re.search(r"#define TARN_VERSION (\d+)", (ROOT / "include/tarn/version.hpp").read_text())[1])


class build(build_py):
    def run(self):
        package = pathlib.Path(self.build_lib).resolve() / "tarn_torch"
        made = pathlib.Path(self.get_finalized_command("build").build_temp).resolve() / "tarn_torch.so"
        library = package / "build" / f"torch-{torch.__version__}" / made.name  # where library() looks for it
        for left in (package, made.parent):  # by an earlier build, perhaps for another PyTorch
            shutil.rmtree(left, ignore_errors=True)
        os.environ["TARN_TORCH_LIBRARY"] = str(made)
        spec = importlib.util.spec_from_file_location("tarn_torch", SOURCE)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        library.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(module.build(verbose=True), library)
        shutil.copy(SOURCE, package / "__init__.py")


class for_this_platform(Distribution):
    def has_ext_modules(self):
        return True


setup(
    name="tarn-torch",
    version=f"{NUMBER // 10000}.{NUMBER // 100 % 100}.{NUMBER % 100}",
    description="PyTorch's CUDA memory from tarn",
    license="Apache-2.0",
    packages=["tarn_torch"],
    package_dir={"tarn_torch": "."},
    install_requires=[f"torch=={torch.__version__.partition('+')[0]}"],  # PyTorch's C++ interface changes with each release
    cmdclass={"build_py": build},
    distclass=for_this_platform,
)
