"""What is asked for beside the framework has to belong to the build, and steers which it is."""

from __future__ import annotations

from provision.catalog.loading import load
from provision.model.plan import Plan, Request
from provision.model.request import parse_request
from provision.resolve import resolve
from provision.resolve.packages import PAIRED, asked_for
from tests.kit.cases import cases
from tests.kit.hosts import host

CATALOG = load()


def plan(*companions: str, driver: str = "550.54.14", **asked: str) -> Plan:
    request = parse_request(companions=companions, **asked)  # type: ignore[arg-type]
    return resolve([host(driver, "8.6")], request, CATALOG)


@cases(
    "companions asked words fix",
    ("a companion of another CUDA", ["torchvision==0.17.1+cu118"],
     {"cuda": "12.1", "framework_version": "2.2.1"},
     "torchvision==0.17.1+cu118 is for CUDA 11.8, but PyTorch 2.2.1+cu121 for CUDA 12.1.",
     "Use --with torchvision==0.17.1, or use --cuda 11.8."),
    ("the release that it belongs to explains, whatever is newer", ["torchvision==0.17.1+cu118"],
     {"cuda": "12.1"}, "but PyTorch 2.2.1+cu121 for CUDA 12.1", "--with torchvision==0.17.1,"),
    ("the other companion", ["torchaudio==2.2.1+cu118"], {"cuda": "12.1"},
     "torchaudio==2.2.1+cu118 is for CUDA 11.8", "--with torchaudio==2.2.1,"),
    ("a companion of another release", ["torchvision==0.17.1"], {"framework_version": "2.5.1"},
     "does not match PyTorch 2.5.1+cu124, which needs torchvision 0.20.1",
     "Use --with torchvision==0.20.1, or use --framework-version 2.2.1."),
    ("a range of another release", ["torchvision>=0.18,<0.19"], {"framework_version": "2.5.1"},
     "needs torchvision 0.20.1", "--framework-version 2.3.1."),
    ("a companion of no release", ["torchvision==99.0"], {"framework_version": "2.5.1"},
     "needs torchvision 0.20.1", "Use --with torchvision==0.20.1."),
    ("a CPU build", ["torchvision==0.20.1+cpu"], {"framework_version": "2.5.1"},
     "is not a build for CUDA 12.4, but PyTorch 2.5.1+cu124 is", "Use --with torchvision==0.20.1."),
    ("a pair that only the catalog knows", ["torchcodec==0.6.0"], {"framework_version": "2.9.1"},
     "torchcodec==0.6.0 does not match PyTorch 2.9.1+cu",
     "Use --with 'torchcodec>=0.8,<0.10', or use --framework-version 2.8.0."),
    ("before its first release", ["torchcodec"], {"framework_version": "2.2.1"},
     "torchcodec does not match PyTorch 2.2.1+cu121: no release of torchcodec is for it",
     "Use --framework-version 2.4.0, or use --framework-version 2."),
    ("the framework itself, in another version", ["torch==2.1.0"], {"framework_version": "2.5.1"},
     "torch==2.1.0 conflicts with PyTorch 2.5.1+cu124", "Use --framework-version 2.1.0."),
    ("a NumPy of another ABI", ["numpy==2.1.0"], {"framework_version": "2.0.1"},
     "does not fit PyTorch 2.0.1+cu117, which was compiled for numpy<2", "--with 'numpy<2'"),
    ("any package with a CUDA in its version", ["flash-attn==2.5.6+cu118torch2.2cxx11abifalse"],
     {"cuda": "12.1"}, "is for CUDA 11.8, but PyTorch 2.5.1+cu121 for CUDA 12.1",
     "Use --cuda 11.8."),
    ("a package with a CUDA in its name", ["cupy-cuda11x"], {"cuda": "12.1"},
     "cupy-cuda11x is for CUDA 11,", "Use --cuda 11.8."),
    ("the library of JAX", ["jaxlib==0.4.30"], {"framework": "jax", "framework_version": "0.6.1"},
     "jaxlib==0.4.30 conflicts with JAX 0.6.1", "Use --framework-version 0.4.30."),
)  # fmt: skip
def test_what_does_not_belong_to_the_build_is_refused(
    companions: list[str], asked: dict[str, str], words: str, fix: str
) -> None:
    made = plan(*companions, **asked)
    assert (made.verdict, made.error and made.error.code) == ("none", "companion-mismatch")
    assert made.error is not None
    assert words in made.error.message
    assert fix in made.error.fix


