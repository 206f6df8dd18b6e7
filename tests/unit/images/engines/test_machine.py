"""Which images this machine can run: by its own processor, or by an emulator that is registered."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from images.engines import emulation as machine
from images.engines.emulation import OtherMachineError, check_runs, emulator_of, runs_natively
from images.oci.model import Platform

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


@pytest.mark.parametrize(
    ("platform", "natively"),
    [
        pytest.param(AMD64, True, id="its own"),
        pytest.param(Platform(architecture="386"), True, id="its own of 32 bits"),
        pytest.param(ARM64, False, id="another processor"),
        pytest.param(WINDOWS, False, id="another system"),
    ],
)
def test_what_runs_by_itself(platform: Platform, natively: bool) -> None:  # noqa: FBT001
    assert runs_natively(platform) is natively


def test_on_an_arm_machine_arm_is_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "host_platform", lambda: ARM64)
    assert runs_natively(ARM_V8)
    assert not runs_natively(AMD64)


@pytest.mark.parametrize(
    ("platform", "entries", "name"),
    [
        pytest.param(ARM64, {"qemu_aarch64": QEMU_AARCH64}, "qemu-aarch64", id="as Debian does"),
        pytest.param(ARM_V8, {"rosetta": QEMU_AARCH64}, "rosetta", id="whatever it is called"),
        pytest.param(
            ARM64, {"a": PYTHON, "b": BY_ENDING, "c": "", "d": QEMU_AARCH64}, "d", id="among others"
        ),
        pytest.param(AMD64, {"qemu_aarch64": QEMU_AARCH64}, "", id="none is needed"),
        pytest.param(WINDOWS, {"qemu_aarch64": QEMU_AARCH64}, "", id="none for another system"),
        pytest.param(S390X, {"qemu_s390x": QEMU_AARCH64}, "", id="a name alone says nothing"),
        pytest.param(ARM64, {"qemu_arm": QEMU_ARM}, "", id="that for 32 bits is not it"),
        pytest.param(
            ARM64, {"q": QEMU_AARCH64.replace("enabled", "disabled")}, "", id="one that is off"
        ),
        pytest.param(ARM64, {"q": QEMU_AARCH64.replace("POF", "PO")}, "", id="one without F"),
        pytest.param(ARM64, {"q": QEMU_AARCH64.replace("7f45", "7x45")}, "", id="one unreadable"),
        pytest.param(
            ARM64, {"status": "disabled\n", "q": QEMU_AARCH64}, "", id="all of them are off"
        ),
        pytest.param(ARM64, {"status": ""}, "", id="none at all"),
    ],
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


@pytest.mark.parametrize(
    ("platform", "entry", "says", "fix"),
    [
        pytest.param(
            ARM64, "", "has no emulator", "qemu-user-static .*--install arm64", id="what to install"
        ),
        pytest.param(
            ARM64,
            QEMU_AARCH64.replace("POF", "PO"),
            "qemu-aarch64 is not found from inside an image",
            "qemu-user-static",
            id="it lacks the flag",
        ),
        pytest.param(S390X, "", "has no emulator", "^Run it on such a machine.$", id="not offered"),
        pytest.param(WINDOWS, "", "for windows", "^Run it on such a machine.$", id="no Linux"),
    ],
)
def test_a_refusal_says_what_to_type(
    registry: Callable[..., Path], platform: Platform, entry: str, says: str, fix: str
) -> None:
    root = registry(qemu_aarch64=entry)
    with pytest.raises(OtherMachineError, match=says) as caught:
        check_runs(platform, "it", root)
    assert re.search(fix, caught.value.fix)
