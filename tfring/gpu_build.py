"""Builds the ops' kernels for GPUs, against the TensorFlow that is installed.

The stream of a GPU can only be had from TensorFlow's C++ API, which changes with every version. So
these kernels are not in the wheel but are built where they are used, once per TensorFlow, and kept
in a cache. All that is needed is a C++ compiler and headers, which the wheels of TensorFlow and
NVIDIA bring; not the CUDA toolkit.
"""

from __future__ import annotations

import argparse
import dataclasses
import glob
import hashlib
import json
import logging
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from tfring import _native, gpu_libraries
from tfring.version import __version__

__all__ = ["GpuBuildError", "build_gpu", "is_built", "load", "main", "remove"]

_DESCRIPTION = """\
Builds the kernels for GPUs against the installed TensorFlow: once per machine
or image, and again when TensorFlow changes. Takes half a minute; needs g++ and
headers of NVIDIA's wheels (pip install ".[gpu]" in tfring's folder), not the
CUDA toolkit."""
_EXAMPLES = """\
examples:
  {prog}                build, if it is not there already
  {prog} --force        build again
  {prog} --remove

docs/gpu.md says more."""
_LIBRARY = "libtfring_gpu.so"
_STAMP = "built.json"
_COMPILERS = ("g++", "c++", "clang++")
_SOURCES = (
    "custom_ops/tensorflow/gpu/gpu_call.cc",
    "custom_ops/tensorflow/gpu/gpu_kernels.cc",
)
_HEADERS = (
    "custom_ops/core/tfring.h",
    "custom_ops/tensorflow/adapter.h",
    "custom_ops/tensorflow/gpu/gpu_call.h",
    "custom_ops/tensorflow/request.h",
)
# A header of each NVIDIA wheel, by how compilers name it.
_WHEELS = {
    "cuda": "nvidia-cuda-runtime-cu12",
    "crt/": "nvidia-cuda-nvcc-cu12",
    "nv/": "nvidia-cuda-cccl-cu12",
    "nccl": "nvidia-nccl-cu12",
}
_INSTALL = "Run `pip install '.[gpu]'` in tfring's folder"
_COMPILE_SECONDS = 900
_log = logging.getLogger("tfring")


class GpuBuildError(RuntimeError):
    """Raised when the kernels for GPUs cannot be built; the text says why and the way out."""


@dataclasses.dataclass(frozen=True)
class _Target:
    """The TensorFlow that is built against."""

    version: str
    git_version: str
    folder: str
    flags: tuple[str, ...]

    @staticmethod
    def of(tf: Any) -> _Target:
        return _Target(
            tf.__version__,
            tf.version.GIT_VERSION,
            tf.sysconfig.get_lib(),
            (*tf.sysconfig.get_compile_flags(), "-DGOOGLE_CUDA=1"),
        )


def build_gpu(force: bool = False) -> str:
    """Builds the kernels for GPUs against the installed TensorFlow, unless that has been done.

    Takes about half a minute. The result goes to a folder of its own for each TensorFlow and each
    tfring, below `~/.cache/tfring/gpu` (`XDG_CACHE_HOME` moves it); `tfring.init` then finds it.
    Run it once per machine or image, also as `tfring build-gpu`; ranks that share the cache may
    call it at the same time. It is tried before it is kept: nothing is left of one that fails.

    Args:
        force: build again even if it is there. Default False.

    Returns:
        The path of the library.

    Raises:
        GpuBuildError: it cannot be built: this TensorFlow is one for CPUs, there is no C++
            compiler, headers are missing, or compiler or loader report an error.
        ImportError: TensorFlow is missing or too old.

    Example:
        >>> import tfring, tfring.gpu_build
        >>> try:
        ...     path = tfring.build_gpu()
        ... except tfring.gpu_build.GpuBuildError as error:
        ...     print("no GPU kernels")
        no GPU kernels
    """
    from tfring import _ops

    tf = _ops.tensorflow()
    if not tf.sysconfig.get_build_info().get("is_cuda_build", False):
        raise GpuBuildError(
            f"the GPU kernels cannot be built: TensorFlow {tf.__version__} in "
            f"{tf.sysconfig.get_lib()} is built without CUDA. First run `pip "
            "uninstall tensorflow-cpu tensorflow`, then `pip install '.[gpu]'` in tfring's folder: "
            "in the other order, the first deletes files of the second."
        )
    target = _Target.of(tf)
    path = _path(target)
    if os.path.exists(path) and not _cut_short(path) and not force:
        return str(path)
    compiler = _compiler()
    try:
        _build(compiler, target, path)
    except OSError as error:
        raise GpuBuildError(
            f"the GPU kernels cannot be kept in {path.parent}: {error}. Set XDG_CACHE_HOME to a "
            "folder that can be written."
        ) from error
    return str(path)


