"""Builds the engine and its GPU check, and runs it: see README.md. Needs no TensorFlow."""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes.util
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tfring import gpu_libraries  # noqa: E402

_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-pthread", '-DTFRING_VERSION="check"', f"-I{ROOT}")
_INCLUDES = (f"-I{ROOT}/tests/engine", f"-I{ROOT}/tests/engine/gpu_double")
_AVX2 = ("-mavx2", "-mf16c", "-ffp-contract=off")


def _compile(compiler: str, source: pathlib.Path, folder: pathlib.Path) -> str:
    target = folder / (str(source.relative_to(ROOT)).replace("/", "_") + ".o")
    newest = max(path.stat().st_mtime for path in ROOT.glob("custom_ops/core/**/*.h"))
    if target.exists() and target.stat().st_mtime > max(newest, source.stat().st_mtime):
        return str(target)
    flags = [*_FLAGS, *_INCLUDES, "-DTFRING_HAVE_AVX2_KERNELS=1"]
    if source.name.endswith("_avx2.cc"):
        flags += _AVX2
    subprocess.run([compiler, *flags, "-c", str(source), "-o", str(target)], check=True)
    return str(target)


def build(folder: pathlib.Path, jobs: int, double: bool) -> pathlib.Path:
    """Compiles the engine and the check, and the double if asked; returns the program."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or sys.exit("run.py: no g++")
    folder.mkdir(parents=True, exist_ok=True)
    sources = sorted(ROOT.glob("custom_ops/core/**/*.cc"))
    sources.append(ROOT / "tests/gpu/gpu_check.cc")
    doubles = sorted(ROOT.glob("tests/engine/gpu_double/*.cc")) if double else []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(lambda one: _compile(compiler, one, folder), sources))
        double_objects = list(pool.map(lambda one: _compile(compiler, one, folder), doubles))
    program = folder / "gpu_check"
    end = ["-pthread", "-lrt", "-ldl"]
    subprocess.run([compiler, *objects, "-o", str(program), *end], check=True)
    if doubles:
        library = str(folder / "libgpu_double.so")
        subprocess.run([compiler, "-shared", *double_objects, "-o", library, *end], check=True)
    return program


def _library(given: str | None, wheel: str | None, name: str) -> str:
    found = given or wheel or ctypes.util.find_library(name)
    if found is None:
        sys.exit(f"run.py: no lib{name}: install the NVIDIA wheel, or pass --{name}")
    return found


def main() -> int:
    """Runs everything; the exit code is 0 if all passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--double", action="store_true", help="on the double, without a GPU")
    parser.add_argument("--cudart", help="path of libcudart.so; default: found")
    parser.add_argument("--nccl", help="path of libnccl.so.2; default: found")
    parser.add_argument("--folder", default="/tmp/tfring_gpu_check", help="where to build")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=480, help="seconds in all; default 480")
    parser.add_argument("--only", default="", help="tests whose name contains this")
    options = parser.parse_args()
    began = time.monotonic()
    folder = pathlib.Path(options.folder)
    program = build(folder, options.jobs, options.double)
    print(f"built in {time.monotonic() - began:.0f} s", flush=True)
    environment = {**os.environ, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    # Two ranks on one GPU must both find room on it.
    environment.setdefault("NCCL_MAX_CTAS", "16")
    if options.double:
        double = str(folder / "libgpu_double.so")
        environment |= {"GPU_CHECK_CUDART": double, "GPU_CHECK_NCCL": double}
        environment["GPU_CHECK_DOUBLE"] = "1"
    else:
        cudart = _library(options.cudart, gpu_libraries.cudart(), "cudart")
        nccl = _library(options.nccl, gpu_libraries.nccl(), "nccl")
        environment |= {"GPU_CHECK_CUDART": cudart, "GPU_CHECK_NCCL": nccl}
        print(f"CUDA {cudart}\nNCCL {nccl}", flush=True)
    left = options.limit - (time.monotonic() - began)
    try:
        done = subprocess.run(
            [str(program), options.only], env=environment, timeout=left, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"run.py: not done after {options.limit:.0f} s", file=sys.stderr)
        return 124
    print(f"{time.monotonic() - began:.0f} s in all")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
