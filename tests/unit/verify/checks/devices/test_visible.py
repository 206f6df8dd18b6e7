"""CUDA_VISIBLE_DEVICES: what it lets through, and what is said where it hides a GPU."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.kit.cases import cases
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


@cases(
    "value shown",
    ("unset shows all", None, (0, 1)),
    ("empty shows none", "", ()),
    ("a number", "1", (1,)),
    ("in the order of the list", "1,0", (1, 0)),
    ("spaces beside numbers", " 1 , 0 ", (1, 0)),
    ("a plus sign", "+1", (1,)),
    ("a word behind a number is ignored", "1gpu", (1,)),
    ("the list ends at a number that is not there", "0,7,1", (0,)),
    ("minus one at the beginning", "-1,0", ()),
    ("minus one ends the list", "0,-1,1", (0,)),
    ("one named twice hides all", "0,0", ()),
    ("one named twice behind the end hides all", "0,7,0", ()),
    ("a word", "one,0", ()),
    ("Slurm's word", "NoDevFiles", ()),
    ("the beginning of a UUID", "GPU-aa9", (1,)),
    ("two UUIDs", f"{B},{A}", (1, 0)),
    ("the beginning of two UUIDs names none", "GPU-aa", ()),
    ("a number ends a list of UUIDs", f"{A},1", (0,)),
    ("a UUID ends a list of numbers", f"1,{A}", (1,)),
    ("two beginnings of one UUID hide all", f"{A},GPU-aa1", ()),
)
def test_what_is_let_through(value: str | None, shown: tuple[int, ...]) -> None:
    picked = select(value, PLAIN)
    assert picked.shown == shown
    assert (picked.least, picked.most) == (len(shown), len(shown))


@cases(
    "value cards least most",
    ("unset: CUDA offers one slice, a later driver maybe all", None, CUT, 1, 3),
    ("a card in MIG mode without slices is not there", None, UNCUT, 1, 1),
    ("one slice", PART, CUT, 1, 1),
    ("of two named slices CUDA offers one", f"{PART},{OTHER_PART}", CUT, 1, 2),
    ("the beginning of a slice's UUID", "MIG-3", CUT, 1, 1),
    ("a slice that is not there", "MIG-9", CUT, 0, 0),
    ("the beginning of two", "MIG-", CUT, 0, 0),
    ("a slice named twice", f"{PART},{PART}", CUT, 0, 0),
    ("the form of old drivers is not judged", f"MIG-{A}/1/0", CUT, 0, 1),
    ("the old form with a card that is not cut", f"MIG-{B}/1/0", CUT, 0, 0),
    ("what a number means with MIG is not said", "0", CUT, 0, 1),
    ("a slice where nothing is cut", PART, PLAIN, 0, 0),
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


@cases(
    "settings cards expected status word",
    ("unset", VisibleSettings(), PLAIN, None, PASS, "nothing is hidden"),
    ("one chosen", VisibleSettings("1"), PLAIN, 2, PASS, "1 of 2 GPUs (number 1)"),
    ("ended by hand", VisibleSettings("0,-1"), PLAIN, None, PASS, "-1 ends the list"),
    ("ended before another", VisibleSettings("0,-1,1"), PLAIN, None, PASS, "before 1"),
    ("a word behind", VisibleSettings("1gpu"), PLAIN, None, PASS, "ignores the rest"),
    ("spaces by UUIDs", VisibleSettings(f"{A}, {B}"), PLAIN, None, PASS, "spaces"),
    ("empty hides all", VisibleSettings(""), PLAIN, None, FAIL, "unset CUDA_VISIBLE"),
    ("minus one", VisibleSettings("-1"), PLAIN, None, FAIL, "negative number"),
    ("Slurm's word", VisibleSettings("NoDevFiles"), PLAIN, None, FAIL, "Slurm"),
    ("the other's word", VisibleSettings("all"), PLAIN, None, FAIL, "NVIDIA_VISIBLE"),
    ("the host's", VisibleSettings("2,3"), PLAIN, None, FAIL, "numbers its own from 0"),
    ("the only one is 0", VisibleSettings("1"), PLAIN[:1], None, FAIL, "only GPU 0"),
    ("names the entry", VisibleSettings("0,2"), PLAIN, None, FAIL, "stops at '2'"),
    ("what is left", VisibleSettings("0,2"), PLAIN, None, FAIL, "1 of 2 GPUs (number 0)"),
    ("one named twice", VisibleSettings("0,0"), PLAIN, None, FAIL, "twice"),
    ("two UUIDs fit", VisibleSettings("GPU-aa"), PLAIN, None, FAIL, "2 GPUs have"),
    ("a digit is wrong", VisibleSettings("GPU-aa11bb23-0000"), PLAIN, None, FAIL, f"use {A}"),
    ("the prefix is forgotten", VisibleSettings("aa99cc33"), PLAIN, None, FAIL, f"use {B}"),
    ("the prefix is small", VisibleSettings("gpu-aa99cc33"), PLAIN, None, FAIL, f"use {B}"),
    ("nothing is near", VisibleSettings("GPU-zzzz"), PLAIN, None, FAIL, "unset"),
    ("a mixed list", VisibleSettings(f"0,{B}"), PLAIN, None, FAIL, "do not mix"),
    ("a slice's typo", VisibleSettings("MIG-11113"), CUT, None, FAIL, f"use {PART}"),
    ("not cut", VisibleSettings(PART), PLAIN, None, FAIL, "no GPU here has a MIG"),
    ("MIG is told", VisibleSettings(), CUT, None, PASS, "first of 2 MIG"),
    ("an old form is told", VisibleSettings(f"MIG-{A}/1/0"), CUT, None, PASS, "before R470"),
    ("mixed cards by number", VisibleSettings("0"), MIXED, None, PASS, "PCI_BUS_ID makes"),
    ("mixed cards by UUID", VisibleSettings(A), MIXED, None, PASS, "fastest first"),
    ("mixed in bus order", VisibleSettings("0", "PCI_BUS_ID"), MIXED, None, PASS, "number 0"),
    ("a wrong order", VisibleSettings("0", "PCI_BUS"), MIXED, None, FAIL, "not a value that CUDA"),
    ("wrong, and all alike", VisibleSettings("0", "PCI_BUS"), PLAIN, None, PASS, "not a value"),
    ("no GPU", VisibleSettings(), (), None, SKIP, "lists no GPU"),
    ("none was asked for", VisibleSettings(runtime="void"), (), None, SKIP, "'void' asks"),
    ("none asked for, two expected", VisibleSettings(runtime="none"), (), 2, FAIL, "'none' asks"),
)
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
