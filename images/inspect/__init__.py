"""Reads out of a Python wheel which GPUs it was compiled for.

    code = measure("https://HOST/torch-2.0.1-cp311-cp311-manylinux1_x86_64.whl")
    code.sm, code.ptx, code.how

How data flows, and which module does what:

    a path or an address --source, remote--> bytes from any place, by range requests
                         --archive--------> members of the zip, held to size and checksum
                         --texts----------> version.py, build_info.py, the flags that torch keeps
                         --library--------> a library's fatbins, counted (by `elf` and `fatbin`)
                         --judge----------> what may be claimed of the wheel

`measuring` drives them; `errors` says how it can fail. What is read is data: nothing is executed.
"""

from __future__ import annotations

from images.inspect.measuring import measure
from images.inspect.model import Capability, How, LibraryCode, WheelCode
from images.wheels.errors import WheelUnreachableError, WheelUnreadableError

__all__ = [
    "Capability",
    "How",
    "LibraryCode",
    "WheelCode",
    "WheelUnreachableError",
    "WheelUnreadableError",
    "measure",
]
