"""Which releases were found, how far behind they are, and what an extra says of the framework."""

from __future__ import annotations

from datetime import date

import pytest

from images.inspect.texts import WheelMetadata
from provision.lock.extras import read_metadata, unmet
from provision.lock.lead import PackageRelease, framework_line, is_newer, lag, newest_of
from provision.model.environment import environment_of


@pytest.mark.parametrize(
    ("fitting", "known", "line"),
    [
        pytest.param(["2.0.1"], ["2.0.1", "2.1.0"], "torch==2.0.1", id="one release fits"),
        pytest.param(["2.2.0", "2.0.1"], ["2.0.1", "2.2.0"], "torch>=2.0.1,<=2.2.0",
                     id="all between fit"),
        pytest.param(["2.10.0", "2.9.1"], ["2.9.1", "2.10.0", "2.9.2", "2.11.0"],
                     "torch>=2.9.1,<=2.10.0,!=2.9.2",
                     id="what does not fit is excluded where it is between"),
    ],
)  # fmt: skip
def test_the_line_of_the_framework_allows_what_fits(
    fitting: list[str], known: list[str], line: str
) -> None:
    assert framework_line("torch", fitting, known) == line


@pytest.mark.parametrize(
    ("mine", "days", "theirs", "words"),
    [
        pytest.param("1.0", 0, "1.0", None, id="the same release"),
        pytest.param("1.9", 30, "1.11", None, id="two minor versions in a month"),
        pytest.param("1.9", 30, "1.12", "older than", id="three minor versions"),
        pytest.param("1.9", None, "2.0", "older than", id="another major version"),
        pytest.param("1.9.0", 366, "1.9.1", "1 year older than", id="more than a year"),
        pytest.param("0.2.2", 730, "0.33.0", "2 years older than", id="two years"),
        pytest.param("1.9.0", None, "1.9.1", None, id="no dates, a patch release"),
        pytest.param("2.0", 0, "1.0", None, id="newer than the newest of another Python"),
    ],
)
def test_how_far_a_release_is_behind(
    mine: str, days: int | None, theirs: str, words: str | None
) -> None:
    there = date(2026, 1, 1)
    uploaded = None if days is None else date.fromordinal(there.toordinal() - days)
    assert lag(PackageRelease(mine, uploaded), PackageRelease(theirs, there)) == words


@pytest.mark.parametrize(
    ("one", "other", "newer"),
    [
        pytest.param(["1.10"], ["1.9"], True, id="by number, not by letter"),
        pytest.param(["1.0", "2.0"], ["1.0", "1.0"], True, id="the second package decides"),
        pytest.param(["1.0", "1.0"], ["1.1", "0.1"], False, id="the first package goes first"),
        pytest.param(["1.0"], [None], True, id="something is newer than nothing"),
        pytest.param([None], ["1.0"], False, id="nothing is not newer"),
        pytest.param(["1.0"], ["1.0"], False, id="the same"),
    ],
)
def test_which_releases_are_newer(
    one: list[str | None], other: list[str | None], *, newer: bool
) -> None:
    assert is_newer(one, other) is newer


def test_of_several_pythons_with_the_newest_release_the_first_counts() -> None:
    new = PackageRelease("2.0")
    found = {"3.13": None, "3.11": PackageRelease("1.0"), "3.12": new, "3.10": new}
    assert newest_of(found) == ("3.12", new)
    assert newest_of({"3.13": None}) is None


TORCH = 'torch>=2.6; extra == "torch"'


@pytest.mark.parametrize(
    ("requires", "release", "extra"),
    [
        pytest.param([TORCH], "2.0.1", "torch", id="too old for the extra"),
        pytest.param([TORCH], "2.6.0", None, id="new enough for the extra"),
        pytest.param(['torch<2; extra == "old"', TORCH], "2.6.0", None, id="one extra accepts it"),
        pytest.param(['torch<2; extra == "old"', TORCH], "2.1.0", "torch",
                     id="all refuse: its own is named"),
        pytest.param(['torch==2.9; extra == "dev"'], "2.0.1", None, id="a pin for developers"),
        pytest.param(['torch==2.9; extra == "test-gpu"'], "2.0.1", None,
                     id="a pin of its tests on GPUs"),
        pytest.param(["torch>=2.0", TORCH], "2.0.1", None,
                     id="required without an extra: uv decided"),
        pytest.param(['torch>=2.6; extra == "torch" and python_version < "3.9"'], "2.0.1", None,
                     id="for another Python"),
        pytest.param(['torch>=2.0; sys_platform == "win32"', TORCH], "2.0.1", "torch",
                     id="required on Windows only"),
        pytest.param(["torchvision>=9; extra == 'torch'"], "2.0.1", None, id="another package"),
        pytest.param(["torch (>=2; no rule", TORCH], "2.6.0", None, id="a line without sense"),
        pytest.param(["Torch>=2.6 ; extra=='torch'"], "2.0.1", "torch",
                     id="in capitals, without spaces"),
        pytest.param([], "2.0.1", None, id="no requirement"),
    ],
)  # fmt: skip
def test_what_an_extra_says_of_the_framework(
    requires: list[str], release: str, extra: str | None
) -> None:
    metadata = WheelMetadata(name="p", version="1.0", requires=tuple(requires))
    need = unmet(metadata, "torch", release, environment_of("3.11", "x86_64"))
    assert (need.extra if need else None) == extra
    assert need is None or need.requirement == "torch>=2.6"


def test_an_address_that_is_no_url_is_left_out() -> None:
    assert read_metadata({"torch": "file:///torch.whl"}, ca_bundle=None) == {}
