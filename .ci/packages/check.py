#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds each package of this folder and a project that uses it, and compares what the project's program prints.

    check.py [FOLDER [RECIPE...]]   works in FOLDER, build/packages unless given; all recipes, or these

What pip has is installed in an environment of its own in FOLDER. A recipe whose tool is missing is named as skipped. Exit status 1
where a recipe fails, 77 where each was skipped.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / ".ci/packages"
CONSUMER = ROOT / "examples/cmake_consumer"
NUMBER = int(re.search(r"#define TARN_VERSION (\d+)", (ROOT / "include/tarn/version.hpp").read_text())[1])
VERSION = f"{NUMBER // 10000}.{NUMBER // 100 % 100}.{NUMBER % 100}"
WORK = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/packages").resolve()


class Skipped(Exception):
    pass


class Failed(Exception):
    pass


def run(*command, cwd=None, **environment):
    """Returns what a command prints; what it prints is shown where it fails."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, env={**os.environ, **environment}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}")
    return done.stdout


def tool(name):
    if not (found := shutil.which(name)):
        raise Skipped(f"no {name} here")
    return found


def from_pip(*packages):
    """The folder of the programs of an environment with these packages."""
    programs = WORK / "venv/bin"
    try:
        if not (programs / "pip").exists():
            venv.create(WORK / "venv", with_pip=True)
        run(programs / "python", "-m", "pip", "install", "-q", *packages)
    except (Failed, OSError, subprocess.CalledProcessError) as why:
        raise Skipped(f"pip cannot install {' '.join(packages)} here: {str(why).strip().splitlines()[-1]}") from why
    return programs


def fresh(name):
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def made(folder, pattern):
    """The one file of this pattern."""
    files = list(folder.glob(pattern))
    if len(files) != 1:
        raise Failed(f"{pattern}: {len(files)} files instead of one; there are {sorted(file.name for file in folder.iterdir())}")
    return files[0]


def prints_as_expected(program):
    run(sys.executable, ROOT / "examples/compare.py", CONSUMER / "main.expected", program)


def consumed_by_cmake(folder, *arguments):
    """Builds the project that uses tarn. The sources beside it must not be used, nor a package elsewhere on this machine."""
    build = folder / "consumer"
    run("cmake", "-S", CONSUMER, "-B", build, "-DTARN_SOURCE=/nonexistent", *arguments)
    found = re.search(r"^tarn_DIR:PATH=(.*)$", (build / "CMakeCache.txt").read_text(), re.M)[1]
    if not pathlib.Path(found).is_relative_to(WORK):
        raise Failed(f"CMake found tarn in {found}")
    run("cmake", "--build", build)
    prints_as_expected(build / "consumer")


def conan():
    folder = fresh("conan")
    program = from_pip("conan>=2,<3") / "conan"
    home = {"CONAN_HOME": str(folder / "home")}
    run(program, "profile", "detect", **home)
    run(program, "create", HERE / "conan", **home)
    run(program, "install", f"--requires=tarn/{VERSION}", "-g", "CMakeToolchain", "-g", "CMakeDeps", "-of", folder, cwd=folder, **home)
    consumed_by_cmake(folder, f"-DCMAKE_TOOLCHAIN_FILE={folder}/conan_toolchain.cmake", "-DCMAKE_BUILD_TYPE=Release")


def debian():
    folder = fresh("debian")
    for name in ("dpkg-buildpackage", "dh", "lintian", "git"):
        tool(name)
    source = folder / f"tarn-{VERSION}"
    for name in filter(None, run("git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    run("tar", "-cJf", f"tarn_{VERSION}.orig.tar.xz", source.name, cwd=folder)
    shutil.copytree(HERE / "debian", source / "debian")
    run("dpkg-buildpackage", "-us", "-uc", cwd=source)
    print(run("lintian", "--fail-on", "error", made(folder, "*.changes")), end="")
    run("dpkg-deb", "-x", made(folder, "*.deb"), folder / "root")
    consumed_by_cmake(folder, f"-DCMAKE_PREFIX_PATH={folder}/root/usr")


def meson():
    folder = fresh("meson")
    tool("pkg-config")
    program = shutil.which("meson") or from_pip("meson", "ninja") / "meson"
    run("cmake", "-S", ROOT, "-B", folder / "tarn", "-DTARN_BUILD_TESTS=OFF", "-DTARN_BUILD_EXAMPLES=OFF", "-DTARN_BUILD_BENCH=OFF")
    run("cmake", "--install", folder / "tarn", "--prefix", folder / "prefix")
    for file in (HERE / "meson/meson.build", CONSUMER / "main.cpp"):
        shutil.copy(file, folder)
    environment = {"PKG_CONFIG_PATH": str(folder / "prefix/share/pkgconfig"), "PATH": f"{WORK}/venv/bin:{os.environ['PATH']}"}
    run(program, "setup", folder / "build", folder, **environment)
    run(program, "compile", "-C", folder / "build", **environment)
    prints_as_expected(folder / "build/consumer")


def python():
    folder = fresh("python")
    programs = from_pip("scikit-build-core>=0.10")
    run(programs / "python", "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", folder, HERE / "python")
    wheel = made(folder, f"tarn_headers-{VERSION}-py3-none-any.whl")
    run(programs / "python", "-m", "pip", "install", "-q", "--target", folder / "site", wheel)
    prefix = run(programs / "python", "-c", "import tarn_headers; print(tarn_headers.__path__[0])",
                 PYTHONPATH=str(folder / "site")).strip()
    consumed_by_cmake(folder, f"-DCMAKE_PREFIX_PATH={prefix}")


def tarn_torch():
    """Needs PyTorch with CUDA where this script's Python finds it, setuptools, ninja and nvcc's headers. No GPU."""
    folder = fresh("tarn_torch")
    for module in ("torch", "setuptools", "ninja"):
        if subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode:
            raise Skipped(f"{sys.executable} has no {module}")
    # torch.utils.cpp_extension calls ninja by its name.
    environment = {"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    run(sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", folder, HERE / "tarn_torch",
        **environment)
    wheel = made(folder, f"tarn_torch-{VERSION}-*.whl")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", folder / "site", wheel)
    # A library that is not there would be compiled again, which needs sources that the wheel does not have.
    run(sys.executable, "-c", "import tarn_torch, torch; tarn_torch.install(); assert tarn_torch.is_installed()", cwd=folder,
        PYTHONPATH=str(folder / "site"))


def main():
    recipes = {each.__name__: each for each in (conan, debian, meson, python, tarn_torch)}
    WORK.mkdir(parents=True, exist_ok=True)
    worked = failed = skipped = 0
    for name in ("debian/changelog", "vcpkg/tarn/vcpkg.json"):
        if VERSION not in (HERE / name).read_text():
            failed += 1
            print(f"FAILED: {name} does not have the version {VERSION}")
    for name in sys.argv[2:] or recipes:
        try:
            recipes[name]()
            worked += 1
            print(f"{name} works", flush=True)
        except Skipped as why:
            skipped += 1
            print(f"SKIPPED: {name}: {why}", flush=True)
        except Failed as why:
            failed += 1
            print(f"FAILED: {name}: {why}", flush=True)
    print(f"evidence: packages worked={worked} failed={failed} skipped={skipped}")
    return 1 if failed else 0 if worked else 77


if __name__ == "__main__":
    sys.exit(main())
