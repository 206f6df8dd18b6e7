"""Which wheels share a layer, and which layers one more wheel changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.layers.order import MOST_LAYERS, Group, arrange, wheel_sources
from images.wheels.remote_file import Wheel


def wheel(name: str, size: int | None, version: str = "1") -> Wheel:
    return Wheel(
        name=name,
        version=version,
        url=f"https://index.invalid/{name}-{version}-py3-none-any.whl",
        size=size,
        sha256=f"{abs(hash((name, version))):064x}"[:64],
    )


names = st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,4})?", fullmatch=True)
sizes = st.one_of(
    st.none(), st.integers(1000, 300_000), st.integers(1000, 60_000), st.just(700_000_000)
)
locks = st.dictionaries(names, sizes, max_size=60).map(
    lambda found: [wheel(name, size) for name, size in found.items()]
)


def named(groups: tuple[Group, ...]) -> list[list[str]]:
    return [[one.name for one in group] for group in groups]


def test_cuda_lies_below_the_framework_and_the_users_own_above_the_rest() -> None:
    lock = [
        wheel("mine", 50_000),
        wheel("numpy", 18_000_000),
        wheel("torch", 600_000_000),
        wheel("nvidia-cudnn-cu11", 500_000_000),
        wheel("triton", 60_000_000),
        wheel("scipy", 30_000_000),
        wheel("Torch_Vision", 6_000_000),
        wheel("jinja2", 100_000),
        wheel("click", 90_000),
    ]
    groups = arrange(lock, framework={"torch", "torch-vision"}, own={"Mine"})
    assert named(groups) == [
        ["nvidia-cudnn-cu11"],
        ["triton"],
        ["torch"],
        ["Torch_Vision"],
        ["scipy"],
        ["numpy"],
        ["click", "jinja2"],
        ["mine"],
    ]


@given(lock=locks, seed=st.randoms(use_true_random=False))
def test_the_order_of_the_lock_does_not_matter(lock: list[Wheel], seed: object) -> None:
    shuffled = lock.copy()
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    assert arrange(shuffled) == arrange(lock)


@given(lock=locks)
def test_every_wheel_is_in_one_group(lock: list[Wheel]) -> None:
    groups = arrange(lock)
    assert sorted(one.name for group in groups for one in group) == sorted(w.name for w in lock)
    assert len(groups) <= MOST_LAYERS


@settings(max_examples=200)
@given(lock=locks, name=names, size=st.integers(1, 199_999))
def test_one_more_small_wheel_changes_one_group(lock: list[Wheel], name: str, size: int) -> None:
    others = [one for one in lock if one.name != name]
    before, after = set(arrange(others)), set(arrange([*others, wheel(name, size)]))
    assert len(before - after) <= 1
    assert len(after - before) <= len(before - after) + 2
    assert sum(one.size or 0 for group in after - before for one in group) < 600_000


@given(lock=locks, name=names)
def test_another_version_changes_one_group(lock: list[Wheel], name: str) -> None:
    others = [one for one in lock if one.name != name]
    before = set(arrange([*others, wheel(name, 90_000)]))
    after = set(arrange([*others, wheel(name, 90_000, "2")]))
    assert len(before - after) == len(after - before) == 1


@given(lock=locks)
def test_what_is_large_or_of_unknown_size_is_alone(lock: list[Wheel]) -> None:
    for group in arrange(lock):
        if len(group) > 1:
            assert all(one.size is not None and one.size < 200_000 for one in group)
            assert sum(one.size or 0 for one in group) <= 400_000


@pytest.mark.parametrize("size", [None, 0, 5_000_000, 700_000_000])
@pytest.mark.parametrize("count", [81, 400])
def test_an_image_never_has_too_many_layers(size: int | None, count: int) -> None:
    groups = arrange([wheel(f"w{number}", size) for number in range(count)])
    assert len(groups) <= MOST_LAYERS
    assert sum(map(len, groups)) == count


def test_nothing_gives_no_layers() -> None:
    assert arrange([]) == ()


def test_sources_have_their_place_and_their_options() -> None:
    sources = wheel_sources(
        [wheel("a", 1), wheel("b", 1 << 20)],
        python="3.11",
        framework=(),
        own=(),
        exclude_unneeded=True,
        fetch=lambda one: Path(one.name),
        direct={"b", "c"},
    )
    assert [source.title for source in sources] == ["b 1", "a 1"]
    assert [source.about_bytes for source in sources] == [1 << 20, 1]
    assert len({source.key for source in sources}) == 2
    assert "without what is not needed" in sources[0].created_by
