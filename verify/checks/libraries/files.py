"""Library files: each CUDA library must be loaded once, from the image's own packages, and find the
libraries that it opens later.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import site
import sys
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from verify.checks.libraries.pytorch import REBUILD
from verify.device import nvrtc
from verify.device.maps import mapped, read_maps, stem_of
from verify.model.check import Context, Outcome, Status
from verify.running.symptoms import explain


@dataclass(frozen=True)
class Places:
    """Where libraries may come from, and the variables that may lead elsewhere."""

    allowed: Tuple[str, ...]
    library_path: Tuple[str, ...] = ()  # LD_LIBRARY_PATH
    preload: str = ""  # LD_PRELOAD


@dataclass(frozen=True)
class Shadow:
    """A library on LD_LIBRARY_PATH with the same name as one in the image's packages."""

    stem: str
    path: str
    own: str
    entry: str  # the entry of LD_LIBRARY_PATH
    copy: bool = False  # of the same size, so most likely a copy


def mapped_files(context: Context) -> Outcome:  # noqa: ARG001
    """Load cuDNN, with a convolution if there is a GPU, then read this process's memory map."""
    import torch

    with contextlib.suppress(Exception):  # a cuDNN that does not load is another check's finding
        torch.backends.cudnn.version()
    convolved = convolve()
    compiled = nvrtc.compile_with(mapped(read_maps()))
    found, places = mapped(read_maps()), places_of(str(torch.__file__))
    shadows = find_shadows(places)
    cuda = torch.version.cuda
    return judge_files(found, places, cuda, convolved=convolved, shadows=shadows, compiled=compiled)


def convolve() -> bool:
    """Make cuDNN load the parts that it needs on a GPU; return whether there was one."""
    import torch

    try:
        image = torch.ones(1, 1, 8, 8, device="cuda")
        torch.nn.functional.conv2d(image, torch.ones(1, 1, 3, 3, device="cuda"))
    except Exception:
        return False
    return True


def places_of(framework_file: str) -> Places:
    """The folders that the libraries of a framework may come from; `framework_file` locates it."""
    allowed = [os.path.dirname(os.path.dirname(os.path.realpath(framework_file)))]
    allowed += [os.path.realpath(path) for path in _site_folders()]
    if os.path.isdir(os.path.join(sys.prefix, "conda-meta")):  # conda installs CUDA next to Python
        allowed.append(os.path.realpath(os.path.join(sys.prefix, "lib")))
    entries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return Places(
        allowed=tuple(dict.fromkeys(allowed)),
        library_path=tuple(entry for entry in entries if entry),
        preload=os.environ.get("LD_PRELOAD", ""),
    )


def _site_folders() -> List[str]:
    """The image's own site-packages, without the user's, which a mounted home may add."""
    folders = (p for p in sys.path if p.endswith(("site-packages", "dist-packages")))
    return [folder for folder in folders if folder != site.getusersitepackages()]


def find_shadows(places: Places) -> Tuple[Shadow, ...]:
    """Libraries on LD_LIBRARY_PATH that would hide the packages' files, loaded already or not."""
    own: Dict[str, str] = {}
    for folder in places.allowed:
        for pattern in ("nvidia/*/lib/*.so*", "nvidia/*/lib64/*.so*"):
            own.update((os.path.basename(p), p) for p in glob.glob(os.path.join(folder, pattern)))
    found = []
    for entry in dict.fromkeys(places.library_path):
        for path in sorted(glob.glob(os.path.join(glob.escape(entry), "*.so*"))):
            name = os.path.basename(path)
            stem = stem_of(name)
            if stem and name in own and not os.path.samefile(path, own[name]):
                copy = os.path.getsize(path) == os.path.getsize(own[name])
                found.append(Shadow(stem, path, own[name], entry, copy))
    return tuple(found)


def judge_files(
    found: "Sequence[tuple[str, str]]",
    places: Places,
    cuda: Optional[str],
    *,
    convolved: bool,
    shadows: Sequence[Shadow] = (),
    compiled: Optional[nvrtc.CompiledKernel] = None,
) -> Outcome:
    """Whether each library is loaded once, is no stub, and is from the image's own packages; and
    whether NVRTC compiles, if it is loaded.
    """
    measured: Dict[str, Any] = {"files": [path for _, path in found], "convolved": convolved}
    measured["shadows"] = [shadow.path for shadow in shadows]
    measured["nvrtc"] = None if compiled is None else compiled.error or "compiles"
    expected = {"under": list(places.allowed)}
    faults = [*_misplaced(found, places), *_shadowed(found, shadows), *_without_parts(compiled)]
    if faults:
        measured["faults"] = [fault[0] for fault in faults]
        return Outcome(Status.FAIL, *faults[0], measured, expected)
    own = [row for row in found if row[0] != "libcuda"]
    if not own and cuda is None:
        cause, fix = explain("Torch not compiled with CUDA enabled")
        return Outcome(Status.FAIL, "no CUDA library is loaded", cause, fix, measured, expected)
    if not own:
        message = "no CUDA library is loaded as a file: they are linked into the framework"
        return Outcome(Status.SKIP, message, measured=measured, expected=expected)
    message = "{} CUDA libraries, each once, from the image's packages".format(len(own))
    late = "" if convolved else "; cuDNN's libraries that load only on a GPU were not checked"
    beside = "; not used: " + ", ".join(dict.fromkeys(s.path for s in shadows)) if shadows else ""
    return Outcome(Status.PASS, message + late + beside, measured=measured, expected=expected)


