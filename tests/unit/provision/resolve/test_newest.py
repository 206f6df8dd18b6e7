"""The newest CUDA and driver branch: what is answered before every framework has them."""

from __future__ import annotations

import pytest

from provision.catalog.loading import load
from provision.model.plan import Framework, HostFacts
from provision.model.request import parse_request
from provision.resolve import resolve
from tests.kit.cases import cases
from tests.kit.hosts import host

CATALOG = load()
NEWEST = "620.70.06"
OLDER = "615.71.09"


@cases(
    "framework cuda facts verdict answer",
    ("JAX stands beside the toolkit's wheels, native to its branch", "jax", "13.5",
     host(NEWEST, "9.0"), "direct", "13.5"),
    ("and takes it unasked where the driver has it", "jax", None, host(NEWEST, "10.0"), "direct",
     "13.5"),
    ("the branch before runs it by minor-version", "jax", "13.5", host(OLDER, "9.0"),
     "minor-version", "13.5"),
    ("unasked that one gets its own CUDA", "jax", None, host(OLDER, "9.0"), "direct", "13.4"),
    ("the floor of CUDA 13 is enough", "jax", "13.5", host("580.65.06", "9.0"), "minor-version",
     "13.5"),
    ("below the floor a consumer card is refused", "jax", "13.5", host("575.57.08", "8.6"), "none",
     "13.5"),
    ("CUDA 13.5 still compiles for Turing", "jax", "13.5", host(NEWEST, "7.5"), "direct", "13.5"),
    ("PyTorch's newest build runs on the newest driver", "pytorch", None, host(NEWEST, "9.0"),
     "direct", "13.2"),
    ("a V100 is not driven by a branch of open modules alone", "pytorch", None, host(NEWEST, "7.0"),
     "none", None),
    ("TensorFlow runs its older CUDA there", "tensorflow", None, host(NEWEST, "8.6"), "direct",
     "12.5"),
)  # fmt: skip
def test_what_comes_out(
    framework: Framework, cuda: str | None, facts: HostFacts, verdict: str, answer: str | None
) -> None:
    made = resolve([facts], parse_request(framework=framework, cuda=cuda), CATALOG)
    assert (made.verdict, made.cuda) == (verdict, answer)


@pytest.mark.parametrize(
    ("framework", "driver", "nearest"),
    [
        ("pytorch", NEWEST, "13.2"),
        ("pytorch", OLDER, "13.2"),
        ("pytorch", "575.57.08", "13.0"),
        ("tensorflow", NEWEST, "12.5"),
    ],
)
def test_where_no_build_has_it_the_nearest_that_works_is_named(
    framework: Framework, driver: str, nearest: str
) -> None:
    facts = host(driver, "9.0")
    made = resolve([facts], parse_request(framework=framework, cuda="13.5"), CATALOG)
    assert made.verdict == "none"
    assert made.error is not None
    assert "13.5" in made.error.message
    assert made.alternatives[0].cuda == nearest


def test_a_gpu_that_the_newest_branch_does_not_drive_is_sent_to_its_last_one() -> None:
    for name in ("Tesla V100-SXM2-16GB", "NVIDIA GeForce GTX 1080 Ti"):
        made = resolve([host(NEWEST, name)], parse_request(framework="pytorch"), CATALOG)
        assert made.error is not None
        assert "branch 580" in made.error.fix
