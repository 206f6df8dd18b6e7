"""What a log says of its machine, and whether that is the one that reads it."""

from __future__ import annotations

from provision.doctor import Fact, diagnose
from provision.doctor.model import Value
from tests.kit.cases import cases

GPUS = ("NVIDIA A100-SXM4-40GB", "NVIDIA GeForce RTX 4090")
HERE: dict[str, Value] = {
    "machine.name": "box-1",
    "kernel.release": "6.8.0-1-x",
    "kernel.arch": "x86_64",
    "driver.version": "570.86.15",
    "gpu.names": GPUS,
    "wsl": False,
}
LAPTOP: dict[str, Value] = {
    "kernel.release": "6.8.0-1-x",
    "kernel.arch": "x86_64",
    "driver.installed": False,
    "gpu.count": 0,
}
UNAME = "Linux box-1 6.8.0-1-x #1 SMP PREEMPT_DYNAMIC x86_64 GNU/Linux\n"
SMI = (
    "| NVIDIA-SMI 570.86.15    Driver Version: 570.86.15    CUDA Version: 12.8 |\n"
    "|   0  NVIDIA A100-SXM4-40GB          On  | 00000000:01:00.0 Off |        0 |\n"
)
COLLECTED = (
    "OS: Ubuntu 24.04 LTS (x86_64)\n"
    "Python platform: Linux-6.8.0-1-x-x86_64-with-glibc2.39\n"
    "GPU models and configuration: GPU 0: NVIDIA GeForce RTX 4090\n"
    "Nvidia driver version: 570.86.15\n"
)


def agreement(text: str, here: dict[str, Value]) -> tuple[str, list[str]]:
    facts = {name: Fact(value=value, where="/there") for name, value in here.items()}
    origin = diagnose([("a.log", text)], facts, facts_of="reader").origin
    assert origin is not None
    return origin.agreement, [f"{one.says} [{one.where}]" for one in origin.says]


@cases(
    "text",
    ("uname has the host name and the kernel", UNAME),
    ("nvidia-smi has the driver and a GPU", SMI),
    ("an older table cuts the GPU's name",
     SMI.replace("NVIDIA A100-SXM4-40GB  ", "A100-SXM4-4...         ")),
    ("collect_env has the kernel, the driver and a GPU", COLLECTED),
    ("the ends of lines do not matter", COLLECTED.replace("\n", "\r\n")),
    ("the journal has the host name and, at the start, the kernel",
     "Mar  1 10:00:00 box-1 kernel: Linux version 6.8.0-1-x (build@x) (gcc 13)\n"),
    ("the kernel's log has the kernel and the driver",
     ("[ 0.0] Linux version 6.8.0-1-x (build@x) (gcc 13)\n"
      "[ 9.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue Jan 1\n")),
    ("a prompt has the host name",
     "ann@box-1:~/a$ cat /proc/version\nLinux version 6.8.0-1-x (b@x)\n"),
    ("a host name may have its domain",
     "   Static hostname: box-1.lab.example\n            Kernel: Linux 6.8.0-1-x\n"),
    ("a container's own name", "root@0a1b2c3d4e5f:/# nvidia-smi\n" + SMI),
    ("a container's own name in uname",
     "root@abcdef012345:/# uname\nLinux abcdef012345 6.8.0-1-x #1 SMP x86_64 GNU/Linux\n" + SMI),
)  # fmt: skip
def test_a_log_from_here(text: str) -> None:
    assert agreement(text, HERE)[0] == "agrees"


@cases(
    "text",
    ("an empty one", ""),
    ("an error alone", "RuntimeError: CUDA error: out of memory\n"),
    ("a kernel that many have", "Linux version 6.8.0-1-x (build@x)\n"),
    ("a host name that many may have", "ann@box-1:~$ make\n"),
    ("a driver that many have", "Nvidia driver version: 570.86.15\n"),
    ("GPUs that many have",
     "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0)\nGPU 1: NVIDIA GeForce RTX 4090\n"),
)  # fmt: skip
def test_a_log_that_says_too_little(text: str) -> None:
    assert agreement(text, HERE) == ("silent", [])


@cases(
    "text here says",
    ("another kernel on a host of that name", UNAME.replace("6.8", "6.5"), HERE,
     ["kernel 6.5.0-1-x (6.8.0-1-x here) [a.log:1]"]),
    ("another host of that kernel", UNAME.replace("box-1", "box-2"), HERE,
     ["host name box-2 (another here) [a.log:1]"]),
    ("another architecture", UNAME.replace("x86_64", "aarch64"), HERE,
     ["architecture aarch64 (x86_64 here) [a.log:1]"]),
    ("another GPU", SMI.replace("A100-SXM4-40GB", "H100 PCIe     "), HERE,
     [f"GPU NVIDIA H100 PCIe ({', '.join(GPUS)} here) [a.log:2]"]),
    ("a GPU where none is", SMI, LAPTOP,
     ["driver 570.86.15 (none here) [a.log:1]", "GPU NVIDIA A100-SXM4-40GB (none here) [a.log:2]"]),
    ("several hosts, one of them this one", UNAME + UNAME.replace("box-1", "box-2"), HERE,
     ["host name box-2 (another here) [a.log:2]"]),
    ("Windows", "6.6.87.2-microsoft-standard-WSL2\n", HERE, ["WSL yes (no here) [a.log:1]"]),
)  # fmt: skip
def test_a_log_from_another_machine(text: str, here: dict[str, Value], says: list[str]) -> None:
    assert agreement(text, here) == ("differs", says)


def test_two_logs_of_one_diagnosis_are_compared_both() -> None:
    facts = {name: Fact(value=value, where="/there") for name, value in HERE.items()}
    other = UNAME.replace("box-1", "box-2")
    found = diagnose([("a", UNAME), ("b", other)], facts, facts_of="reader")
    assert found.origin is not None
    assert (found.origin.agreement, found.origin.counts) == ("differs", False)
