"""Work on every GPU: one that fails is named, and nothing that did not run counts."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.kit.cases import cases
from verify.backends import each_gpu
from verify.backends.base import Backend, Place
from verify.backends.each_gpu import GPU_FIX, OfGpu, judge_each, on_each
from verify.model.check import NODE, UNKNOWN, Context, Outcome, Status
from verify.running.children import Child
from verify.running.symptoms import last_words

GOOD = Outcome(Status.PASS, "it trains, on the GPU", measured={"device": "cuda"})
BAD = Outcome(Status.FAIL, "the loss is nan", "wrong arithmetic", "build the image again")
NAMED = Outcome(Status.FAIL, "GPU 1, fp32: wrong", "a wrong kernel", "repair it", at_fault=UNKNOWN)
NONE = Outcome(Status.SKIP, "this GPU is too old", "Triton needs 7.0")


def judged(*found: Outcome, cards: tuple[str, ...] = ("H100",) * 4) -> Outcome:
    rows = zip(cards, found, strict=False)
    return judge_each([OfGpu(i, card, outcome) for i, (card, outcome) in enumerate(rows)])


@cases(
    "found status message",
    ("two pass", (GOOD, GOOD), "pass", f"{GOOD.message}; passed on 1 other GPU"),
    ("all pass", (GOOD,) * 4, "pass", f"{GOOD.message}; passed on 3 other GPUs"),
    (
        "one is skipped: it is named",
        (GOOD, NONE, GOOD),
        "pass",
        f"{GOOD.message}; passed on 1 other GPU; GPU 1: {NONE.message}",
    ),
    ("the first is skipped", (NONE, GOOD), "pass", f"{GOOD.message}; GPU 0: {NONE.message}"),
    ("all are skipped", (NONE, NONE), "skip", NONE.message),
    ("one fails", (GOOD, GOOD, BAD), "fail", f"GPU 2: {BAD.message}; passed on 2 other GPUs"),
    (
        "two fail",
        (GOOD, BAD, BAD),
        "fail",
        f"GPU 1: {BAD.message}; GPU 2 fails, too; passed on 1 other GPU",
    ),
    ("all of them fail", (BAD, BAD), "fail", f"GPU 0: {BAD.message}; GPU 1 fails, too"),
    ("its judge has named it", (GOOD, NAMED), "fail", f"{NAMED.message}; passed on 1 other GPU"),
)
def test_several_gpus_have_one_outcome(
    found: tuple[Outcome, ...], status: str, message: str
) -> None:
    outcome = judged(*found)
    assert (outcome.status.value, outcome.message) == (status, message)
    assert list(outcome.measured["gpus"].values()) == [one.status.value for one in found]


@cases(
    "found cards at_fault",
    ("an equal GPU passed", (GOOD, BAD), ("H100", "H100"), NODE),
    ("another model passed", (GOOD, BAD), ("H100", "H200"), None),
    ("the other one had less work", (BAD, GOOD), ("H100", "H100"), None),
    ("all of them fail", (BAD, BAD), ("H100", "H100"), None),
    ("the other one was skipped", (NONE, BAD), ("H100", "H100"), None),
    ("the judge knows better", (GOOD, NAMED), ("H100", "H100"), UNKNOWN),
    ("none fails", (GOOD, GOOD), ("H100", "H100"), None),
)
def test_only_a_gpu_that_differs_from_its_twin_is_a_fault_of_the_node(
    found: tuple[Outcome, ...], cards: tuple[str, ...], at_fault: str | None
) -> None:
    outcome = judged(*found, cards=cards)
    assert outcome.at_fault == at_fault
    assert (outcome.fix == GPU_FIX) is (at_fault == NODE)
    assert ("GPU 0 of the same model passed" in (outcome.cause or "")) is (at_fault == NODE)


class Card(Place):
    """A GPU of a framework that is not there."""

    @property
    def card(self) -> str:
        return "H100"


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[Card]:
    """The devices of this machine; a test changes them."""
    found = [Card("cuda", i) for i in range(3)]
    backend = Backend()
    vars(backend).update(every=lambda _: (None, tuple(found)))
    monkeypatch.setattr(each_gpu, "of", lambda _: backend)
    return found


def run(work: Any) -> Outcome:
    return on_each(Context(level="full"), work)


def test_the_first_gpu_gets_all_of_the_work(places: list[Card]) -> None:
    seen: list[tuple[int, str]] = []

    def work(context: Context, place: Place) -> Outcome:
        seen.append((place.index, context.level))
        return GOOD

    assert run(work).status is Status.PASS
    assert seen == [(0, "full"), (1, "quick"), (2, "quick")]
    del seen[:], places[1:]
    assert run(work) == GOOD
    assert seen == [(0, "full")]


def test_an_error_names_the_gpu(places: list[Card]) -> None:
    def work(_: Context, place: Place) -> Outcome:
        if place.index == len(places) - 1:
            raise MemoryError("no memory is left")
        return GOOD

    with pytest.raises(RuntimeError, match=r"^GPU 2: MemoryError: no memory is left$"):
        run(work)
    del places[1:]
    with pytest.raises(MemoryError, match=r"^no memory is left$"):
        run(work)


@pytest.mark.usefixtures("places")
def test_the_last_words_of_a_lost_process_name_the_gpu() -> None:
    def work(_: Context, place: Place) -> Outcome:
        if place.index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return GOOD

    ending = Child(lambda: run(work)).wait(60)
    assert (ending.signal, last_words(ending.output)) == ("SIGKILL", "GPU 1")
