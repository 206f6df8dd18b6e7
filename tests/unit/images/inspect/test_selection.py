"""Which code of a fatbin is kept for a GPU: the rule, and that the driver finds the same code."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from images.inspect.fatbin import PTX, SASS, FatbinEntry, FatbinScanner
from images.inspect.selection import normalized, removable, runnable, selected, tegra
from images.layers.cut import without
from tests.kit.cases import cases
from tests.kit.fatbin_reader import TEGRA, digest_of_selection, driver_selects, fatbins
from tests.kit.wheel_maker import entry, fatbin

KINDS = {"sm": SASS, "compute": PTX}


def entries(words: str) -> list[FatbinEntry]:
    return [
        FatbinEntry(KINDS.get(word.partition("_")[0], 8), word if "_" in word else "", n * 10, 10)
        for n, word in enumerate(words.split())
    ]


@cases(
    "held gpu kept",
    ("exactly its code", "sm_70 sm_80 sm_86", (8, 6), "sm_86"),
    ("of an older minor", "sm_70 sm_75 sm_80", (8, 6), "sm_80"),
    ("the newest of older minors", "sm_80 sm_86", (8, 9), "sm_86"),
    ("not of a newer minor", "sm_80 sm_86", (8, 0), "sm_80"),
    ("PTX without binary code", "sm_70 compute_70", (8, 6), "compute_70"),
    ("the newest PTX", "compute_60 compute_70", (8, 6), "compute_70"),
    ("binary code before PTX", "sm_80 compute_80", (8, 6), "sm_80"),
    ("PTX that is newer stays", "sm_80 compute_86", (8, 6), "sm_80 compute_86"),
    ("all of the chosen target", "sm_80 sm_86 sm_86", (8, 6), "sm_86 sm_86"),
    ("nothing runs", "sm_90 compute_90", (8, 6), ""),
    ("a beside the plain one", "sm_90a sm_90", (9, 0), "sm_90a sm_90"),
    ("a on exactly its GPU", "sm_90a compute_80", (9, 0), "sm_90a"),
    ("a on no other", "sm_100a sm_100", (10, 3), "sm_100"),
    ("PTX for one GPU", "compute_90a compute_80", (10, 0), "compute_80"),
    ("f never removes PTX", "sm_100f compute_90", (10, 3), "sm_100f compute_90"),
    ("f beside the plain one", "sm_100f sm_100", (10, 3), "sm_100f sm_100"),
    ("f of exactly this GPU", "sm_103f sm_100", (10, 3), "sm_103f"),
    ("f of another family", "sm_100f compute_90", (12, 0), "compute_90"),
    ("PTX, f", "compute_100f compute_90", (10, 3), "compute_100f compute_90"),
    ("PTX, other family", "compute_100f compute_90", (12, 0), "compute_90"),
    ("Tegra removes no other code", "sm_86 sm_87", (8, 9), "sm_86 sm_87"),
    ("Tegra's own", "sm_86 sm_87", (8, 7), "sm_87"),
    ("Tegra may need PTX", "sm_86 compute_80", (8, 7), "sm_86 compute_80"),
)
def test_rule(held: str, gpu: tuple[int, int], kept: str) -> None:
    found = entries(held)
    assert " ".join(found[number].target for number in sorted(selected(found, gpu))) == kept


def test_every_gpu_keeps_its_own() -> None:
    found = entries("sm_70 sm_80 sm_86 compute_86 LTO")
    assert removable(found, [(8, 6), (9, 0)], by_driver=True) == [(0, 10), (10, 10)]
    assert removable(found, [(8, 6), (9, 0)], by_driver=False) == [(0, 10)]
    assert removable(found, [], by_driver=True) == [(0, 10), (10, 10), (20, 10), (30, 10)]


def test_the_two_lists_of_tegra_agree() -> None:
    assert {major * 10 + minor for major, minor in tegra()} == TEGRA


MINORS = (50, 60, 70, 72, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)
FLAGS = {"": 0, "a": 1 << 20, "f": 1 << 21}
ENTRY = st.tuples(st.sampled_from([1, 1, 2, 2, 2, 8]), st.sampled_from(MINORS),
                  st.sampled_from(["", "", "", "a", "f"]), st.integers(0, 40))  # fmt: skip
GPUS = st.lists(st.sampled_from(MINORS), min_size=1, max_size=3)


@given(
    st.lists(st.lists(ENTRY, max_size=7), max_size=4), GPUS, st.sampled_from(["linked", "other"])
)
def test_the_driver_finds_the_same_code_in_every_fatbin(
    containers: list[list[tuple[int, int, str, int]]], named: list[int], section: str
) -> None:
    """Compared with another reader, which shares nothing with the one that is tested."""
    number = iter(range(1, 1000))
    data = b"".join(
        fatbin(
            *(
                entry(
                    kind, arch, flags=FLAGS[letter], payload=bytes([next(number) % 255 + 1]) * size
                )
                for kind, arch, letter, size in held
            )
        )
        + b"-" * 8
        for held in containers
    )
    data += b"-" * (-len(data) % 8)
    found: list[tuple[FatbinEntry, ...]] = []
    scanner = FatbinScanner(len(data), lambda _, held: found.append(held))
    scanner.feed(data)
    scanner.finish()
    gpus = [(gpu // 10, gpu % 10) for gpu in named]
    ranges = normalized(
        piece for held in found for piece in removable(held, gpus, by_driver=section == "linked")
    )
    after = b"".join(without([data], ranges))
    for gpu in named:
        assert digest_of_selection(after, gpu) == digest_of_selection(data, gpu)
    for fatbin_entries in found:
        for capability in gpus:
            assert selected(fatbin_entries, capability) <= runnable(fatbin_entries, capability)
    for _, left in fatbins(after):
        for kind, _, _, _, payload in left:
            assert kind in (1, 2) or payload == b"" or payload.strip(b"\0")


def test_a_wrong_cut_is_noticed() -> None:
    """The comparison sees it if the code that a GPU loads is removed."""
    data = fatbin(entry(2, 80, payload=b"old" * 8), entry(2, 86, payload=b"new" * 8))
    ((_, held),) = fatbins(data)
    assert driver_selects(held, 86) == [b"new" * 8]
    wrong = data.replace(b"new" * 8, bytes(24))
    assert digest_of_selection(wrong, 86) != digest_of_selection(data, 86)
    assert digest_of_selection(wrong, 80) == digest_of_selection(data, 80)
