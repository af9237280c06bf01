"""Builds the engine and its GPU check, and runs it: see README.md. Needs no TensorFlow."""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import find
from find import ROOT

# Tests of gpu_check.cc, whether they need NCCL, and the seconds they may take.
_STEPS = (
    ("results_one_host", False, 90),
    ("results_one_nccl", True, 90),
    ("results_two_host", False, 90),
    ("results_two_nccl", True, 120),
    ("xla_two_host", False, 60),
    ("xla_two_nccl", True, 60),
    ("killed_peer", True, 90),
    ("times_one", True, 90),
    ("times_two", True, 90),
)
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-pthread", '-DTFRING_VERSION="check"', f"-I{ROOT}")
_INCLUDES = (f"-I{ROOT}/tests/engine", f"-I{ROOT}/tests/engine/gpu_double")
# What XLA calls on CUDA needs no TensorFlow.
_XLA = ("query", "world_holder", "xla_call", "xla_gpu", "xla_memory", "xla_run")
_AVX2 = ("-mavx2", "-mf16c", "-ffp-contract=off")
_END = ("-pthread", "-lrt", "-ldl")
_NOT_WHOLE = "NOT WHOLE"  # said where time was too short for a step's judgement
# bytes, microseconds of tfring, of a blocking and of a nonblocking communicator, ratio, verdict
_ROW = re.compile(
    r"^ *(\d+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) *(ok|MISSED|not judged)?$", re.MULTILINE
)


@dataclasses.dataclass
class Step:
    """How one step went."""

    name: str
    outcome: str  # "passed", or what went wrong
    seconds: float = 0.0
    text: str = ""

    def rows(self) -> list[dict[str, Any]]:
        """Returns the table of times in its text, in microseconds."""
        names = ("bytes", "tfring", "nccl", "nccl_nonblocking", "ratio")
        return [
            {**{n: float(v) for n, v in zip(names, row[:-1], strict=True)}, "verdict": row[-1]}
            for row in _ROW.findall(self.text)
        ]


def _compile(compiler: str, source: pathlib.Path, folder: pathlib.Path) -> str:
    target = folder / (str(source.relative_to(ROOT)).replace("/", "_") + ".o")
    headers = (*ROOT.glob("custom_ops/**/*.h"), *ROOT.glob("tests/**/*.h"))
    newest = max(path.stat().st_mtime for path in (*headers, source))
    if target.exists() and target.stat().st_mtime > newest:
        return str(target)
    flags = [*_FLAGS, *_INCLUDES]
    if platform.machine() in ("x86_64", "AMD64"):
        flags.append("-DTFRING_HAVE_AVX2_KERNELS=1")
    if source.name.endswith("_avx2.cc"):
        flags += _AVX2
    subprocess.run([*compiler.split(), *flags, "-c", str(source), "-o", str(target)], check=True)
    return str(target)


