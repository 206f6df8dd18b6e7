"""JAX's libraries: jax, jaxlib and the CUDA plugin must fit each other, and the plan."""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass, replace
from typing import Any, Optional, Tuple

from verify.backends.jax import BACKEND, MAJORS, gpus, installed, plugin
from verify.checks.libraries import dialect, files
from verify.checks.libraries.dialect import (
    FoundLibraries,
    as_asked,
    judge_cudnn,
    library_number,
    listed,
    numbers,
)
from verify.checks.libraries.pytorch import REBUILD, cuda_text, cudnn_text
from verify.device import nvrtc
from verify.device.maps import mapped, read_maps
from verify.model.check import Context, Outcome, Status


@dataclass(frozen=True)
class PluginParts:
    """The versions of JAX's parts; None: not installed."""

    jaxlib: Optional[str]
    plugin: Optional[str]
    pjrt: Optional[str]
    cuda: Optional[int] = None  # the plugin's major version of CUDA
    plugins: Tuple[str, ...] = ()  # all that are installed


def framework(context: Context) -> Outcome:
    """Read the versions of JAX and Python, and the metadata of JAX's parts."""
    import jax

    found = plugin()
    cuda = str(found[0]) if found else None
    here = FoundLibraries.here(str(jax.__version__), cuda, str(jax.__file__))
    outcome = dialect.judge_framework(here, context.expect, BACKEND)
    return judge_parts(outcome, _parts())


def _parts() -> PluginParts:
    found = plugin()
    major = found[0] if found else None
    name = "jax-cuda{}-".format(major)
    names = ("jax-cuda{}-plugin".format(major) for major in MAJORS)
    return PluginParts(
        installed("jaxlib"),
        installed(name + "plugin"),
        installed(name + "pjrt"),
        major,
        tuple(name for name in names if installed(name)),
    )


def judge_parts(outcome: Outcome, parts: PluginParts) -> Outcome:
    """The framework's outcome, unless a part is of another version: JAX drops such a plugin."""
    measured = {
        **outcome.measured,
        "jaxlib": parts.jaxlib,
        "plugin": parts.plugin,
        "pjrt": parts.pjrt,
    }
    outcome = replace(outcome, measured=measured)
    if outcome.status is not Status.PASS or parts.plugin is None:
        return outcome
    if len(parts.plugins) > 1:
        message = "{} are installed together".format(listed(parts.plugins))
        cause = "both provide JAX's platform cuda, and JAX uses only one"
        fix = "uninstall all but one, each with its jax-cudaNN-pjrt"
        return Outcome(Status.FAIL, message, cause, fix, measured, outcome.expected)
    names = ("jax-cuda{}-plugin".format(parts.cuda), "jax-cuda{}-pjrt".format(parts.cuda))
    for name, version in zip(names, (parts.plugin, parts.pjrt)):
        if numbers(version or "")[:3] != numbers(parts.jaxlib or "")[:3]:
            message = "{} {} beside jaxlib {}".format(name, version or "missing", parts.jaxlib)
            cause = "JAX ignores a plugin of another version and computes on the CPU"
            fix = "install {}=={}".format(name, parts.jaxlib)
            return Outcome(Status.FAIL, message, cause, fix, measured, outcome.expected)
    return outcome


@dataclass(frozen=True)
class CudaNumbers:
    """A library's version at run time and at JAX's build, as NVIDIA's numbers."""

    now: Optional[int] = None
    built: Optional[int] = None
    error: Optional[str] = None