def _build(compiler: str, target: _Target, path: pathlib.Path) -> None:
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent.parent) as folder:
        built = pathlib.Path(folder) / _LIBRARY
        _compile(compiler, target, built)
        _try(built)
        stamp = {
            "tensorflow": target.version,
            "folder": target.folder,
            "machine": platform.machine(),
            "tfring": __version__,
            "compiler": compiler,
            "bytes": built.stat().st_size,
        }
        (built.parent / _STAMP).write_text(json.dumps(stamp))
        path.parent.mkdir(exist_ok=True)
        # The stamp first: a library that is there has one.
        for name in (_STAMP, _LIBRARY):
            os.replace(built.parent / name, path.parent / name)


def is_built(tf: Any) -> bool:
    """Returns whether the kernels for GPUs are built for this TensorFlow."""
    is_cuda = tf.sysconfig.get_build_info().get("is_cuda_build", False)
    return bool(is_cuda) and os.path.exists(_path(_Target.of(tf)))


def load(tf: Any) -> str | None:
    """Loads the kernels for GPUs that were built for this TensorFlow, into a GPU's TensorFlow.

    Args:
        tf: the module `tensorflow`, which has loaded the ops.

    Returns:
        The library's path; None where TensorFlow is one for CPUs or nothing was built.

    Raises:
        ImportError: TensorFlow or tfring was changed since kernels were built here: without them
            steps would take longer, unseen. Or they cannot be loaded.
    """
    if not tf.sysconfig.get_build_info().get("is_cuda_build", False):
        return None
    path = _path(_Target.of(tf))
    # Not Path.exists, which raises where the home is another user's.
    if os.path.exists(path):
        if _cut_short(path):
            raise ImportError(
                f"{path} is damaged: it has {path.stat().st_size} bytes, not those that were "
                "built. Run `tfring build-gpu`."
            )
        try:
            tf.load_library(str(path))
        except (tf.errors.OpError, OSError) as error:
            raise ImportError(
                f"{path} cannot be loaded into TensorFlow {tf.__version__}: {error}. "
                "Run `tfring build-gpu --force`."
            ) from error
        return str(path)
    others = _others(tf.sysconfig.get_lib())
    if others:
        raise ImportError(
            f"tfring's GPU kernels were built for {' and '.join(others)}, but this is tfring "
            f"{__version__} with TensorFlow {tf.__version__}. Run `tfring build-gpu` once to build "
            "them again, or `tfring build-gpu --remove` to do without."
        )
    if tf.config.list_physical_devices("GPU"):
        _log.warning(
            "TensorFlow sees a GPU, but tfring's kernels for GPUs are not built: collectives go "
            "through host memory. Run `tfring build-gpu` once."
        )
    return None


def _cut_short(path: pathlib.Path) -> bool:
    """Whether a library is not as long as it was built: loading it would kill the process."""
    try:
        size = json.loads((path.parent / _STAMP).read_text())["bytes"]
    except (OSError, ValueError, KeyError):
        return False
    return bool(path.stat().st_size != size)


def remove() -> None:
    """Removes all kernels for GPUs from the cache."""
    shutil.rmtree(_cache(), ignore_errors=True)


def _cache() -> pathlib.Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(home) / "tfring" / "gpu"


def _path(target: _Target) -> pathlib.Path:
    """Where the library for a TensorFlow is: a folder for all that it depends on."""
    digest = hashlib.sha256()
    named = (__version__, target.git_version, target.folder, *target.flags, _libraries())
    # Homes are shared by machines of different kinds.
    for text in (*named, platform.machine()):
        digest.update(text.encode() + b"\0")
    for name in (*_SOURCES, *_HEADERS):
        digest.update((_source_folder() / name).read_bytes())
    folder = f"tensorflow-{target.version}-{digest.hexdigest()[:16]}"
    return _cache() / folder / _LIBRARY


def _others(folder: str) -> list[str]:
    """What kernels in the cache were built for, of a TensorFlow in this folder, for people.

    Those of other environments and machines, which share the cache, say nothing about this one.
    """
    found, here = set(), platform.machine()
    for library in glob.glob(f"{glob.escape(str(_cache()))}/*/{_LIBRARY}"):
        try:
            built = json.loads((pathlib.Path(library).parent / _STAMP).read_text())
            name = f"tfring {built['tfring']} with TensorFlow {built['tensorflow']}"
        except (OSError, ValueError, KeyError):
            continue  # What is left of a build that was killed, or of a full disk.
        if built.get("folder") == folder and built.get("machine", here) == here:
            found.add(name)
    return sorted(found)


