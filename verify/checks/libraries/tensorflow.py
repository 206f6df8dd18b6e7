"""TensorFlow's libraries: CUDA's are not linked into it but opened by name when it starts.

If one of them cannot be opened, TensorFlow logs a warning and continues without any GPU; the check
`libraries.dlopen` detects this.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from dataclasses import asdict, dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from verify.backends.tensorflow import BACKEND, build, cuda_version, gpus
from verify.checks.libraries import dialect, files
from verify.checks.libraries.dialect import (
    FoundLibraries,
    judge_cudnn,
    library_number,
    listed,
    numbers,
)
from verify.checks.libraries.pytorch import cudnn_text, judge_cuda, judge_numpy
from verify.device import nvrtc
from verify.device.maps import mapped, read_maps
from verify.model.check import Check, Context, Outcome, Status

# By CUDA's major version, as tsl/platform/default/dso_loader.cc asks for them; without cuDNN.
_NAMES = {
    11: "cudart.so.11.0 cublas.so.11 cublasLt.so.11 cufft.so.10 cusolver.so.11 cusparse.so.11",
    12: "cudart.so.12 cublas.so.12 cublasLt.so.12 cufft.so.11 cusolver.so.11 cusparse.so.12",
    13: "cudart.so.13 cublas.so.13 cublasLt.so.13 cufft.so.12 cusolver.so.12 cusparse.so.12",
}


def framework(context: Context) -> Outcome:
    """Read the versions of TensorFlow and Python."""
    import tensorflow as tf

    found = FoundLibraries.here(str(tf.__version__), cuda_version(), str(tf.__file__))
    return dialect.judge_framework(found, context.expect, BACKEND)


@dataclass(frozen=True)
class OpenedLibrary:
    """The result of opening one library by TensorFlow's name for it."""

    name: str
    error: Optional[str] = None
    lies_at: Tuple[str, ...] = ()  # folders of the image that hold such a file


def check_dlopen(context: Context) -> Outcome:  # noqa: ARG001
    """Open each library as TensorFlow does, through its own loader; this needs no GPU."""
    cuda = cuda_version()
    if cuda is None:
        return BACKEND.without_cuda({})
    return judge_opened([try_open(name) for name in sonames(build())], cuda)


def sonames(facts: Dict[str, object]) -> List[str]:
    """The libraries that a build opens; it needs all of them before it uses any GPU."""
    major = numbers(str(facts.get("cuda_version")))[:1]
    rest = _NAMES.get(major[0], "") if major else ""
    cudnn = numbers(str(facts.get("cudnn_version")))[:1]
    return ["lib" + name for name in rest.split()] + [
        "libcudnn.so.{}".format(number) for number in cudnn
    ]


def try_open(name: str) -> OpenedLibrary:
    """Open with TensorFlow's loader, since the search path depends on the calling library."""
    try:
        _open(name)
    except Exception as error:  # NotFoundError, with what the dynamic linker said
        return OpenedLibrary(name, str(error).partition("\n")[0], tuple(sorted(_folders(name))))
    return OpenedLibrary(name)


def _open(name: str) -> None:
    from tensorflow.python.client import pywrap_tf_session

    pywrap_tf_session.TF_LoadLibrary(name)


def _folders(name: str) -> List[str]:
    """Where NVIDIA's wheels and toolkits have such a file."""
    import tensorflow as tf

    packages = os.path.dirname(os.path.dirname(os.path.realpath(tf.__file__)))
    patterns = (
        packages + "/nvidia/*/lib/",
        "/usr/local/cuda*/lib64/",
        "/usr/local/cuda*/targets/*/lib/",
    )
    found = (path for pattern in patterns for path in glob.glob(pattern + name))
    return sorted({os.path.dirname(os.path.realpath(path)) for path in found})


def judge_opened(rows: Sequence[OpenedLibrary], cuda: str) -> Outcome:
    """Whether all libraries that TensorFlow needs before it uses a GPU can be opened."""
    measured = {"cuda": cuda, "libraries": [asdict(row) for row in rows]}
    if not rows:
        message = "which libraries CUDA {} needs is not known here".format(cuda)
        return Outcome(Status.SKIP, message, measured=measured)
    lost = [row for row in rows if row.error]
    if lost:
        names = listed([row.name for row in lost])
        message = "cannot open {}, so TensorFlow uses no GPU".format(names)
        return Outcome(Status.FAIL, message, *_explain(lost, cuda), measured, {"lost": 0})
    message = "all {} required libraries of CUDA {} open".format(len(rows), cuda)
    return Outcome(Status.PASS, message, measured=measured, expected={"lost": 0})


