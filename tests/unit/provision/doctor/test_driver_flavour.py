"""Which flavour of NVIDIA's kernel modules a fix installs: never one that the GPU or the driver
branch does not have.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import provision.doctor
from provision.catalog.catalog import Catalog
from provision.doctor import Fact, load
from provision.doctor.causes import explained, find_causes
from provision.doctor.knowledge import Knowledge, check, parse
from provision.doctor.model import Fix, Hit, Value
from provision.errors import CatalogError
from tests.kit.cases import cases

RECIPES = Path(provision.doctor.__file__).parent / "data" / "recipes.toml"

# By os-release's ID and the family that goes with it.
SYSTEMS = {
    "ubuntu": "debian", "debian": "debian", "fedora": "rhel", "rhel": "rhel", "amzn": "rhel",
    "suse": "suse", "arch": "arch", "alpine": "alpine", "nixos": "nixos", "other": "other",
}  # fmt: skip
OLD = {"gpu.before_open_modules": True, "gpu.needs_open_modules": False}
NEW = {"gpu.before_open_modules": False, "gpu.needs_open_modules": True}
EITHER = {"gpu.before_open_modules": False, "gpu.needs_open_modules": False}

# What brings the open modules alone.
OPEN = re.compile(
    r"^(?!.*\b(?:purge|remove)\b)"
    r".*(?:\bnvidia-open\b(?!\.)|nvidia-driver-\S*-open\b|:open-dkms|kmod_nvidia_open 1)",
    re.MULTILINE,
)
# What brings, or needs, the proprietary modules alone. Debian's nvidia-driver and RPM Fusion's
# akmod-nvidia are that unless told otherwise.
PROPRIETARY = re.compile(
    r"nvidia-kernel-dkms|kmod-nvidia-latest-dkms|nvidia-580xx|:580-dkms|EnableGpuFirmware=0"
    r"|linux-headers\S* nvidia-driver |-m=kernel\b"
)


Alone: TypeAlias = "list[tuple[Knowledge, dict[str, Hit]]]"


@pytest.fixture(scope="module")
def each() -> Alone:
    return alone(load())


def machine(distribution: str, modules: dict[str, bool], **more: Value) -> dict[str, Fact]:
    system = {"os.id": distribution, "os.family": SYSTEMS[distribution], **modules, **more}
    return {name: Fact(value=value, where="/there") for name, value in system.items()}


def alone(knowledge: Knowledge) -> Alone:
    """Every failure as if it were the only one, with all lines that show it."""
    return [
        (
            replace(knowledge, failures=(one,)),
            {
                part: Hit(line="x", source="log", number=1)
                for symptom in one.symptoms
                for part in symptom.parts
            },
        )
        for one in knowledge.failures
    ]


def offered(each: Alone, known: dict[str, Fact]) -> dict[str, tuple[Fix, ...]]:
    """The fixes of every failure that a log can show on such a machine."""
    return {
        cause.code: cause.fixes
        for knowledge, hits in each
        for cause in find_causes(knowledge, hits, known).causes
    }


def fixes_of(code: str, each: Alone, known: dict[str, Fact]) -> tuple[Fix, ...]:
    """The fixes of one failure on such a machine."""
    return offered([one for one in each if code in one[0].by_code], known)[code]


@pytest.mark.parametrize("distribution", SYSTEMS)
def test_no_fix_brings_open_modules_to_a_gpu_that_they_do_not_drive(
    distribution: str, each: Alone
) -> None:
    every = offered(each, machine(distribution, OLD))
    assert len(every) > 500
    assert not {
        code: fix.run for code, fixes in every.items() for fix in fixes if OPEN.search(fix.run)
    }


@pytest.mark.parametrize("distribution", SYSTEMS)
@pytest.mark.parametrize("branch_has_only_open", [False, True])
def test_no_fix_brings_proprietary_modules_to_a_gpu_that_needs_the_open_ones(
    distribution: str, each: Alone, *, branch_has_only_open: bool
) -> None:
    known = machine(distribution, NEW, **{"driver.open_modules_only": branch_has_only_open})
    every = offered(each, known)
    assert len(every) > 500
    assert not {
        code: fix.run
        for code, fixes in every.items()
        for fix in fixes
        if PROPRIETARY.search(fix.run)
    }


@pytest.mark.parametrize("distribution", SYSTEMS)
def test_no_fix_asks_for_what_a_branch_of_open_modules_does_not_have(
    distribution: str, each: Alone
) -> None:
    known = machine(distribution, EITHER, **{"driver.open_modules_only": True})
    runs = [(code, fix.run) for code, fixes in offered(each, known).items() for fix in fixes]
    assert not [code for code, run in runs if "EnableGpuFirmware=0" in run]


@pytest.mark.parametrize("distribution", SYSTEMS)
@pytest.mark.parametrize("modules", [OLD, NEW, EITHER, {}], ids=["old", "new", "either", "unknown"])
def test_every_failure_keeps_a_fix(
    distribution: str, modules: dict[str, bool], each: Alone
) -> None:
    every = offered(each, machine(distribution, modules))
    assert not [code for code, fixes in every.items() if not fixes]


INSTALLS = [
    ("ubuntu", OLD, "ubuntu-drivers install"),
    ("ubuntu", EITHER, "ubuntu-drivers install"),
    ("ubuntu", NEW, "ubuntu-drivers install"),
    ("debian", OLD, "non-free-firmware"),
    ("debian", EITHER, "non-free-firmware"),
    ("debian", NEW, "nvidia-open"),
    ("fedora", OLD, "akmod-nvidia-580xx xorg"),
    ("fedora", EITHER, "akmod-nvidia xorg"),
    ("fedora", NEW, "kmod_nvidia_open 1"),
    ("rhel", OLD, "nvidia-driver:580-dkms"),
    ("rhel", EITHER, "nvidia-driver:open-dkms"),
    ("rhel", {}, "nvidia-driver:open-dkms"),
    ("amzn", OLD, "nvidia-driver:580-dkms"),
    ("amzn", NEW, "nvidia-driver:open-dkms"),
    ("suse", OLD, ""),
    ("suse", NEW, "nvidia-open"),
    ("arch", OLD, ""),
    ("arch", NEW, "nvidia-open"),
]


@pytest.mark.parametrize(("distribution", "modules", "told"), INSTALLS)
def test_a_missing_driver_is_that_of_the_gpu(
    distribution: str, modules: dict[str, bool], told: str, each: Alone
) -> None:
    fixes = fixes_of("driver-too-old-for-runtime", each, machine(distribution, modules))
    runs = [fix.run for fix in fixes if fix.on]
    assert len(runs) == 1
    assert told in runs[0]
    assert bool(told) == bool(runs[0])
    assert "580" in fixes[0].note or told


def test_in_wsl_the_driver_is_that_of_windows(each: Alone) -> None:
    for modules in (OLD, NEW, EITHER):
        known = machine("ubuntu", modules, wsl=True)
        for code in ("driver-too-old-for-runtime", "gpu-not-supported-by-open"):
            fixes = fixes_of(code, each, known)
            assert [fix.on for fix in fixes] == [("wsl",)]
            assert "Windows" in fixes[0].note


def test_the_texts_name_the_branches_of_the_catalogue(catalog: Catalog) -> None:
    """580 stands in names of packages and streams: no row can fill it. 550 is Debian's own."""
    text = RECIPES.read_text(encoding="utf-8")
    recipe = text[text.index("# For GPUs before Turing.") : text.index('name = "install-driver"')]
    told = {int(number) for number in re.findall(r"\b([4-9]\d0)(?:xx)?\b", recipe)}
    before_turing = [one.branch for one in catalog.branches if one.dropped_below < (7, 5)]
    kepler = [one.branch for one in catalog.branches if one.dropped_below < (5, 0)]
    open_only = [one.branch for one in catalog.branches if one.open_modules == "only"]
    assert told - {550} == {before_turing[-1], kepler[-1], open_only[0]}
    assert "580" in recipe


