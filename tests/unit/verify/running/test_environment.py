"""Where the suite runs: the marks that engines leave, and what the firmware states."""

from __future__ import annotations

from pathlib import Path

from tests.kit.cases import cases
from verify.running.environment import container, product


@cases(
    "files environ found",
    ("a machine", {}, {}, None),
    ("docker's mark", {".dockerenv": ""}, {}, "docker"),
    ("docker's mark, on an overlay",
     {".dockerenv": "", "proc/self/mounts": "overlay / overlay rw 0 0\n"}, {}, "docker"),
    ("a virtual machine whose disk was made from an image",
     {".dockerenv": "", "proc/self/mounts": "proc /proc proc rw\n/dev/vda / ext4 rw 0 0\n"}, {},
     None),
    ("a device of docker's own",
     {".dockerenv": "", "proc/self/mounts": "/dev/mapper/docker-8:1-a / ext4 rw 0 0\n"}, {},
     "docker"),
    ("podman's mark", {"run/.containerenv": ""}, {}, "podman"),
    ("a pod", {}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
    ("the variable that systemd defines", {}, {"container": "oci"}, "oci"),
)  # fmt: skip
def test_the_container_that_this_runs_in(
    tmp_path: Path, files: dict[str, str], environ: dict[str, str], found: str | None
) -> None:
    for name, text in files.items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    assert container(str(tmp_path), environ) == found


DMI = "sys/class/dmi/id/"


@cases(
    "files found",
    ("no firmware tables, as in a sandbox", {}, None),
    ("maker and model", {DMI + "sys_vendor": "Example\n", DMI + "product_name": "Box 8\n"},
     "Example Box 8"),
    ("a field that nobody filled",
     {DMI + "sys_vendor": "Example\n", DMI + "product_name": "System Product Name\n"}, "Example"),
    ("a board", {"proc/device-tree/model": "Example Kit\0"}, "Example Kit"),
)  # fmt: skip
def test_the_product(tmp_path: Path, files: dict[str, str], found: str | None) -> None:
    for name, text in files.items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    assert product(str(tmp_path)) == found
