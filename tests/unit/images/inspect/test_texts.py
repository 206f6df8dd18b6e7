"""The texts in a wheel: what is read out of them, and what is not believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.inspect.texts import (
    TensorflowBuildInfo,
    WheelMetadata,
    assigned,
    capability,
    find_flags,
    parse_build_info,
    parse_metadata,
    parse_tags,
    pinned_cudnn,
    two_parts,
    versions_of,
)
from tests.kit.cases import cases


@cases(
    "data flags",
    ("a string of its own", b"\0sm_37 sm_86\0", "sm_37 sm_86"),
    ("with PTX", b"\0sm_90 compute_90\0", "sm_90 compute_90"),
    ("with suffixes", b"\0sm_90a sm_100f\0", "sm_90a sm_100f"),
    ("behind a constant (2.8)", b"string ipc_hsm_70 sm_75\0", "sm_70 sm_75"),
    ("one target alone", b"\0sm_90\0", "sm_90"),
    ("a list beside single words", b"\0sm_90\0..\0sm_80 sm_90\0", "sm_80 sm_90"),
    ("the same list twice", b"\0sm_80 sm_90\0\0sm_80 sm_90\0", "sm_80 sm_90"),
    ("PTX alone", b"\0compute_80\0", "compute_80"),
    ("none", b"nothing", ""),
    ("two single words decide nothing", b"\0sm_80\0sm_90\0", ""),
    ("two lists decide nothing", b"\0sm_80 sm_90\0\0sm_70 sm_75\0", ""),
    ("the end of a sentence", b"supports sm_80 sm_90\0", ""),
    ("the beginning of a sentence", b"\0sm_80 sm_90 only\0", ""),
    ("an option", b"--arch=sm_80 sm_90\0", ""),
    ("the end of a word", b"xsm_90\0", ""),
    ("other separators", b"\0sm_80, sm_90\0", ""),
    ("numbers that are too short", b"\0sm_8 sm_9\0", ""),
    ("AMD's", b"\0gfx906 gfx90a\0", ""),
)
@pytest.mark.parametrize("step", [1, 3, 1 << 20])
def test_flags_are_found_where_they_are_the_only_ones(data: bytes, flags: str, step: int) -> None:
    data = data + b"~" * 9
    pieces = (data[at : at + step] for at in range(0, len(data), step))
    assert find_flags(pieces) == tuple(flags.split())


@given(st.integers(0, 9000), st.integers(100, 9000))
def test_flags_are_found_wherever_the_pieces_end(place: int, step: int) -> None:
    words = [f"sm_{number}" for number in range(30, 121, 5)]
    data = b"\1" * place + b"\0" + " ".join(words).encode() + b"\0" + b"\1" * 5000
    pieces = (data[at : at + step] for at in range(0, len(data), step))
    assert find_flags(pieces) == tuple(words)


def test_flags_that_ended_in_a_piece_before_are_not_read_again_from_their_middle() -> None:
    words = [f"sm_{number}" for number in range(30, 121, 5)]
    first = b"\1" * 99 + b"\0" + " ".join(words).encode() + b"\0"
    for behind in range(4096 - len(first), 4097):
        assert find_flags([first + b"\1" * behind, b"\1" * 9]) == tuple(words)


@cases(
    "word expected",
    ("two digits", "sm_86", (8, 6)),
    ("three digits", "compute_120", (12, 0)),
    ("a suffix", "sm_90a", (9, 0)),
    ("one digit", "sm_8", None),
    ("another kind", "gfx906", None),
)
def test_a_target_has_a_number(word: str, expected: tuple[int, int] | None) -> None:
    assert capability(word) == expected


@cases(
    "text expected",
    ("as it should be",
     "Name: a\nVersion: 1\nRequires-Dist: b (>2)\nRequires-Dist: c\n\nName: body",
     WheelMetadata(name="a", version="1", requires=("b (>2)", "c"))),
    ("in other letters, with other ends of lines", "name: a\r\nVERSION: 1+cu117\r\n\r\nbody",
     WheelMetadata(name="a", version="1+cu117", requires=())),
    ("a line that goes on", "Name: a\nVersion: 1\nRequires-Dist: b\n  ; extra\n",
     WheelMetadata(name="a", version="1", requires=("b ; extra",))),
    ("no name", "Version: 1", None),
    ("no version", "Name: a", None),
    ("a name that is none", "Name: ../a\nVersion: 1", None),
    ("a version that is none", "Name: a\nVersion: 1 \x1b[2J", None),
    ("nothing", "", None),
)  # fmt: skip
def test_metadata_is_read(text: str, expected: WheelMetadata | None) -> None:
    assert parse_metadata(text.encode()) == expected


def test_tags_are_read() -> None:
    text = b"Wheel-Version: 1.0\nTag: cp311-cp311-manylinux_2_28_x86_64\nTag: py3-none-any\n"
    assert parse_tags(text) == (("cp311-cp311", "manylinux_2_28_x86_64"), ("py3-none", "any"))


@cases(
    "line expected",
    ("plain", "cuda = '11.7'", {"cuda": "11.7"}),
    ("with a type", "cuda: Optional[str] = '13.2'", {"cuda": "13.2"}),
    ("other quotes, a comment", 'cuda = "11.7"  # so', {"cuda": "11.7"}),
    ("None", "cuda = None", {"cuda": None}),
    ("inside something", "    cuda = '11.7'", {}),
    ("a call", "cuda = get('11.7')", {}),
    ("another constant", "debug = False", {}),
    ("a sum", "cuda = '11.7' + '1'", {}),
    ("quotes that do not match", "cuda = '11.7\"", {}),
)
def test_only_plain_assignments_are_read(line: str, expected: dict[str, str | None]) -> None:
    assert assigned(f"from x import y\n{line}\nz = 1\n".encode()) == expected


TUPLES = (
    "build_info = collections.OrderedDict([('cpu_compiler', 'clang'), "
    "('cuda_compute_capabilities', ['sm_60', 'compute_90']), ('cuda_version', '12.5.1'), "
    "('cudnn_version', '9'), ('is_cuda_build', True), ('is_rocm_build', False)])"
)


@cases(
    "text expected",
    ("pairs (2.8 to 2.21)", TUPLES, TensorflowBuildInfo(cuda_build=True, cuda="12.5", cudnn="9",
     capabilities=("sm_60", "compute_90"))),
    ("a dict", ("build_info = {'is_cuda_build': True, \"cuda_version\": '11.2',\n"
     "'cuda_compute_capabilities': ['sm_35']}"),
     TensorflowBuildInfo(cuda_build=True, cuda="11.2", cudnn=None, capabilities=("sm_35",))),
    ("hardly anything (2.22.0rc0)",
     "build_info = collections.OrderedDict([('is_cuda_build', True), ('x', False)])",
     TensorflowBuildInfo(cuda_build=True, cuda=None, cudnn=None, capabilities=())),
    ("a CPU build", "build_info = collections.OrderedDict([('is_cuda_build', False)])",
     TensorflowBuildInfo(cuda_build=False, cuda=None, cudnn=None, capabilities=())),
    ("nothing that makes sense",
     TUPLES.replace("sm_60", "\\x1b[2J").replace("12.5.1", "a").replace("'9'", "'?'"),
     TensorflowBuildInfo(cuda_build=True, cuda=None, cudnn=None, capabilities=())),
    ("-", "", TensorflowBuildInfo(cuda_build=None, cuda=None, cudnn=None, capabilities=())),
)  # fmt: skip
def test_build_info_is_read(text: str, expected: TensorflowBuildInfo) -> None:
    assert parse_build_info(text.encode()) == expected


@cases(
    "version expected",
    ("two parts", "11.7", "11.7"),
    ("three parts", "12.5.1", "12.5"),
    ("one part", "12", None),
    ("no number", "cuda", None),
    ("nothing", None, None),
)
def test_cuda_has_two_parts(version: str | None, expected: str | None) -> None:
    assert two_parts(version) == expected


@cases(
    "requires expected",
    ("parentheses", ("nvidia-cudnn-cu11 (==8.5.0.96) ; x",), "8.5.0.96"),
    ("none", ("nvidia-cudnn-cu12==9.1.0.70; x",), "9.1.0.70"),
    ("a range", ("nvidia-cudnn-cu12>=9.3,<10",), None),
    ("two pins", ("nvidia-cudnn-cu11==8.1", "nvidia-cudnn-cu12==9.1"), None),
    ("no cuDNN", ("filelock",), None),
)
def test_cudnn_is_named_where_one_is_pinned(
    requires: tuple[str, ...], expected: str | None
) -> None:
    assert pinned_cudnn(requires) == expected


@cases(
    "own version expected",
    ("with the build", "2.0.1+cu117", "2.0.1", "2.0.1+cu117"),
    ("the package knows better", "2.0.1+cu117", "2.0.1+cu118", "2.0.1+cu117"),
    ("another version", "2.0.0", "2.0.1", "2.0.1"),
    ("no version", "2.0.1+\x1b", "2.0.1", "2.0.1"),
    ("none", None, "2.0.1", "2.0.1"),
)
def test_the_version_has_its_build(own: str | None, version: str, expected: str) -> None:
    assert versions_of({"__version__": own}, version) == expected


@given(st.binary(max_size=300))
def test_any_text_is_survived(data: bytes) -> None:
    parse_metadata(data)
    parse_tags(data)
    assigned(data)
    parse_build_info(data)
    find_flags([data])