def _explain(lost: Sequence[OpenedLibrary], cuda: str) -> Tuple[str, str]:
    """The causes of all libraries that cannot be opened, and the fixes."""
    needy = [row for row in lost if not (row.error or "").startswith(row.name)]
    hidden = [row for row in lost if row.lies_at and row not in needy]
    gone = [row for row in lost if row not in needy and row not in hidden]
    told = [_needs(row, cuda) for row in needy]
    if hidden:
        folders = list(dict.fromkeys(row.lies_at[0] for row in hidden))
        cause = "this TensorFlow does not look in {}".format(listed(folders))
        fix = "set LD_LIBRARY_PATH={} in the image, or with -e".format(":".join(folders))
        told.append(("{}, which has {}".format(cause, _names(hidden)), fix))
    if gone:
        short = ".".join(str(part) for part in numbers(cuda)[:2])
        fix = "install tensorflow[and-cuda], or build on a base image with CUDA {}".format(short)
        told.append(("the image does not have {}".format(_names(gone)), fix))
    causes, fixes = zip(*dict.fromkeys(told))
    return "; ".join(causes), "; ".join(dict.fromkeys(fixes))


def _names(rows: Sequence[OpenedLibrary]) -> str:
    return listed([row.name for row in rows])


def _needs(row: OpenedLibrary, cuda: str) -> Tuple[str, str]:
    """Cause and fix for a file that exists but cannot be loaded: the linker names what it lacks."""
    match = re.match(r"(\S+\.so[\d.]*): cannot open", row.error or "")
    what = "needs {}, which is missing".format(match.group(1)) if match else str(row.error)
    fix = "install all packages that the image's lock lists for CUDA {}".format(cuda)
    return "{} {}".format(row.name, what), fix


def cuda(context: Context) -> Outcome:
    """Compare what it was compiled for with what the opened libcudart says it is."""
    cuda = cuda_version()
    if cuda is None:
        return BACKEND.without_cuda({})
    error = _load("libcudart")
    number = library_number("libcudart")
    if number is None:
        return judge_opened([OpenedLibrary("libcudart", error or "it is not mapped")], cuda)
    return judge_cuda(cuda, number, context.expect.cuda)


def _load(stem: str) -> Optional[str]:
    """Open a library as TensorFlow would; the error, if it cannot be."""
    name = next((name for name in sonames(build()) if name.startswith(stem + ".")), None)
    return try_open(name).error if name else "the version that this build needs is not known"


def cudnn(context: Context) -> Outcome:
    """Open cuDNN as TensorFlow does, and query its version."""
    if cuda_version() is None:
        return BACKEND.without_cuda({})
    error = _load("libcudnn")
    number = library_number("libcudnn")
    version = None if number is None else cudnn_text(number)
    compiled = str(build().get("cudnn_version") or "") or None
    return judge_cudnn(version, error, context.expect.cudnn, compiled)


def numpy(context: Context) -> Outcome:  # noqa: ARG001
    """Convert an array to TensorFlow and back."""
    version, error, total = None, None, None
    try:
        import numpy as np
        import tensorflow as tf

        version = str(np.__version__)
        total = float(tf.constant(np.arange(5.0)).numpy().sum())
    except Exception as problem:
        error = "{}: {}".format(type(problem).__name__, problem)
    return judge_numpy(version, error, total, BACKEND.terms.title)


def mapped_files(context: Context) -> Outcome:  # noqa: ARG001
    """Open every library, with a convolution if there is a GPU; then read the memory map."""
    import tensorflow as tf

    cuda = cuda_version()
    if cuda is None:
        return BACKEND.without_cuda({})
    opened = [try_open(name) for name in sonames(build())]
    if all(row.error for row in opened):
        return Outcome(Status.SKIP, "no CUDA library can be opened: see libraries.dlopen")
    convolved = _convolve()
    places = files.places_of(str(tf.__file__))
    compiled = nvrtc.compile_with(mapped(read_maps()))
    return files.judge_files(
        mapped(read_maps()), places, cuda, convolved=convolved, compiled=compiled
    )


def _convolve() -> bool:
    import tensorflow as tf

    if not gpus():
        return False
    with contextlib.suppress(Exception), tf.device("/GPU:0"):
        tf.nn.conv2d(tf.ones((1, 8, 8, 1)), tf.ones((3, 3, 1, 1)), 1, "SAME").numpy()
        return True
    return False


CHECKS = (Check("libraries.dlopen", "TensorFlow opens its CUDA libraries", check_dlopen),)
