"""Images that mean harm, each a busybox and one thing that is wrong with it.

Their programs try what a shell can: the host's programs and devices by way of the first process,
its variables, whatever a link of the image may lead to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from images.oci.sources import Image
from tests.kit.sandbox_images import entry, image, layer, link

BUSYBOX = Path("/bin/busybox")
HARM = """
for at in /proc/1/exe /proc/1/cwd /proc/1/root /proc/self/fd/* /dev/* /tmp /run /etc /root; do
    chmod 4777 $at; chown 0:0 $at; touch $at; touch $at/harm; ln -s / $at/harm
done 2>/dev/null
cat /proc/*/environ | tr '\\0' '\\012'
echo harm >/proc/sysrq-trigger; echo harm >/proc/sys/kernel/hostname; mount -t tmpfs none /mnt
mknod /tmp/disk b 8 0; cat /tmp/disk; kill -9 -1
"""


@dataclass(frozen=True)
class Hostile:
    """What is wrong with an image; `refused`: words of why it is not run, "" where it is."""

    entries: tuple[Any, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""
    command: tuple[str, ...] = ("sh", "-c", HARM)


def _device(name: str) -> Any:
    return entry(name, type=b"3", devmajor=1, devminor=3, mode=0o666)


IMAGES: dict[str, Hostile] = {
    "nothing is wrong but its program": Hostile(),
    "its directory for files leads out": Hostile((link("tmp", "/proc/self/root/../../tmp"),)),
    "its directories lead to each other": Hostile(
        (link("run", "/root"), link("root", "/var/tmp"), link("var/tmp", "/dev"))
    ),
    "its devices are links": Hostile((link("dev", "/proc/1/root/dev"),), refused="/dev is no"),
    "its processes are a file": Hostile((entry("proc", b"x"),), refused="/proc is no"),
    "its system is a link to its root": Hostile((link("sys", "/"),), refused="/sys is no"),
    "its names of hosts are the host's": Hostile((link("etc/hosts", "../../../etc/passwd"),)),
    "its names of hosts are a device": Hostile((_device("etc/hosts"),)),
    "its home is a device": Hostile((_device("root"),)),
    "its shell is set-uid": Hostile((entry("bin/su", b"#!/bin/sh\n", mode=0o6777),)),
    "a library is loaded before all": Hostile(
        (entry("evil.so", b"\x7fELF" + bytes(100)),),
        {"Env": ["LD_PRELOAD=/evil.so", "LD_LIBRARY_PATH=/", "ENV=/evil", "BASH_ENV=/evil"]},
    ),
    "its variables have no names": Hostile(
        settings={"Env": ["=x", "", "A", "\ud800=\ud800", "PATH=/bin:.", "P=\x1b[2J\u202e"]}
    ),
    "it has 200,000 variables": Hostile(
        settings={"Env": [f"A{i}=1" for i in range(200_000)]}, refused="cannot be run"
    ),
    "a variable has 3 MB": Hostile(
        settings={"Env": ["A=" + "x" * (3 << 20)]}, refused="cannot be run"
    ),
    "its directory is another process's": Hostile(settings={"WorkingDir": "/proc/1/cwd"}),
    "its directory has 3,000 parts": Hostile(
        settings={"WorkingDir": "/deep" * 3000}, refused="cannot be run"
    ),
    "its directory is half a character": Hostile(settings={"WorkingDir": "/\ud800"}),
    "its entrypoint is a directory": Hostile(
        settings={"Entrypoint": ["/etc"]}, refused="no program"
    ),
    "its entrypoint leads in a circle": Hostile(
        (link("bin/a", "b"), link("bin/b", "a")), {"Entrypoint": ["/bin/a"]}, refused="circle"
    ),
    "it prints 100 MB": Hostile(
        command=("sh", "-c", "yes | head -c 100000000; yes | head -c 1000000 >&2")
    ),
    "it leaves a process behind": Hostile(command=("sh", "-c", "sleep 600 & exit 3")),
}


def hostile_image(name: str) -> Image:
    """Build it."""
    one = IMAGES[name]
    names = ("sh", "chmod", "chown", "touch", "ln", "cat", "tr", "mount", "mknod", "kill", "head",
             "yes", "sleep", "true")  # fmt: skip
    shell = [entry("bin/busybox", BUSYBOX.read_bytes(), mode=0o755)]
    shell += [link(f"bin/{word}", "busybox") for word in names]
    return image([layer(*shell), layer(*one.entries)], {**one.settings})
