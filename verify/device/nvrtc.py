"""NVIDIA's compiler for kernels at run time (libnvrtc), asked through ctypes. It needs no GPU.

It opens a second library, libnvrtc-builtins, only when it compiles. Releases 13.0.48 and 13.0.88
have no search path of their own (tried: those before and after have `$ORIGIN`), so a program that
opens them by their path compiles nothing unless the loader finds the second library itself.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Optional, Sequence, Tuple

_KERNEL = b'extern "C" __global__ void add(float *x) { x[threadIdx.x] += 1.0f; }\n'


@dataclass(frozen=True)
class CompiledKernel:
    """What came of compiling a kernel; `error` is None if it was compiled."""

    library: str
    error: Optional[str] = None


def compile_with(mapped: Sequence[Tuple[str, str]]) -> Optional[CompiledKernel]:
    """Compile a kernel with the libnvrtc that this process has loaded, in the same way as its user
    would; None if it has loaded none. `mapped`: pairs of a library's name and path.
    """
    path = next((path for name, path in mapped if name == "libnvrtc"), None)
    if path is None:
        return None
    try:
        return CompiledKernel(path, _compile(ctypes.CDLL(path)))
    except (OSError, AttributeError) as error:
        return CompiledKernel(path, str(error))


def _compile(library: Any) -> Optional[str]:
    program = ctypes.c_void_p()
    code = library.nvrtcCreateProgram(ctypes.byref(program), _KERNEL, b"add.cu", 0, None, None)
    if code != 0:
        return "nvrtcCreateProgram gives error {}".format(code)
    try:
        code = library.nvrtcCompileProgram(program, 0, None)
        if code == 0:
            return None
        return _log(library, program) or "nvrtcCompileProgram gives error {}".format(code)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _log(library: Any, program: Any) -> str:
    """The first line of the compiler's log."""
    size = ctypes.c_size_t()
    if library.nvrtcGetProgramLogSize(program, ctypes.byref(size)) != 0:
        return ""
    text = ctypes.create_string_buffer(size.value + 1)
    if library.nvrtcGetProgramLog(program, text) != 0:
        return ""
    lines = text.value.decode("utf-8", "replace").strip().splitlines()
    return lines[0] if lines else ""
