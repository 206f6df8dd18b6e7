"""An image with code for some GPUs alone, on machines with these and other GPUs."""

from __future__ import annotations

import pytest

from provision.catalog.loading import load
from provision.errors import BadInputError
from provision.lock.labels import CUT, cut_of, labels_for
from provision.lock.lockfile import Lock
from provision.model.plan import Gpu, HostFacts
from provision.verification.cut import OtherGpuError, refuse_other_gpus
from tests.kit.cases import cases
from tests.kit.fake_engine import PLAN

LOCK = Lock(text="the lock", plan=PLAN, wheels=())
A40, V100 = (
    Gpu(name="NVIDIA A40", compute_capability=(8, 6)),
    Gpu(name="Tesla V100-SXM2-16GB", compute_capability=(7, 0)),
)


def test_the_label_says_for_which_gpus() -> None:
    assert CUT not in labels_for(LOCK, "1")
    labels = labels_for(LOCK, "1", ((12, 0), (8, 6), (8, 6)))
    assert labels[CUT] == "sm_86,sm_120"
    assert cut_of(labels, "it") == ((8, 6), (12, 0))
    assert cut_of({}, "it") == ()


@pytest.mark.parametrize("text", ["", "8.6", "sm_86,", "sm_86 sm_80", "sm_9", "sm_90a", "x" * 9999])
def test_another_label_is_refused(text: str) -> None:
    with pytest.raises(BadInputError, match="not valid"):
        cut_of({CUT: text}, "it")


@cases(
    "label gpus refused",
    ("nothing was removed", None, (V100,), None),
    ("its GPU", "sm_86", (A40,), None),
    ("both of its GPUs", "sm_70,sm_86", (A40, V100), None),
    ("another GPU", "sm_86", (V100,), "a Tesla V100-SXM2-16GB (sm_70)"),
    ("another beside its own", "sm_86", (A40, V100), "sm_70"),
    ("a later minor, which would take other code", "sm_80", (A40,), "sm_86"),
    ("no GPU", "sm_86", (), None),
    ("GPUs not known", "sm_86", None, None),
    ("a GPU of unknown capability", "sm_86", (Gpu(name="x"),), None),
    ("its GPU by name alone", "sm_86", (Gpu(name="NVIDIA A40"),), None),
    ("another so", "sm_80", (Gpu(name="NVIDIA A40"),), "a NVIDIA A40 (sm_86)"),
    ("no name", "sm_86", (Gpu(compute_capability=(9, 0)),), "a GPU (sm_90)"),
)
def test_refusal(label: str | None, gpus: tuple[Gpu, ...] | None, refused: str | None) -> None:
    labels = {} if label is None else {CUT: label}
    facts = HostFacts(gpus=gpus)
    if refused is None:
        refuse_other_gpus(labels, "it", facts, load())
        return
    with pytest.raises(OtherGpuError) as caught:
        refuse_other_gpus(labels, "it", facts, load())
    assert refused in caught.value.message
    assert "provision build --cut " in caught.value.fix
