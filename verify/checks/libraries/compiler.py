"""C and C++ compilers: torch.compile generates C++ for the CPU, and Triton its launcher in C.

Triton compiles a small Python extension for each driver and kernel, with `$CC`, gcc or clang (in
that order) and Python.h (triton/runtime/build.py); inductor uses `$CXX` or g++.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from typing import Any, Dict, Optional, Sequence, Tuple

from verify.model.check import Check, Context, Outcome, Status
from verify.running.children import patient, scratch
from verify.running.symptoms import last_words

LIMIT_S = 60.0
INSTALL = "apt-get install -y --no-install-recommends gcc g++ libc6-dev"
ADD = "lock and build the image with --apt g++ --apt python3-dev, or in a Dockerfile: " + INSTALL
ANSWER = 42  # what the compiled code must return

_EXTENSION = """#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *unused) { return PyLong_FromLong(6L * 7); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {0, 0, 0, 0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "gp_answer", 0, -1, methods, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_gp_answer(void) { return PyModule_Create(&module); }
"""
_PROGRAM = """#include <cmath>
#include <cstdio>
#include <vector>
int main() {
    std::vector<double> halves(84, 0.5);
    double sum = 0;
    for (double half : halves) sum += std::fabs(half);
    std::printf("%d", static_cast<int>(sum));
}
"""


@dataclass(frozen=True)
class CompilerTrial:
    """The result of one compiler. `path` is None if there is no compiler."""

    language: str
    path: Optional[str] = None
    answer: Optional[int] = None
    error: str = ""


@dataclass(frozen=True)
class Promise:
    """What in this image needs a compiler."""

    compiles: bool = True  # this torch has torch.compile
    triton: bool = False
    nvcc: Optional[str] = None  # a devel image, which must be able to compile


def check_compiler(context: Context) -> Outcome:  # noqa: ARG001
    """Compile a Python extension and a C++ program, and run both."""
    folder = scratch()
    try:
        trials = (_extension(folder), _program(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return judge_compiler(trials, _promise())


def _promise() -> Promise:
    import torch

    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    return Promise(
        compiles=hasattr(torch, "compile"),
        triton=importlib.util.find_spec("triton") is not None,
        nvcc=nvcc if os.path.exists(nvcc) else None,
    )


def _extension(folder: str) -> CompilerTrial:
    path = _find("CC", ("gcc", "clang"))
    if path is None:
        return CompilerTrial("C")
    source, built = os.path.join(folder, "answer.c"), os.path.join(folder, "gp_answer.so")
    include = sysconfig.get_paths()["include"]
    flags = ["-shared", "-fPIC", "-I" + include, "-o", built]
    error = _compile([path, *flags], source, _EXTENSION)
    if error:
        return CompilerTrial("C", path, None, error)
    try:
        return CompilerTrial("C", path, int(_load(built).answer()))
    except Exception as problem:
        return CompilerTrial("C", path, None, "{}: {}".format(type(problem).__name__, problem))


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("gp_answer", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _program(folder: str) -> CompilerTrial:
    path = _find("CXX", ("g++", "clang++"))
    if path is None:
        return CompilerTrial("C++")
    source, built = os.path.join(folder, "answer.cpp"), os.path.join(folder, "answer")
    error = _compile([path, "-O1", "-std=c++17", "-o", built], source, _PROGRAM)
    if error:
        return CompilerTrial("C++", path, None, error)
    try:
        done = subprocess.run([built], stdout=subprocess.PIPE, check=True, timeout=patient(LIMIT_S))
        return CompilerTrial("C++", path, int(done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError) as problem:
        return CompilerTrial("C++", path, None, "{}: {}".format(type(problem).__name__, problem))


def _find(variable: str, names: Sequence[str]) -> Optional[str]:
    """The compiler that Triton and inductor would use. A name that is not found is kept as is."""
    asked = os.environ.get(variable, "").split()
    if asked:
        return shutil.which(asked[0]) or asked[0]
    return next(filter(None, map(shutil.which, names)), None)


def _compile(argv: Sequence[str], source: str, text: str) -> str:
    """Compile; empty on success, else the compiler's message."""
    with open(source, "w", encoding="utf-8") as file:
        file.write(text)
    try:
        done = subprocess.run(
            [*argv, source],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=patient(LIMIT_S),
        )
    except (OSError, subprocess.SubprocessError) as problem:
        return "{}: {}".format(type(problem).__name__, problem)
    said = done.stdout.decode("utf-8", "replace")
    telling = next((line for line in said.splitlines() if "error" in line), "")
    return (telling or last_words(said) or "it ended with 1") if done.returncode else ""


def judge_compiler(trials: Sequence[CompilerTrial], promise: Promise) -> Outcome:
    """Whether each installed compiler works; a devel image must have one.

    A runtime image need not have one: the message says what will not work, and it is not a failure.
    """
    measured: Dict[str, Any] = {trial.language: _row(trial) for trial in trials}
    measured["triton"] = promise.triton
    expected = {"answer": ANSWER}
    broken = next((t for t in trials if t.path and t.answer != ANSWER), None)
    if broken:
        message, cause, fix = _broken(broken)
        return Outcome(Status.FAIL, message, cause, fix, measured, expected)
    missing = [trial.language for trial in trials if trial.path is None]
    if missing and promise.nvcc:
        message = "nvcc is here ({}), but no {} compiler".format(promise.nvcc, missing[0])
        cause = "nvcc needs the system's compiler for host code"
        return Outcome(Status.FAIL, message, cause, ADD, measured, expected)
    if missing:
        message = "no {} compiler: {}".format(" and no ".join(missing), _lost(missing, promise))
        return Outcome(Status.SKIP, message, fix=ADD, measured=measured, expected=expected)
    paths = ", ".join("{} by {}".format(trial.language, trial.path) for trial in trials)
    message = "compiled and ran {}".format(paths)
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _row(trial: CompilerTrial) -> Dict[str, Any]:
    return {"compiler": trial.path, "answer": trial.answer, "error": trial.error or None}


def _broken(trial: CompilerTrial) -> Tuple[str, str, str]:
    message = "{} ({}) cannot be used".format(trial.path, trial.language)
    if not trial.error:
        message = "a program compiled with {} printed {}, not {}".format(
            trial.path, trial.answer, ANSWER
        )
        return (
            message,
            "the compiler generates wrong code",
            INSTALL.replace("install", "--reinstall install"),
        )
    message += ": " + trial.error
    if "Python.h" in trial.error:
        cause = "Python's header files are missing, and Triton compiles an extension of Python"
        return (
            message,
            cause,
            "install them: apt-get install -y --no-install-recommends libpython3-dev",
        )
    cause = "the compiler is incomplete: headers, linker, or parts of it are missing"
    if "Error" in trial.error.split(":")[0]:
        cause = "CC or CXX names a program that is not there or does not run"
        return message, cause, "unset CC and CXX, or name a compiler; " + INSTALL
    return message, cause, INSTALL


def _lost(missing: Sequence[str], promise: Promise) -> str:
    lost = []
    if promise.compiles and "C++" in missing:
        lost.append("torch.compile will not work on the CPU")
    if promise.triton and "C" in missing:
        lost.append("Triton (torch.compile on a GPU) needs one")
    return "; ".join(lost) or "only extensions that users compile need one"


CHECKS = (
    Check("libraries.compiler", "A compiler for torch.compile", check_compiler, "standard", 200),
)