def build(folder: pathlib.Path, jobs: int, double: bool) -> pathlib.Path:
    """Compiles the engine and the check, and the double if asked; returns the program."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise FileNotFoundError("no g++; set CXX")
    folder.mkdir(parents=True, exist_ok=True)
    sources = sorted(ROOT.glob("custom_ops/core/**/*.cc"))
    if platform.machine() not in ("x86_64", "AMD64"):
        sources = [source for source in sources if not source.name.endswith("_avx2.cc")]
    sources += [ROOT / f"custom_ops/tensorflow/{part}.cc" for part in _XLA]
    sources.append(ROOT / "tests/gpu/gpu_check.cc")
    doubles = sorted(ROOT.glob("tests/engine/gpu_double/*.cc")) if double else []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(lambda one: _compile(compiler, one, folder), sources))
        double_objects = list(pool.map(lambda one: _compile(compiler, one, folder), doubles))
    program = folder / "gpu_check"
    linker = compiler.split()
    subprocess.run([*linker, *objects, "-o", str(program), *_END], check=True)
    if doubles:
        library = str(folder / "libgpu_double.so")
        subprocess.run([*linker, "-shared", *double_objects, "-o", library, *_END], check=True)
    return program


def _run(program: pathlib.Path, name: str, environment: dict[str, str], limit: float) -> Step:
    """Runs one test, says what it says, and ends all of its processes when time is up."""
    began = time.monotonic()
    step = Step(name, "passed")
    child = subprocess.Popen(
        [str(program), name],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    timer = threading.Timer(limit, lambda: os.killpg(child.pid, signal.SIGKILL))
    timer.start()
    assert child.stdout is not None
    for line in child.stdout:
        print(line, end="", flush=True)
        step.text += line
    code = child.wait()
    timer.cancel()
    step.seconds = time.monotonic() - began
    if code != 0:
        late = step.seconds >= limit
        step.outcome = f"not done after {limit:.0f} s" if late else f"failed (exit code {code})"
        judged_wrong = "MISSED" in step.text
        if not late and _NOT_WHOLE in step.text and not judged_wrong:
            step.outcome = "not whole: not all sizes were measured in enough rounds"
    return step


def _environment(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, str]:
    """Returns the environment of the steps; without GPU_CHECK_NCCL where there is no NCCL."""
    environment = {**os.environ, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    # Two ranks on one GPU must both find room on it.
    environment.setdefault("NCCL_MAX_CTAS", "16")
    double = str(folder / "libgpu_double.so")
    cudart = double if options.double else find.cudart(options.cudart)
    nccl = double if options.double else find.nccl(options.nccl)
    if options.double:
        environment["GPU_CHECK_DOUBLE"] = "1"
    print(f"CUDA {cudart}\nNCCL {nccl}", flush=True)
    if cudart is None:
        raise FileNotFoundError("no libcudart.so: install nvidia-cuda-runtime-cu12 or use --cudart")
    environment["GPU_CHECK_CUDART"] = cudart
    if nccl is not None:
        environment["GPU_CHECK_NCCL"] = nccl
    return environment


def _machine() -> str:
    query = "--query-gpu=name,driver_version,memory.total"
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi: {error}"
    return done.stdout.strip() or done.stderr.strip()


def _steps(options: argparse.Namespace, began: float) -> list[Step]:
    folder = pathlib.Path(options.folder)
    try:
        program = build(folder, options.jobs, options.double)
        seconds = time.monotonic() - began
        steps = [Step("build", "passed", seconds)]
        print(f"built in {seconds:.0f} s", flush=True)
        environment = _environment(options, folder)
    except (OSError, subprocess.CalledProcessError) as error:
        return [Step("build", str(error), time.monotonic() - began)]
    for name, needs_nccl, limit in _STEPS:
        if options.only not in name:
            continue
        print(f"\n--- {name}", flush=True)
        left = options.limit - (time.monotonic() - began)
        if needs_nccl and "GPU_CHECK_NCCL" not in environment:
            steps.append(Step(name, "not run: no libnccl.so was found, use --nccl"))
        elif left < 1:
            steps.append(Step(name, "not run: no time was left"))
        else:
            steps.append(_run(program, name, environment, min(limit, left)))
    return steps


def _report(steps: list[Step], machine: str, seconds: float) -> str:
    lines = [f"{step.name:18} {step.seconds:6.1f} s  {step.outcome}" for step in steps]
    return "\n".join([machine, *lines, f"{seconds:.0f} s in all"])


def _keep(folder: pathlib.Path, steps: list[Step], machine: str, report: str) -> None:
    """Writes what was seen: all of it for programs, and the report and every word for people."""
    folder.mkdir(parents=True, exist_ok=True)
    told = [{**dataclasses.asdict(step), "rows": step.rows()} for step in steps]
    whole = {"machine": machine, "steps": told}
    (folder / "gpu_check.json").write_text(json.dumps(whole, indent=1))
    texts = [f"--- {step.name}\n{step.text}" for step in steps]
    (folder / "gpu_check.txt").write_text("\n".join([report, "", *texts]))


def main() -> int:
    """Runs everything; the exit code is 0 if all passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--double", action="store_true", help="on the double, without a GPU")
    parser.add_argument("--cudart", help="path of libcudart.so; default: found")
    parser.add_argument("--nccl", help="path of libnccl.so.2; default: found")
    parser.add_argument("--folder", default="/tmp/tfring_gpu_check", help="where to build")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=450, help="seconds in all; default 450")
    parser.add_argument("--only", default="", help="steps whose name contains this")
    parser.add_argument("--out", default=os.environ.get("OUT"), help="folder of reports; $OUT")
    options = parser.parse_args()
    began = time.monotonic()
    machine = "the double" if options.double else _machine()
    print(machine, flush=True)
    steps = _steps(options, began)
    report = _report(steps, machine, time.monotonic() - began)
    print(f"\n{report}", flush=True)
    if options.out:
        _keep(pathlib.Path(options.out), steps, machine, report)
    return 0 if all(step.outcome == "passed" for step in steps) else 1


if __name__ == "__main__":
    sys.exit(main())
