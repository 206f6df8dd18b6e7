"""CUDA_VISIBLE_DEVICES: what it lets through, and what is said where it hides a GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.verify.checks.test_judges import FAIL, PASS, SKIP, holds
from verify.checks.devices.visible import (
    Selection,
    VisibleCard,
    VisibleSettings,
    cards_of,
    judge_visible,
    select,
)
from verify.device.telemetry import GpuState, Mig, State
from verify.model.check import Status

A, B = "GPU-aa11bb22-0000", "GPU-aa99cc33-0000"
PLAIN = (VisibleCard(A, "NVIDIA A100"), VisibleCard(B, "NVIDIA A100"))
PART, OTHER_PART = "MIG-11112222-0000", "MIG-33334444-0000"
CUT = (
    VisibleCard(A, "NVIDIA A100", mig=True, parts=(PART, OTHER_PART)),
    VisibleCard(B, "NVIDIA A100"),
)
UNCUT = (VisibleCard(A, "NVIDIA A100", mig=True), VisibleCard(B, "NVIDIA A100"))
MIXED = (VisibleCard(A, "NVIDIA T4"), VisibleCard(B, "NVIDIA A100"))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param(None, (0, 1), id="unset shows all"),
        pytest.param("", (), id="empty shows none"),
        pytest.param("1", (1,), id="a number"),
        pytest.param("1,0", (1, 0), id="in the order of the list"),
        pytest.param(" 1 , 0 ", (1, 0), id="spaces beside numbers"),
        pytest.param("+1", (1,), id="a plus sign"),
        pytest.param("1gpu", (1,), id="a word behind a number is ignored"),
        pytest.param("0,7,1", (0,), id="the list ends at a number that is not there"),
        pytest.param("-1,0", (), id="minus one at the beginning"),
        pytest.param("0,-1,1", (0,), id="minus one ends the list"),
        pytest.param("0,0", (), id="one named twice hides all"),
        pytest.param("0,7,0", (), id="one named twice behind the end hides all"),
        pytest.param("one,0", (), id="a word"),
        pytest.param("NoDevFiles", (), id="Slurm's word"),
        pytest.param("GPU-aa9", (1,), id="the beginning of a UUID"),
        pytest.param(f"{B},{A}", (1, 0), id="two UUIDs"),
        pytest.param("GPU-aa", (), id="the beginning of two UUIDs names none"),
        pytest.param(f"{A},1", (0,), id="a number ends a list of UUIDs"),
        pytest.param(f"1,{A}", (1,), id="a UUID ends a list of numbers"),
        pytest.param(f"{A},GPU-aa1", (), id="two beginnings of one UUID hide all"),
    ],
)
def test_what_is_let_through(value: str | None, shown: tuple[int, ...]) -> None:
    picked = select(value, PLAIN)
    assert picked.shown == shown
    assert (picked.least, picked.most) == (len(shown), len(shown))


@pytest.mark.parametrize(
    ("value", "cards", "least", "most"),
    [
        pytest.param(None, CUT, 1, 3, id="unset: CUDA offers one slice, a later driver maybe all"),
        pytest.param(None, UNCUT, 1, 1, id="a card in MIG mode without slices is not there"),
        pytest.param(PART, CUT, 1, 1, id="one slice"),
        pytest.param(f"{PART},{OTHER_PART}", CUT, 1, 2, id="of two named slices CUDA offers one"),
        pytest.param("MIG-3", CUT, 1, 1, id="the beginning of a slice's UUID"),
        pytest.param("MIG-9", CUT, 0, 0, id="a slice that is not there"),
        pytest.param("MIG-", CUT, 0, 0, id="the beginning of two"),
        pytest.param(f"{PART},{PART}", CUT, 0, 0, id="a slice named twice"),
        pytest.param(f"MIG-{A}/1/0", CUT, 0, 1, id="the form of old drivers is not judged"),
        pytest.param(f"MIG-{B}/1/0", CUT, 0, 0, id="the old form with a card that is not cut"),
        pytest.param("0", CUT, 0, 1, id="what a number means with MIG is not said"),
        pytest.param(PART, PLAIN, 0, 0, id="a slice where nothing is cut"),
    ],
)
def test_mig(value: str | None, cards: tuple[VisibleCard, ...], least: int, most: int) -> None:
    picked = select(value, cards)
    assert (picked.least, picked.most) == (least, most)


def test_cards_come_from_nvmls_state() -> None:
    gpu = GpuState(0, "NVIDIA A100", A, mig=True, mig_devices=(Mig(PART), Mig(None)))
    assert cards_of(State(gpus=(gpu, GpuState(1)))) == (
        VisibleCard(A, "NVIDIA A100", mig=True, parts=(PART, "")),
        VisibleCard(),
    )


@pytest.mark.parametrize(
    ("settings", "cards", "expected", "status", "word"),
    [
        pytest.param(VisibleSettings(), PLAIN, None, PASS, "nothing is hidden", id="unset"),
        pytest.param(VisibleSettings("1"), PLAIN, 2, PASS, "1 of 2 GPUs (number 1)",
                     id="one chosen"),
        pytest.param(VisibleSettings("0,-1"), PLAIN, None, PASS, "-1 ends the list",
                     id="ended by hand"),
        pytest.param(VisibleSettings("0,-1,1"), PLAIN, None, PASS, "before 1",
                     id="ended before another"),
        pytest.param(VisibleSettings("1gpu"), PLAIN, None, PASS, "ignores the rest",
                     id="a word behind"),
        pytest.param(VisibleSettings(f"{A}, {B}"), PLAIN, None, PASS, "spaces",
                     id="spaces by UUIDs"),
        pytest.param(VisibleSettings(""), PLAIN, None, FAIL, "unset CUDA_VISIBLE",
                     id="empty hides all"),
        pytest.param(VisibleSettings("-1"), PLAIN, None, FAIL, "negative number", id="minus one"),
        pytest.param(VisibleSettings("NoDevFiles"), PLAIN, None, FAIL, "Slurm", id="Slurm's word"),
        pytest.param(VisibleSettings("all"), PLAIN, None, FAIL, "NVIDIA_VISIBLE",
                     id="the other's word"),
        pytest.param(VisibleSettings("2,3"), PLAIN, None, FAIL, "numbers its own from 0",
                     id="the host's"),
        pytest.param(VisibleSettings("1"), PLAIN[:1], None, FAIL, "only GPU 0",
                     id="the only one is 0"),
        pytest.param(VisibleSettings("0,2"), PLAIN, None, FAIL, "stops at '2'",
                     id="names the entry"),
        pytest.param(VisibleSettings("0,2"), PLAIN, None, FAIL, "1 of 2 GPUs (number 0)",
                     id="what is left"),
        pytest.param(VisibleSettings("0,0"), PLAIN, None, FAIL, "twice", id="one named twice"),
        pytest.param(VisibleSettings("GPU-aa"), PLAIN, None, FAIL, "2 GPUs have",
                     id="two UUIDs fit"),
        pytest.param(VisibleSettings("GPU-aa11bb23-0000"), PLAIN, None, FAIL, f"use {A}",
                     id="a digit is wrong"),
        pytest.param(VisibleSettings("aa99cc33"), PLAIN, None, FAIL, f"use {B}",
                     id="the prefix is forgotten"),
        pytest.param(VisibleSettings("gpu-aa99cc33"), PLAIN, None, FAIL, f"use {B}",
                     id="the prefix is small"),
        pytest.param(VisibleSettings("GPU-zzzz"), PLAIN, None, FAIL, "unset", id="nothing is near"),
        pytest.param(VisibleSettings(f"0,{B}"), PLAIN, None, FAIL, "do not mix", id="a mixed list"),
        pytest.param(VisibleSettings("MIG-11113"), CUT, None, FAIL, f"use {PART}",
                     id="a slice's typo"),
        pytest.param(VisibleSettings(PART), PLAIN, None, FAIL, "no GPU here has a MIG",
                     id="not cut"),
        pytest.param(VisibleSettings(), CUT, None, PASS, "first of 2 MIG", id="MIG is told"),
        pytest.param(VisibleSettings(f"MIG-{A}/1/0"), CUT, None, PASS, "before R470",
                     id="an old form is told"),
        pytest.param(VisibleSettings("0"), MIXED, None, PASS, "PCI_BUS_ID makes",
                     id="mixed cards by number"),
        pytest.param(VisibleSettings(A), MIXED, None, PASS, "fastest first",
                     id="mixed cards by UUID"),
        pytest.param(VisibleSettings("0", "PCI_BUS_ID"), MIXED, None, PASS, "number 0",
                     id="mixed in bus order"),
        pytest.param(VisibleSettings("0", "PCI_BUS"), MIXED, None, FAIL, "not a value that CUDA",
                     id="a wrong order"),
        pytest.param(VisibleSettings("0", "PCI_BUS"), PLAIN, None, PASS, "not a value",
                     id="wrong, and all alike"),
        pytest.param(VisibleSettings(), (), None, SKIP, "lists no GPU", id="no GPU"),
        pytest.param(VisibleSettings(runtime="void"), (), None, SKIP, "'void' asks",
                     id="none was asked for"),
        pytest.param(VisibleSettings(runtime="none"), (), 2, FAIL, "'none' asks",
                     id="none asked for, two expected"),
    ],
)  # fmt: skip
def test_visible(
    settings: VisibleSettings,
    cards: tuple[VisibleCard, ...],
    expected: int | None,
    status: Status,
    word: str,
) -> None:
    holds(judge_visible(settings, cards, expected), status, word)


# A second reading of the rules, made to be read: it walks the list from its end.

ENTRIES = st.one_of(
    st.sampled_from(
        ["", "-1", "-0", "+1", "one", "1x", "all", "0x1", A, B, A[:8], "GPU-aa", "GPU-"]
    ),
    st.integers(-2, 5).map(str),
    st.text("0123456789GPU-ab", max_size=6),
)
LISTS = st.lists(ENTRIES, min_size=1, max_size=5).map(",".join)


def leading_number(entry: str) -> int:
    digits = ""
    for place, letter in enumerate(entry):
        if letter not in "0123456789" and not (place == 0 and letter in "+-"):
            break
        digits += letter
    return int(digits) if digits.strip("+-") else -1


def by_hand(value: str, uuids: list[str]) -> list[int]:
    entries = value.split(",")
    if entries[0].startswith("GPU-"):
        stop = next((i for i, e in enumerate(entries) if not e.startswith("GPU-")), len(entries))
        texts = entries[:stop]
        if len(set(texts)) < len(texts):
            return []
        fits = [[i for i, uuid in enumerate(uuids) if uuid.startswith(e)] for e in texts]
        stop = next((i for i, fit in enumerate(fits) if len(fit) != 1), len(fits))
        found = [fit[0] for fit in fits[:stop]]
        return found if len(set(found)) == len(found) else []
    numbers = [leading_number(entry) for entry in entries]
    numbers = numbers[: next((i for i, n in enumerate(numbers) if n < 0), len(numbers))]
    if len(set(numbers)) < len(numbers):
        return []
    return numbers[: next((i for i, n in enumerate(numbers) if n >= len(uuids)), len(numbers))]


@given(LISTS, st.integers(1, 3))
def test_two_readings_of_the_rules_agree(value: str, count: int) -> None:
    cards = [VisibleCard(A), VisibleCard(B), VisibleCard("GPU-ff00")][:count]
    assert list(select(value, cards).shown) == by_hand(value, [card.uuid for card in cards])


@given(LISTS)
def test_nothing_hides_a_gpu_without_a_word(value: str) -> None:
    """Whatever ends a list early, a person can read which entry it was."""
    picked = select(value, PLAIN)
    silent = picked.fault is None and not any("-" in note for note in picked.notes)
    assert not silent or len(picked.shown) == len(value.split(","))
    assert (picked.fault is None) or (picked.why and picked.fix)


@given(LISTS, st.sampled_from([PLAIN, CUT, UNCUT, MIXED]))
def test_a_range_is_a_range(value: str, cards: tuple[VisibleCard, ...]) -> None:
    picked: Selection = select(value, cards)
    assert 0 <= picked.least <= picked.most
    assert len(set(picked.shown)) == len(picked.shown)
