"""Which releases were found, how far behind they are, and what an extra says of the framework."""

from __future__ import annotations

from datetime import date

from images.inspect.texts import WheelMetadata
from provision.lock.extras import read_metadata, unmet
from provision.lock.lead import PackageRelease, framework_line, is_newer, lag, newest_of
from provision.model.environment import environment_of
from tests.kit.cases import cases


@cases(
    "fitting known line",
    ("one release fits", ["2.0.1"], ["2.0.1", "2.1.0"], "torch==2.0.1"),
    ("all between fit", ["2.2.0", "2.0.1"], ["2.0.1", "2.2.0"], "torch>=2.0.1,<=2.2.0"),
    ("what does not fit is excluded where it is between", ["2.10.0", "2.9.1"],
     ["2.9.1", "2.10.0", "2.9.2", "2.11.0"], "torch>=2.9.1,<=2.10.0,!=2.9.2"),
)  # fmt: skip
def test_the_line_of_the_framework_allows_what_fits(
    fitting: list[str], known: list[str], line: str
) -> None:
    assert framework_line("torch", fitting, known) == line


@cases(
    "mine days theirs words",
    ("the same release", "1.0", 0, "1.0", None),
    ("two minor versions in a month", "1.9", 30, "1.11", None),
    ("three minor versions", "1.9", 30, "1.12", "older than"),
    ("another major version", "1.9", None, "2.0", "older than"),
    ("more than a year", "1.9.0", 366, "1.9.1", "1 year older than"),
    ("two years", "0.2.2", 730, "0.33.0", "2 years older than"),
    ("no dates, a patch release", "1.9.0", None, "1.9.1", None),
    ("newer than the newest of another Python", "2.0", 0, "1.0", None),
)
def test_how_far_a_release_is_behind(
    mine: str, days: int | None, theirs: str, words: str | None
) -> None:
    there = date(2026, 1, 1)
    uploaded = None if days is None else date.fromordinal(there.toordinal() - days)
    assert lag(PackageRelease(mine, uploaded), PackageRelease(theirs, there)) == words


@cases(
    "one other newer",
    ("by number, not by letter", ["1.10"], ["1.9"], True),
    ("the second package decides", ["1.0", "2.0"], ["1.0", "1.0"], True),
    ("the first package goes first", ["1.0", "1.0"], ["1.1", "0.1"], False),
    ("something is newer than nothing", ["1.0"], [None], True),
    ("nothing is not newer", [None], ["1.0"], False),
    ("the same", ["1.0"], ["1.0"], False),
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


@cases(
    "requires release extra",
    ("too old for the extra", [TORCH], "2.0.1", "torch"),
    ("new enough for the extra", [TORCH], "2.6.0", None),
    ("one extra accepts it", ['torch<2; extra == "old"', TORCH], "2.6.0", None),
    ("all refuse: its own is named", ['torch<2; extra == "old"', TORCH], "2.1.0", "torch"),
    ("a pin for developers", ['torch==2.9; extra == "dev"'], "2.0.1", None),
    ("a pin of its tests on GPUs", ['torch==2.9; extra == "test-gpu"'], "2.0.1", None),
    ("required without an extra: uv decided", ["torch>=2.0", TORCH], "2.0.1", None),
    ("for another Python", ['torch>=2.6; extra == "torch" and python_version < "3.9"'], "2.0.1",
     None),
    ("required on Windows only", ['torch>=2.0; sys_platform == "win32"', TORCH], "2.0.1", "torch"),
    ("another package", ["torchvision>=9; extra == 'torch'"], "2.0.1", None),
    ("a line without sense", ["torch (>=2; no rule", TORCH], "2.6.0", None),
    ("in capitals, without spaces", ["Torch>=2.6 ; extra=='torch'"], "2.0.1", "torch"),
    ("no requirement", [], "2.0.1", None),
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