# torch finds its libraries through an RPATH, which precedes LD_LIBRARY_PATH; these are opened later
# by NVIDIA's own libraries, which have a RUNPATH, and LD_LIBRARY_PATH precedes that.
_LATE = re.compile(r"libcudnn_\w+|libnvrtc-builtins")
# NVRTC asks for this one by its own version and calls functions with the version in their names, so
# one with the version in its name fits wherever it is from: a toolkit's where the packages' NVRTC
# does not find its own.
_FITS = re.compile(r"libnvrtc-builtins\.so\.\d+\.\d+(?:\.\d+)?")


def _shadowed(
    found: "Sequence[tuple[str, str]]", shadows: Sequence[Shadow]
) -> "list[tuple[str, str, str]]":
    """Libraries that are not loaded yet and will be loaded from elsewhere."""
    loaded = {stem for stem, _ in found}
    faults = []
    for shadow in shadows:
        if shadow.copy or shadow.stem in loaded or _FITS.fullmatch(os.path.basename(shadow.path)):
            continue
        if _LATE.fullmatch(shadow.stem):
            message = "{} would be loaded instead of the image's own {}".format(
                shadow.path, shadow.own
            )
            cause = "LD_LIBRARY_PATH entry {} comes before it, and the two differ".format(
                shadow.entry
            )
            fix = "take {} out of LD_LIBRARY_PATH (-e LD_LIBRARY_PATH= tries it)"
            faults.append((message, cause, fix.format(shadow.entry)))
    return faults


def _misplaced(found: "Sequence[tuple[str, str]]", places: Places) -> "list[tuple[str, str, str]]":
    faults = []
    for _, path in found:
        if "/stubs/" in path:
            cause = "a stub is for linking at build time and has no functions"
            fix = _remedy(path, places)
            faults.append(("a stub is loaded: " + path, cause, fix))
    for stem, path in found:
        if stem == "libcuda" or _FITS.fullmatch(os.path.basename(path)):
            continue
        if not path.startswith(tuple(p + "/" for p in places.allowed)):
            message = "{} is loaded from outside the image's packages: {}".format(stem, path)
            faults.append((message, _culprit(path, places), _remedy(path, places)))
    for stem in dict.fromkeys(stem for stem, _ in found):
        paths = [path for name, path in found if name == stem]
        if len(paths) > 1:
            message = "CUDA twice: {} is loaded from {}".format(stem, " and ".join(paths))
            cause = "two packages contain the same library, and calls may go to either"
            faults.append((message, cause, "keep one of the two; " + REBUILD))
    return faults


def _without_parts(compiled: Optional[nvrtc.CompiledKernel]) -> "list[tuple[str, str, str]]":
    """NVRTC that does not compile: cuDNN and frameworks make kernels with it (without it JAX's
    attention by cuDNN ends in an error: github.com/jax-ml/jax/issues/23227).
    """
    if compiled is None or compiled.error is None:
        return []
    message = "{} compiles nothing: {}".format(compiled.library, compiled.error)
    if "builtins" not in compiled.error:
        return [(message, compiled.error, REBUILD)]
    folder = os.path.dirname(compiled.library)
    cause = "the loader does not look into {}, where its second library is".format(folder)
    fix = "{}; or set LD_LIBRARY_PATH={}".format(REBUILD, folder)
    return [(message, cause, fix)]


def _culprit(path: str, places: Places) -> str:
    entry = _entry(path, places)
    if entry:
        return "LD_LIBRARY_PATH entry {} comes before the framework's own files".format(entry)
    if os.path.basename(path) in places.preload:
        return "LD_PRELOAD={}".format(places.preload)
    return "the framework's own copy is missing or was not found, so the system's is used"


def _remedy(path: str, places: Places) -> str:
    entry = _entry(path, places)
    if entry:
        return "take {} out of LD_LIBRARY_PATH (-e LD_LIBRARY_PATH= tries it)".format(entry)
    if os.path.basename(path) in places.preload:
        return "unset LD_PRELOAD"
    return "remove {} from the image, or its folder from /etc/ld.so.conf.d".format(path)


def _entry(path: str, places: Places) -> Optional[str]:
    folder = os.path.dirname(path)
    same = (e for e in places.library_path if folder in (e.rstrip("/"), os.path.realpath(e)))
    return next(same, None)
