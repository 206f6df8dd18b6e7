"""CDI specifications, as generators and people write them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from images.system.cdi import CdiSpec, SpecError, gpu_edits, parse_spec, read_edits
from tests.kit.cases import cases

MACHINE = os.uname().machine
LIB = f"usr/lib/{MACHINE}-linux-gnu"
# Shaped as nvidia-ctk 1.14 writes it ("nvidia-ctk cdi generate"): the order of keys, lists at their
# key's own column, quoted numbers.
SPEC = f"""\
---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidia-modeset
  - path: /dev/nvidia-uvm
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-ctk
    - hook
    - create-symlinks
    - --link
    - libcuda.so.1::/{LIB}/libcuda.so
    hookName: createContainer
    path: /usr/bin/nvidia-ctk
  - args:
    - nvidia-ctk
    - hook
    - update-ldcache
    - --folder
    - /{LIB}
    hookName: createContainer
    path: /usr/bin/nvidia-ctk
  mounts:
  - containerPath: /{LIB}/libcuda.so.535.104.05
    hostPath: /{LIB}/libcuda.so.535.104.05
    options:
    - ro
    - nosuid
    - nodev
    - bind
  - containerPath: /{LIB}/libnvidia-ml.so.535.104.05
    hostPath: /{LIB}/libnvidia-ml.so.535.104.05
  - containerPath: /usr/bin/nvidia-smi
    hostPath: /usr/bin/nvidia-smi
  - containerPath: /usr/share/vulkan/icd.d/nvidia_icd.json
    hostPath: /usr/share/vulkan/icd.d/nvidia_icd.json
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - path: /dev/dri/card1
    hooks:
    - args:
      - nvidia-ctk
      - hook
      - create-symlinks
      - --link
      - ../card1::/dev/dri/by-path/pci-0000:01:00.0-card
      hookName: createContainer
      path: /usr/bin/nvidia-ctk
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - path: /dev/nvidia1
  name: all
kind: nvidia.com/gpu
"""


def test_all_devices_count_where_none_is_called_all() -> None:
    edits = gpu_edits(parse_spec(SPEC.replace("name: all", 'name: "1"')))
    assert edits is not None
    assert ("/dev/nvidia1", "/dev/nvidia1") in edits.nodes


def test_json_says_the_same_as_yaml() -> None:
    assert parse_spec(json.dumps(yaml.load(SPEC, yaml.BaseLoader))) == parse_spec(SPEC)


def test_the_files_of_the_host_are_those_that_are_opened_or_started_there() -> None:
    found = parse_spec(
        "kind: nvidia.com/gpu\ncontainerEdits:\n"
        "  deviceNodes:\n  - path: /dev/nvidiactl\n"
        "  - path: /dev/inside\n    hostPath: /dev/nvidia0\n"
        "  mounts:\n  - containerPath: /inside/only\n    hostPath: /usr/lib/libcuda.so.550.54.15\n"
        "  hooks:\n  - path: /usr/bin/nvidia-cdi-hook\n"
        "devices:\n- name: all\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia1\n"
    )
    assert found.host_paths == (
        "/dev/nvidiactl",
        "/dev/nvidia0",
        "/usr/lib/libcuda.so.550.54.15",
        "/usr/bin/nvidia-cdi-hook",
        "/dev/nvidia1",
    )


@cases(
    "text why",
    ("an empty file", "", "not one document"),
    ("a text", "just words\n", "no kind"),
    ("a list", "- a\n", "no kind"),
    ("a kind without a vendor", "kind: gpu\ndevices: []\n", "no kind"),
    ("a key twice", "kind: a/b\nkind: a/c\n", "twice"),
    ("two documents", "kind: a/b\n---\nkind: a/b\n", "one document"),
    ("an alias", "a: &x [1]\nkind: *x\n", "alias"),
    ("a tab", "kind: a/b\n\tx: y\n", "not valid YAML"),
    ("a list as a key", "? [a]\n: b\n", "key"),
    ("YAML without end", "[" * 5_000, "nested too deeply"),
    ("JSON without end", '{"a":' * 50_000, "recursion|too deeply"),
    ("more than anybody writes", "# x\n" * 200_000, "longer than"),
)
def test_what_is_no_specification_is_refused(text: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        parse_spec(text)


TEXT = st.text(st.sampled_from("abc01 :-#'\"/.,[]{}&*!|>%@`\\=\n\t"), max_size=8)
SPECS = st.fixed_dictionaries(
    {
        "kind": st.just("nvidia.com/gpu"),
        "devices": st.lists(
            st.fixed_dictionaries(
                {"name": TEXT, "containerEdits": st.dictionaries(TEXT, st.lists(TEXT))}
            ),
            max_size=3,
        ),
        "containerEdits": st.fixed_dictionaries({"env": st.lists(TEXT, max_size=3)}),
    }
)


@given(SPECS)
def test_what_a_generator_writes_is_read_as_the_same_in_json(value: object) -> None:
    assert parse_spec(yaml.safe_dump(value)) == parse_spec(json.dumps(value))


@given(st.text(st.sampled_from("abkind/:- \n\"'#[]{}&*"), max_size=60))
def test_any_text_is_a_specification_or_refused(text: str) -> None:
    try:
        assert isinstance(parse_spec(text), CdiSpec)
    except SpecError:
        return


def test_a_file_that_is_not_understood_is_named_and_the_next_one_read(tmp_path: Path) -> None:
    folder = tmp_path / "etc/cdi"
    folder.mkdir(parents=True)
    (folder / "a.yaml").write_text("kind: [\n")
    (folder / "b.yaml").write_text(SPEC)
    found = read_edits(tmp_path)
    assert found.edits is not None
    assert ["a.yaml" in note for note in found.notes] == [True]
