"""`provision catalog show`: what is found, how it reads, what is refused."""

from __future__ import annotations

import json

import pytest

from provision.catalog.loading import load
from provision.cli.render.catalog import describe, find, to_json
from provision.errors import BadInputError

CATALOG = load()


@pytest.mark.parametrize(
    ("kind", "name", "tables", "words"),
    [
        pytest.param("torch", "2.0.1", {"releases", "builds"}, "37 50 60 70 75 80 86",
                     id="a release with its builds"),
        pytest.param("torch", "2.0.1+cu118", {"releases", "builds"}, "cu118", id="one build"),
        pytest.param("torch", "2.0", {"releases", "builds"}, "2.0.1", id="a minor, every patch"),
        pytest.param("torch", "2.7.1", {"releases", "builds"}, "+PTX", id="PTX is said"),
        pytest.param("torch", None, {"releases"}, "2.15.0", id="every release"),
        pytest.param("tensorflow", "2.18.1", {"tensorflow_releases", "tensorflow_wheels"},
                     "compute_90", id="TensorFlow"),
        pytest.param("tensorflow-gpu", "2.12.0", {"tensorflow_gpu"}, "stub", id="tensorflow-gpu"),
        pytest.param("jax", "0.12.0", {"jax_releases", "jax_plugins"}, "jax-cuda13-plugin",
                     id="JAX"),
        pytest.param("cuda", "cu117", {"toolkits", "families", "forward_compat"}, "515.43.04",
                     id="a CUDA by its wheel tag"),
        pytest.param("driver", "515.65.01", {"branches"}, "11.7", id="a driver by its branch"),
        pytest.param("gpu", "rtx 3090", {"gpus"}, "8.6", id="a GPU as people write it"),
        pytest.param("gpu", "9.0", {"gpus"}, "H100", id="GPUs of a compute capability"),
        pytest.param("cudnn", "9.10", {"cudnn"}, "9.10.2.21", id="cuDNN by its first figures"),
        pytest.param("nccl", "2.27.5", {"nccl"}, "2.27.5", id="NCCL"),
        pytest.param("image", "nvidia/cuda:12.8.1-devel-ubuntu22.04", {"images", "start_rules"},
                     "supported", id="an image with its start rule"),
        pytest.param("image", "13.3", {"images", "start_rules"}, "13.3.0", id="part of a tag"),
        pytest.param("conflicts", None, {"conflicts"}, "what", id="where sources disagree"),
    ],
)  # fmt: skip
def test_what_is_found(kind: str, name: str | None, tables: set[str], words: str) -> None:
    found = find(CATALOG, kind, name)
    assert set(found.tables) == tables
    assert words in describe(found)
    assert set(json.loads(json.dumps(to_json(found)))["tables"]) == tables


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        pytest.param("flux", None, "no such kind", id="a kind that there is not"),
        pytest.param("torch", "9.9", "no torch '9.9'", id="a version that there is not"),
        pytest.param("gpu", "Voodoo 2", "no gpu", id="a GPU that nobody knows"),
        pytest.param("cuda", "eleven", "not a CUDA version", id="no version at all"),
        pytest.param("driver", "9", "no driver", id="a branch that there is not"),
        pytest.param("torch", "x" * 5000, "...'", id="an endless name is cut"),
    ],
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
