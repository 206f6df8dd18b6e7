"""`provision catalog show`: what is found, how it reads, what is refused."""

from __future__ import annotations

import json

import pytest

from provision.catalog.loading import load
from provision.cli.render.catalog import describe, find, to_json
from provision.errors import BadInputError
from tests.kit.cases import cases

CATALOG = load()


@cases(
    "kind name tables words",
    ("a release with its builds", "torch", "2.0.1", {"releases", "builds"}, "37 50 60 70 75 80 86"),
    ("one build", "torch", "2.0.1+cu118", {"releases", "builds"}, "cu118"),
    ("a minor, every patch", "torch", "2.0", {"releases", "builds"}, "2.0.1"),
    ("PTX is said", "torch", "2.7.1", {"releases", "builds"}, "+PTX"),
    ("every release", "torch", None, {"releases"}, "2.15.0"),
    ("TensorFlow", "tensorflow", "2.18.1", {"tensorflow_releases", "tensorflow_wheels"},
     "compute_90"),
    ("tensorflow-gpu", "tensorflow-gpu", "2.12.0", {"tensorflow_gpu"}, "stub"),
    ("JAX", "jax", "0.12.0", {"jax_releases", "jax_plugins"}, "jax-cuda13-plugin"),
    ("a CUDA by its wheel tag", "cuda", "cu117", {"toolkits", "families", "forward_compat"},
     "515.43.04"),
    ("a driver by its branch", "driver", "515.65.01", {"branches"}, "11.7"),
    ("a GPU as people write it", "gpu", "rtx 3090", {"gpus"}, "8.6"),
    ("GPUs of a compute capability", "gpu", "9.0", {"gpus"}, "H100"),
    ("cuDNN by its first figures", "cudnn", "9.10", {"cudnn"}, "9.10.2.21"),
    ("NCCL", "nccl", "2.27.5", {"nccl"}, "2.27.5"),
    ("an image with its start rule", "image", "nvidia/cuda:12.8.1-devel-ubuntu22.04",
     {"images", "start_rules"}, "supported"),
    ("part of a tag", "image", "13.3", {"images", "start_rules"}, "13.3.0"),
    ("where sources disagree", "conflicts", None, {"conflicts"}, "what"),
)  # fmt: skip
def test_what_is_found(kind: str, name: str | None, tables: set[str], words: str) -> None:
    found = find(CATALOG, kind, name)
    assert set(found.tables) == tables
    assert words in describe(found)
    assert set(json.loads(json.dumps(to_json(found)))["tables"]) == tables


@cases(
    "kind name words",
    ("a kind that there is not", "flux", None, "no such kind"),
    ("a version that there is not", "torch", "9.9", "no torch '9.9'"),
    ("a GPU that nobody knows", "gpu", "Voodoo 2", "no gpu"),
    ("no version at all", "cuda", "eleven", "not a CUDA version"),
    ("a branch that there is not", "driver", "9", "no driver"),
    ("an endless name is cut", "torch", "x" * 5000, "...'"),
)
def test_what_is_refused(kind: str, name: str | None, words: str) -> None:
    with pytest.raises(BadInputError) as refused:
        find(CATALOG, kind, name)
    assert words in refused.value.message
    assert refused.value.fix


@pytest.mark.parametrize(
    "kind", ["torch", "tensorflow", "tensorflow-gpu", "jax", "cuda", "driver", "gpu", "cudnn",
             "nccl", "image", "conflicts"],
)  # fmt: skip
def test_a_table_fits_a_terminal(kind: str) -> None:
    lines = describe(find(CATALOG, kind, None)).splitlines()
    assert [line for line in lines if len(line) > 80 and "://" not in line] == []