def _source_folder() -> pathlib.Path:
    """The folder that holds `custom_ops`: of the installed package, or the source tree."""
    package = pathlib.Path(_native.__file__)
    for folder in (package.parent / "_gpu", package.resolve().parents[1]):
        if (folder / _SOURCES[0]).exists():
            return folder
    raise GpuBuildError(_native.not_installed(_SOURCES[0]))


def _libraries() -> str:
    """The folder of the libraries that the kernels link to."""
    return os.path.dirname(os.path.realpath(_native.library_path("libtfring_tensorflow.so")))


def _compiler() -> str:
    chosen = os.environ.get("CXX")
    for name in (chosen,) if chosen else _COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return path
    looked = f"CXX={chosen}" if chosen else ", ".join(_COMPILERS)
    raise GpuBuildError(
        f"the GPU kernels cannot be built: there is no C++ compiler ({looked}). Install g++ 9 or "
        "later, or set CXX, and run `tfring build-gpu`."
    )


def _command(compiler: str, target: _Target, output: pathlib.Path) -> list[str]:
    sources = _source_folder()
    # System headers: warnings in them are not ours.
    folders = [flag[2:] for flag in target.flags if flag.startswith("-I")]
    folders += gpu_libraries.include_folders()
    libraries = _libraries()
    return [
        *(compiler, "-O2", "-fPIC", "-shared", "-std=c++17", "-fvisibility=hidden"),
        *(flag for flag in target.flags if not flag.startswith(("-I", "--std"))),
        f'-DTFRING_TENSORFLOW_VERSION="{target.version}"',
        f"-I{sources}",
        *(f"-isystem{folder}" for folder in folders),
        *(str(sources / name) for name in _SOURCES),
        *("-o", str(output)),
        *(f"-L{libraries}", "-ltfring_tensorflow", "-ltfring", f"-Wl,-rpath,{libraries}"),
        *(f"-L{target.folder}", "-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"),
        # What is missing is found out now; and TensorFlow is in the process before.
        "-Wl,--no-undefined",
    ]


def _compile(compiler: str, target: _Target, output: pathlib.Path) -> None:
    command = _command(compiler, target, output)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpuBuildError(f"the GPU kernels cannot be built: {compiler}: {error}") from error
    if done.returncode == 0:
        return
    missing = re.search(r"fatal error: '?([^':\s]+)'?(: No such file| file not found)", done.stderr)
    if missing is not None:
        raise GpuBuildError(_missing_header(missing[1]))
    lines = [line for line in done.stderr.splitlines() if "error" in line or "undefined" in line]
    raise GpuBuildError(
        f"the GPU kernels cannot be built against TensorFlow {target.version}: "
        f"{lines[0] if lines else done.stderr[-300:]!r} "
        f"(`{compiler}` ended with {done.returncode})"
    )


def _missing_header(header: str) -> str:
    short = header.split("/include/")[-1]
    wheels = [wheel for start, wheel in _WHEELS.items() if short.startswith(start)]
    way = f"Run `pip install {wheels[0]}`" if wheels else _INSTALL
    return f"the GPU kernels cannot be built: there is no header {header}. {way}."


_TRY = """
import sys, tensorflow as tf
from tfring import _native
tf.load_op_library(_native.library_path("libtfring_tensorflow.so"))
tf.load_library(sys.argv[1])
"""


def _try(path: pathlib.Path) -> None:
    """Loads the library in a process of its own: what cannot be loaded is not kept."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", _TRY, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_COMPILE_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise GpuBuildError(f"the GPU kernels were built but cannot be loaded: {last}")


def main(argv: Sequence[str], prog: str) -> int:
    """Runs `tfring build-gpu`.

    Args:
        argv: the arguments.
        prog: how the command was called.

    Returns:
        The exit code: 0, or 1 with one line on stderr.
    """
    parser = argparse.ArgumentParser(
        prog=prog,
        description=_DESCRIPTION,
        epilog=_EXAMPLES.format(prog=prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--force", action="store_true", help="build again even if it is there")
    parser.add_argument(
        "--remove", action="store_true", help="remove what was built, for all TensorFlows"
    )
    options = parser.parse_args(argv)
    if options.remove:
        remove()
        return 0
    try:
        print(build_gpu(force=options.force))
    except (GpuBuildError, ImportError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    return 0
