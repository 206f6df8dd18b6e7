"""Where the suite runs: the marks that engines leave, and what the firmware states."""

from __future__ import annotations

from pathlib import Path

import pytest

from verify.running.environment import container, product


@pytest.mark.parametrize(
    ("files", "environ", "found"),
    [
        pytest.param({}, {}, None, id="a machine"),
        pytest.param({".dockerenv": ""}, {}, "docker", id="docker's mark"),
        pytest.param({".dockerenv": "", "proc/self/mounts": "overlay / overlay rw 0 0\n"}, {},
                     "docker", id="docker's mark, on an overlay"),
        pytest.param({".dockerenv": "",
                      "proc/self/mounts": "proc /proc proc rw\n/dev/vda / ext4 rw 0 0\n"}, {}, None,
                     id="a virtual machine whose disk was made from an image"),
        pytest.param({".dockerenv": "",
                      "proc/self/mounts": "/dev/mapper/docker-8:1-a / ext4 rw 0 0\n"}, {}, "docker",
                     id="a device of docker's own"),
        pytest.param({"run/.containerenv": ""}, {}, "podman", id="podman's mark"),
        pytest.param({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes", id="a pod"),
        pytest.param({}, {"container": "oci"}, "oci", id="the variable that systemd defines"),
    ],
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


@pytest.mark.parametrize(
    ("files", "found"),
    [
        pytest.param({}, None, id="no firmware tables, as in a sandbox"),
        pytest.param({DMI + "sys_vendor": "Example\n", DMI + "product_name": "Box 8\n"},
                     "Example Box 8", id="maker and model"),
        pytest.param({DMI + "sys_vendor": "Example\n",
                      DMI + "product_name": "System Product Name\n"}, "Example",
                     id="a field that nobody filled"),
        pytest.param({"proc/device-tree/model": "Example Kit\0"}, "Example Kit", id="a board"),
    ],
)  # fmt: skip
def test_the_product(tmp_path: Path, files: dict[str, str], found: str | None) -> None:
    for name, text in files.items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    assert product(str(tmp_path)) == found
