"""Which images this machine can run: by its own processor, or by an emulator that is registered."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from images.engines import emulation as machine
from images.engines.emulation import OtherMachineError, check_runs, emulator_of, runs_natively
from images.oci.model import Platform
from tests.kit.cases import cases

AMD64, ARM64 = Platform(architecture="amd64"), Platform(architecture="arm64")
ARM_V8 = Platform(architecture="arm64", variant="v8")
WINDOWS = Platform(architecture="amd64", os="windows")
S390X = Platform(architecture="s390x")

# As Linux 6.18 showed them, registered by Debian's qemu-user-static 7.2.
QEMU_AARCH64 = """\
enabled
interpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P
flags: POF
offset 0
magic 7f454c460201010000000000000000000200b700
mask ffffffffffffff00fffffffffffffffffeffffff
"""
QEMU_ARM = QEMU_AARCH64.replace("020101", "010101").replace("b700", "2800")
PYTHON = """\
enabled
interpreter /usr/bin/python3.11
flags:
offset 0
magic a70d0d0a
"""
BY_ENDING = "enabled\ninterpreter /usr/bin/jexec\nflags:\nextension .jar\n"


@pytest.fixture(autouse=True)
def _on_amd64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "host_platform", lambda: AMD64)


@pytest.fixture
def registry(tmp_path: Path) -> Callable[..., Path]:
    """A root with the emulators that are registered in it."""

    def make(*, status: str = "enabled\n", **entries: str) -> Path:
        place = tmp_path / "proc/sys/fs/binfmt_misc"
        place.mkdir(parents=True)
        (place / "status").write_text(status)
        (place / "register").mkdir()  # it cannot be read
        for name, text in entries.items():
            (place / name.replace("_", "-")).write_text(text)
        return tmp_path

    return make


@cases(
    "platform natively",
    ("its own", AMD64, True),
    ("its own of 32 bits", Platform(architecture="386"), True),
    ("another processor", ARM64, False),
    ("another system", WINDOWS, False),
)
def test_what_runs_by_itself(platform: Platform, natively: bool) -> None:  # noqa: FBT001
    assert runs_natively(platform) is natively


def test_on_an_arm_machine_arm_is_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "host_platform", lambda: ARM64)
    assert runs_natively(ARM_V8)
    assert not runs_natively(AMD64)


@cases(
    "platform entries name",
    ("as Debian does", ARM64, {"qemu_aarch64": QEMU_AARCH64}, "qemu-aarch64"),
    ("whatever it is called", ARM_V8, {"rosetta": QEMU_AARCH64}, "rosetta"),
    ("among others", ARM64, {"a": PYTHON, "b": BY_ENDING, "c": "", "d": QEMU_AARCH64}, "d"),
    ("none is needed", AMD64, {"qemu_aarch64": QEMU_AARCH64}, ""),
    ("none for another system", WINDOWS, {"qemu_aarch64": QEMU_AARCH64}, ""),
    ("a name alone says nothing", S390X, {"qemu_s390x": QEMU_AARCH64}, ""),
    ("that for 32 bits is not it", ARM64, {"qemu_arm": QEMU_ARM}, ""),
    ("one that is off", ARM64, {"q": QEMU_AARCH64.replace("enabled", "disabled")}, ""),
    ("one without F", ARM64, {"q": QEMU_AARCH64.replace("POF", "PO")}, ""),
    ("one unreadable", ARM64, {"q": QEMU_AARCH64.replace("7f45", "7x45")}, ""),
    ("all of them are off", ARM64, {"status": "disabled\n", "q": QEMU_AARCH64}, ""),
    ("none at all", ARM64, {"status": ""}, ""),
)
def test_the_emulator_that_is_registered(
    registry: Callable[..., Path], platform: Platform, entries: dict[str, str], name: str
) -> None:
    root = registry(**entries)
    assert emulator_of(platform, root) == name
    if name or platform == AMD64:
        check_runs(platform, "it", root)
        return
    with pytest.raises(OtherMachineError, match=f"it is for {platform}; this machine is linux/a"):
        check_runs(platform, "it", root)


@cases(
    "platform entry says fix",
    ("what to install", ARM64, "", "has no emulator", "qemu-user-static .*--install arm64"),
    ("it lacks the flag", ARM64, QEMU_AARCH64.replace("POF", "PO"),
     "qemu-aarch64 is not found from inside an image", "qemu-user-static"),
    ("not offered", S390X, "", "has no emulator", "^Run it on such a machine.$"),
    ("no Linux", WINDOWS, "", "for windows", "^Run it on such a machine.$"),
)  # fmt: skip
def test_a_refusal_says_what_to_type(
    registry: Callable[..., Path], platform: Platform, entry: str, says: str, fix: str
) -> None:
    root = registry(qemu_aarch64=entry)
    with pytest.raises(OtherMachineError, match=says) as caught:
        check_runs(platform, "it", root)
    assert re.search(fix, caught.value.fix)