def row(*fixes: dict[str, Any]) -> dict[str, Any]:
    return {
        "code": "a", "layer": "driver", "title": "t", "cause": "c", "symptoms": ["lost"],
        "sources": ["https://example.org"], "fix": list(fixes),
    }  # fmt: skip


IS_OLD = {"fact": "gpu.old", "is": True}
TAKES = {"fact": {"gpu.old": {"kind": "bool", "means": "x"}}}


@cases(
    "fix old expected",
    ("what is wanted is so", {"when": [IS_OLD]}, True, True),
    ("what is wanted is not so", {"when": [IS_OLD]}, False, False),
    ("nobody knows what is wanted", {"when": [IS_OLD]}, None, False),
    ("what forbids it is so", {"unless": [IS_OLD]}, True, False),
    ("what forbids it is not so", {"unless": [IS_OLD]}, False, True),
    ("nobody knows what forbids it", {"unless": [IS_OLD]}, None, True),
)
def test_a_fix_by_facts(fix: dict[str, Any], *, old: bool | None, expected: bool) -> None:
    failure = row({"note": "for all"}, {"note": "for some", **fix})
    known = {} if old is None else {"gpu.old": Fact(value=old, where="/there")}
    knowledge = parse({"x.toml": {"failure": [failure], **TAKES}})
    assert check(knowledge) == []
    notes = [one.note for one in offered(alone(knowledge), known)["a"]]
    assert notes == (["for all", "for some"] if expected else ["for all"])
    assert [one.note for one in explained(knowledge.failures[0]).fixes] == ["for all", "for some"]


def test_a_recipe_in_a_fix_keeps_the_conditions_of_both() -> None:
    inner = {
        "name": "inner",
        "fix": [{"on": ["debian", "arch"], "note": "i"}, {"on": ["rhel"], "note": "no"}],
    }
    outer = {"name": "outer", "fix": [{"on": ["debian"], "when": [IS_OLD], "recipe": "inner"}]}
    tables = {"x.toml": {"recipe": [inner, outer], "failure": [row({"recipe": "outer"})], **TAKES}}
    (fix,) = parse(tables).failures[0].fixes
    assert (fix.note, fix.on, [one.fact for one in fix.when]) == (
        "i",
        ("debian", "arch"),
        ["gpu.old"],
    )


@pytest.mark.parametrize("key", ["when", "unless"])
def test_a_fix_that_asks_for_an_unknown_fact_is_named(key: str) -> None:
    fix = {"note": "n", key: [{"fact": "gpu.ancient", "is": True}]}
    tables = {"x.toml": {"failure": [row(fix)], **TAKES}}
    assert check(parse(tables)) == ["a: there is no fact 'gpu.ancient'"]


def test_a_recipe_that_stands_later_is_named() -> None:
    recipes = [
        {"name": "first", "fix": [{"recipe": "second"}]},
        {"name": "second", "fix": [{"note": "n"}]},
    ]
    with pytest.raises(CatalogError, match=r"x\.toml: first: no recipe 'second'"):
        parse({"x.toml": {"recipe": recipes, "failure": [], **TAKES}})