@cases(
    "companions asked build",
    ("release and CUDA follow a companion", ["torchvision==0.17.1+cu118"], {}, "2.2.1+cu118"),
    ("the release alone does", ["torchvision==0.17.1"], {}, "2.2.1+cu121"),
    ("a withdrawn version of the series: its metadata decides", ["torchvision==0.15.0"],
     {"framework_version": "2.0.0", "cuda": "11.7"}, "2.0.0+cu117"),
    ("beside --cuda", ["torchaudio==2.1.2"], {"cuda": "11.8"}, "2.1.2+cu118"),
    ("the framework's own package", ["torch==2.4.1"], {}, "2.4.1+cu124"),
    ("a pair of the catalog", ["torchcodec>=0.1,<0.2"], {}, "2.5.1+cu124"),
    ("a CUDA major in a name", ["cupy-cuda11x"], {}, "2.7.1+cu118"),
    ("the same major fits", ["cupy-cuda12x"], {"cuda": "12.4"}, "2.6.0+cu124"),
    ("names alone ask for nothing", ["torchvision", "torchaudio"], {"cuda": "12.4"}, "2.6.0+cu124"),
    ("other packages are the installer's business", ["transformers>=4.40"], {"cuda": "12.4"},
     "2.6.0+cu124"),
    ("a local version that names no CUDA", ["pandas==2.2.3+cu"], {"cuda": "12.4"}, "2.6.0+cu124"),
    ("a library of the same major", ["nvidia-cublas-cu12==12.4.5.8"], {"cuda": "12.4"},
     "2.6.0+cu124"),
    ("a NumPy of the right ABI", ["numpy==1.26.4"], {"cuda": "11.8", "framework_version": "2.0.1"},
     "2.0.1+cu118"),
)  # fmt: skip
def test_what_belongs_to_a_build_steers_the_choice(
    companions: list[str], asked: dict[str, str], build: str
) -> None:
    made = plan(*companions, **asked)
    assert made.error is None
    assert f"{made.framework_version}+{made.wheel_tag}" == build


@cases(
    "companion line",
    ("a name gets the release's version", "torchvision", "torchvision==0.17.1"),
    ("a version stays", "torchvision==0.17.1", "torchvision==0.17.1"),
    ("a tag is left to the index, since PyPI's has none", "torchvision==0.17.1+cu121",
     "torchvision==0.17.1"),
    ("a range stays", "torchvision>=0.17", "torchvision>=0.17"),
    ("the framework has a line of its own", "torch==2.2.1", None),
)  # fmt: skip
def test_the_lock_is_asked_for_what_every_index_can_have(companion: str, line: str | None) -> None:
    made = plan(companion, framework_version="2.2.1", cuda="12.1")
    asked = [text for text in made.requirements if text.startswith("torch")]
    assert asked == ([line] if line else [])


def test_a_companion_without_newer_releases_goes_with_a_newer_framework() -> None:
    last = plan("torchaudio==2.11.0", driver="580.95.05", framework_version="2.14.1")
    assert last.error is None
    older = plan("torchaudio==2.5.1", driver="580.95.05", framework_version="2.14.1")
    assert older.error is not None
    assert "--with torchaudio==2.11.0" in older.error.fix


def test_every_release_takes_its_own_companions_and_those_of_no_other() -> None:
    """Over the catalog: whatever build a pair leads to, it is of a release with that pair."""
    wrong = []
    for row in CATALOG.torch_releases:
        for name in PAIRED:
            pair = getattr(row, name)
            if pair is None or row.yanked:
                continue
            made = plan(f"{name}=={pair}", driver="580.95.05")
            chosen = CATALOG.torch_release(made.framework_version or "")
            # what has had no release since goes with later ones too
            if chosen is None or getattr(chosen, name) not in {pair, None}:
                wrong.append((row.version, name, pair, made.error))
    assert wrong == []


def test_only_what_a_marker_puts_into_the_image_counts_as_asked_for() -> None:
    plan = resolve([host("580.95.05", "9.0")], Request(companions=(
        "einops", 'tomli; python_version < "3.8"', 'odd; os_name ~= "posix"',
    )), CATALOG)  # fmt: skip
    assert asked_for(plan) == {"einops", "odd"}