def versions() -> Any:
    """JAX's own module of CUDA library versions, which loads the libraries; None without one."""
    names = ["jax_cuda{}_plugin._versions".format(major) for major in MAJORS]
    return next(filter(None, map(_module, (*names, "jaxlib.cuda._versions"))), None)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def _ask(stem: str, now: str, built: str) -> CudaNumbers:
    """Read versions through JAX's own functions; if it has none, from the mapped library."""
    asked = versions()
    if asked is None:
        with contextlib.suppress(Exception):
            gpus()  # loads the libraries
        return CudaNumbers(library_number(stem), None, "JAX has not loaded it")
    try:
        return CudaNumbers(int(getattr(asked, now)()), int(getattr(asked, built)()))
    except Exception as problem:
        return CudaNumbers(error=str(problem).partition("\n")[0])


def cuda(context: Context) -> Outcome:
    """Query the CUDA runtime, as JAX does when it starts."""
    found = plugin()
    if found is None:
        return BACKEND.without_cuda({})
    asked = _ask("libcudart", "cuda_runtime_get_version", "cuda_runtime_build_version")
    return judge_cuda(found[0], asked, context.expect.cuda)


def judge_cuda(major: int, asked: CudaNumbers, expected: Optional[str]) -> Outcome:
    """Whether CUDA has the plugin's major version and is the plan's."""
    now = None if asked.now is None else cuda_text(asked.now)
    built = None if asked.built is None else cuda_text(asked.built)
    measured, wanted = {"runtime": now, "built_with": built}, {"cuda": expected, "major": major}
    if now is None:
        message = "the CUDA runtime does not load: {}".format(asked.error or "no version")
        cause = "libcudart.so.{} is missing from the image, or needs what is".format(major)
        fix = "install jax[cuda{}], whose nvidia- packages bring it; {}".format(major, REBUILD)
        return Outcome(Status.FAIL, message, cause, fix, measured, wanted)
    if numbers(now)[0] != major:
        message = "CUDA {} with a plugin for CUDA {}".format(now, major)
        cause = "the loaded libcudart is not the plugin's own"
        fix = "remove the other CUDA's folder from LD_LIBRARY_PATH"
        return Outcome(Status.FAIL, message, cause, fix, measured, wanted)
    if not as_asked(now, ".".join((expected or "").split(".")[:2])):
        message = "CUDA {} instead of the requested {}".format(now, expected)
        cause = "the image's packages differ from its lock, or an older CUDA is found first"
        fix = "look at LD_LIBRARY_PATH, or " + REBUILD
        return Outcome(Status.FAIL, message, cause, fix, measured, wanted)
    message = "CUDA {}{}".format(now, ", JAX was built with {}".format(built) if built else "")
    return Outcome(Status.PASS, message, measured=measured, expected=wanted)


def cudnn(context: Context) -> Outcome:
    """Query cuDNN, as JAX does when it starts."""
    if plugin() is None:
        return BACKEND.without_cuda({})
    asked = _ask("libcudnn", "cudnn_get_version", "cudnn_build_version")
    now, built = (n and cudnn_text(n) for n in (asked.now, asked.built))
    return judge_cudnn(now or None, asked.error, context.expect.cudnn, built or None)


def mapped_files(context: Context) -> Outcome:  # noqa: ARG001
    """Make JAX load its libraries, with a convolution if there is a GPU; then read the map."""
    import jaxlib

    found = plugin()
    if found is None:
        return BACKEND.without_cuda({})
    versions()
    convolved = _convolve()
    places = files.places_of(str(jaxlib.__file__))
    compiled = nvrtc.compile_with(mapped(read_maps()))
    return files.judge_files(
        mapped(read_maps()), places, str(found[0]), convolved=convolved, compiled=compiled
    )


def _convolve() -> bool:
    import jax
    import jax.numpy as jnp

    try:
        with jax.default_device(gpus()[0]):
            image: Any = jnp.ones((1, 8, 8, 1))
            window: Any = jnp.ones((3, 3, 1, 1))
            kinds: Tuple[str, str, str] = ("NHWC", "HWIO", "NHWC")
            jax.lax.conv_general_dilated(
                image, window, (1, 1), "SAME", dimension_numbers=kinds
            ).block_until_ready()
    except Exception:
        return False
    return True
