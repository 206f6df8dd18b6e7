"""Two frameworks in one image load the same CUDA libraries, so their builds must go together."""

from __future__ import annotations

import re

from provision.catalog.loading import load
from provision.model.plan import Plan
from provision.model.request import parse_request
from provision.resolve import resolve
from provision.resolve.builds import builds_of
from provision.resolve.other_frameworks import partners
from provision.resolve.packages import frameworks_in, seen_by
from provision.resolve.rules.base import python_tags_of
from provision.resolve.specifiers import version
from tests.kit.cases import cases
from tests.kit.hosts import host

CATALOG = load()
H100 = host("580.95.05", "9.0")


def plan(*companions: str, facts: object = H100, **asked: str) -> Plan:
    request = parse_request(companions=companions, **asked)  # type: ignore[arg-type]
    return resolve([facts], request, CATALOG)  # type: ignore[list-item]


@cases(
    "framework beside line cuda",
    ("JAX has both", "pytorch", "jax", r"jax\[cuda13\]<=[\d.]+,>=[\d.]+", "13"),
    ("TensorFlow decides the CUDA of PyTorch", "pytorch", "tensorflow",
     r"tensorflow\[and-cuda\]<=[\d.]+,>=[\d.]+", "12"),
    ("PyTorch beside JAX", "jax", "torch", r"torch<=[\d.]+,>=[\d.]+", "13"),
    ("PyTorch beside TensorFlow", "tensorflow", "torch", r"torch<=[\d.]+,>=[\d.]+", "12"),
    ("TensorFlow decides the CUDA of JAX", "jax", "tensorflow",
     r"tensorflow\[and-cuda\]<=[\d.]+,>=[\d.]+", "12"),
    ("JAX beside TensorFlow", "tensorflow", "jax", r"jax\[cuda12\]<=[\d.]+,>=[\d.]+", "12"),
)  # fmt: skip
def test_the_second_framework_gets_the_cuda_of_the_first(
    framework: str, beside: str, line: str, cuda: str
) -> None:
    made = plan(beside, framework=framework)
    assert made.error is None
    assert (made.cuda or "").startswith(f"{cuda}.")
    (found,) = frameworks_in(made).values()
    assert re.fullmatch(line, found)
    assert [note.message for note in made.notes if found in note.message]


def test_two_other_frameworks_are_one_note() -> None:
    made = plan("tensorflow", "jax")
    (note,) = [one.message for one in made.notes if one.code == "second-framework"]
    assert note.startswith(
        f"TensorFlow and JAX are installed beside PyTorch {made.framework_version}"
    )
    assert note.endswith("--framework tensorflow or --framework jax")


def test_cudnn_is_not_pinned_where_the_other_framework_may_fix_it() -> None:
    alone, both = plan(framework="jax"), plan("torch", framework="jax")
    assert any("cudnn" in line for line in alone.requirements)
    assert not any("cudnn" in line for line in both.requirements)
    assert (alone.cudnn is None, both.cudnn) == (False, None)


def test_what_the_user_says_of_the_second_framework_holds() -> None:
    assert frameworks_in(plan("jax>=0.8,<0.9"))["jax"].startswith("jax[cuda13]")
    assert "<0.9" in frameworks_in(plan("jax>=0.8,<0.9"))["jax"]
    own = "jax[cuda13-local]>=0.8"
    assert frameworks_in(plan(own))["jax"] == own


def test_the_python_is_one_of_both() -> None:
    made = plan("tensorflow", framework="jax")
    builds = builds_of("tensorflow", "x86_64", CATALOG)
    assert made.python in {one for build in builds for one in python_tags_of(build)}


@cases(
    "companion asked words fix",
    ("for another CUDA", "tensorflow==2.21.0", {"cuda": "13.0"},
     "TensorFlow for these hosts is built for CUDA 12, but PyTorch 2.14.1+cu130 for",
     "Use --cuda 12.9"),
    ("a release without wheels for CUDA", "jax==0.4.1", {},
     "No release of JAX that 'jax==0.4.1' allows runs on these hosts", "Use --with jax."),
    ("no Python of both", "tensorflow", {"python": "3.14", "cuda": "12.6"},
     "has no wheel for Python 3.14; it has Python 3.", "Use --python 3."),
)  # fmt: skip
def test_frameworks_that_do_not_go_together_are_refused(
    companion: str, asked: dict[str, str], words: str, fix: str
) -> None:
    made = plan(companion, **asked)
    assert made.error is not None
    assert words in made.error.message
    assert fix in made.error.fix


def test_the_alternatives_of_a_refusal_go_together() -> None:
    made = plan("tensorflow==2.21.0", cuda="13.0")
    others = [one.cuda for one in made.alternatives if one.cuda != "13.0"]
    assert others
    assert all(cuda.startswith("12.") for cuda in others)


def test_a_driver_that_only_one_of_them_can_use_refuses_the_pair() -> None:
    old = host("470.57.02", "8.6")
    made = plan("tensorflow>=2.20", facts=old)
    assert made.error is not None
    assert "No release of TensorFlow" in made.error.message
    assert plan(facts=old).error is None


def test_jax_takes_the_toolkit_of_pytorch_and_one_that_is_new_enough_for_tensorflow() -> None:
    jax = builds_of("jax", "x86_64", CATALOG)
    for torch in builds_of("pytorch", "x86_64", CATALOG):
        assert {one.cuda for one in partners(torch, jax)} <= {torch.cuda}
    for tensorflow in builds_of("tensorflow", "x86_64", CATALOG):
        for one in partners(tensorflow, jax):
            assert version(one.cuda) >= version(tensorflow.cuda)


def test_of_another_framework_the_suite_expects_no_release() -> None:
    seen = seen_by(plan("jax"), "jax")
    assert (seen.framework, seen.framework_version) == ("jax", None)
    assert (seen.cuda, seen.cudnn) == (None, None)
    assert seen.python is not None
    assert frameworks_in(seen) == {}
