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


@pytest.mark.parametrize(
    ("data", "flags"),
    [
        pytest.param(b"\0sm_37 sm_86\0", "sm_37 sm_86", id="a string of its own"),
        pytest.param(b"\0sm_90 compute_90\0", "sm_90 compute_90", id="with PTX"),
        pytest.param(b"\0sm_90a sm_100f\0", "sm_90a sm_100f", id="with suffixes"),
        pytest.param(b"string ipc_hsm_70 sm_75\0", "sm_70 sm_75", id="behind a constant (2.8)"),
        pytest.param(b"\0sm_90\0", "sm_90", id="one target alone"),
        pytest.param(b"\0sm_90\0..\0sm_80 sm_90\0", "sm_80 sm_90", id="a list beside single words"),
        pytest.param(b"\0sm_80 sm_90\0\0sm_80 sm_90\0", "sm_80 sm_90", id="the same list twice"),
        pytest.param(b"\0compute_80\0", "compute_80", id="PTX alone"),
        pytest.param(b"nothing", "", id="none"),
        pytest.param(b"\0sm_80\0sm_90\0", "", id="two single words decide nothing"),
        pytest.param(b"\0sm_80 sm_90\0\0sm_70 sm_75\0", "", id="two lists decide nothing"),
        pytest.param(b"supports sm_80 sm_90\0", "", id="the end of a sentence"),
        pytest.param(b"\0sm_80 sm_90 only\0", "", id="the beginning of a sentence"),
        pytest.param(b"--arch=sm_80 sm_90\0", "", id="an option"),
        pytest.param(b"xsm_90\0", "", id="the end of a word"),
        pytest.param(b"\0sm_80, sm_90\0", "", id="other separators"),
        pytest.param(b"\0sm_8 sm_9\0", "", id="numbers that are too short"),
        pytest.param(b"\0gfx906 gfx90a\0", "", id="AMD's"),
    ],
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


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        pytest.param("sm_86", (8, 6), id="two digits"),
        pytest.param("compute_120", (12, 0), id="three digits"),
        pytest.param("sm_90a", (9, 0), id="a suffix"),
        pytest.param("sm_8", None, id="one digit"),
        pytest.param("gfx906", None, id="another kind"),
    ],
)
def test_a_target_has_a_number(word: str, expected: tuple[int, int] | None) -> None:
    assert capability(word) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "Name: a\nVersion: 1\nRequires-Dist: b (>2)\nRequires-Dist: c\n\nName: body",
            WheelMetadata(name="a", version="1", requires=("b (>2)", "c")),
            id="as it should be",
        ),
        pytest.param(
            "name: a\r\nVERSION: 1+cu117\r\n\r\nbody",
            WheelMetadata(name="a", version="1+cu117", requires=()),
            id="in other letters, with other ends of lines",
        ),
        pytest.param(
            "Name: a\nVersion: 1\nRequires-Dist: b\n  ; extra\n",
            WheelMetadata(name="a", version="1", requires=("b ; extra",)),
            id="a line that goes on",
        ),
        pytest.param("Version: 1", None, id="no name"),
        pytest.param("Name: a", None, id="no version"),
        pytest.param("Name: ../a\nVersion: 1", None, id="a name that is none"),
        pytest.param("Name: a\nVersion: 1 \x1b[2J", None, id="a version that is none"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_metadata_is_read(text: str, expected: WheelMetadata | None) -> None:
    assert parse_metadata(text.encode()) == expected


def test_tags_are_read() -> None:
    text = b"Wheel-Version: 1.0\nTag: cp311-cp311-manylinux_2_28_x86_64\nTag: py3-none-any\n"
    assert parse_tags(text) == (
        ("cp311-cp311", "manylinux_2_28_x86_64"),
        ("py3-none", "any"),
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("cuda = '11.7'", {"cuda": "11.7"}, id="plain"),
        pytest.param("cuda: Optional[str] = '13.2'", {"cuda": "13.2"}, id="with a type"),
        pytest.param('cuda = "11.7"  # so', {"cuda": "11.7"}, id="other quotes, a comment"),
        pytest.param("cuda = None", {"cuda": None}, id="None"),
        pytest.param("    cuda = '11.7'", {}, id="inside something"),
        pytest.param("cuda = get('11.7')", {}, id="a call"),
        pytest.param("debug = False", {}, id="another constant"),
        pytest.param("cuda = '11.7' + '1'", {}, id="a sum"),
        pytest.param("cuda = '11.7\"", {}, id="quotes that do not match"),
    ],
)
def test_only_plain_assignments_are_read(line: str, expected: dict[str, str | None]) -> None:
    assert assigned(f"from x import y\n{line}\nz = 1\n".encode()) == expected


TUPLES = (
    "build_info = collections.OrderedDict([('cpu_compiler', 'clang'), "
    "('cuda_compute_capabilities', ['sm_60', 'compute_90']), ('cuda_version', '12.5.1'), "
    "('cudnn_version', '9'), ('is_cuda_build', True), ('is_rocm_build', False)])"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            TUPLES,
            TensorflowBuildInfo(
                cuda_build=True, cuda="12.5", cudnn="9", capabilities=("sm_60", "compute_90")
            ),
            id="pairs (2.8 to 2.21)",
        ),
        pytest.param(
            "build_info = {'is_cuda_build': True, \"cuda_version\": '11.2',\n"
            "'cuda_compute_capabilities': ['sm_35']}",
            TensorflowBuildInfo(cuda_build=True, cuda="11.2", cudnn=None, capabilities=("sm_35",)),
            id="a dict",
        ),
        pytest.param(
            "build_info = collections.OrderedDict([('is_cuda_build', True), ('x', False)])",
            TensorflowBuildInfo(cuda_build=True, cuda=None, cudnn=None, capabilities=()),
            id="hardly anything (2.22.0rc0)",
        ),
        pytest.param(
            "build_info = collections.OrderedDict([('is_cuda_build', False)])",
            TensorflowBuildInfo(cuda_build=False, cuda=None, cudnn=None, capabilities=()),
            id="a CPU build",
        ),
        pytest.param(
            TUPLES.replace("sm_60", "\\x1b[2J").replace("12.5.1", "a").replace("'9'", "'?'"),
            TensorflowBuildInfo(cuda_build=True, cuda=None, cudnn=None, capabilities=()),
            id="nothing that makes sense",
        ),
        pytest.param(
            "", TensorflowBuildInfo(cuda_build=None, cuda=None, cudnn=None, capabilities=()), id="-"
        ),
    ],
)
def test_build_info_is_read(text: str, expected: TensorflowBuildInfo) -> None:
    assert parse_build_info(text.encode()) == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        pytest.param("11.7", "11.7", id="two parts"),
        pytest.param("12.5.1", "12.5", id="three parts"),
        pytest.param("12", None, id="one part"),
        pytest.param("cuda", None, id="no number"),
        pytest.param(None, None, id="nothing"),
    ],
)
def test_cuda_has_two_parts(version: str | None, expected: str | None) -> None:
    assert two_parts(version) == expected


@pytest.mark.parametrize(
    ("requires", "expected"),
    [
        pytest.param(("nvidia-cudnn-cu11 (==8.5.0.96) ; x",), "8.5.0.96", id="parentheses"),
        pytest.param(("nvidia-cudnn-cu12==9.1.0.70; x",), "9.1.0.70", id="none"),
        pytest.param(("nvidia-cudnn-cu12>=9.3,<10",), None, id="a range"),
        pytest.param(("nvidia-cudnn-cu11==8.1", "nvidia-cudnn-cu12==9.1"), None, id="two pins"),
        pytest.param(("filelock",), None, id="no cuDNN"),
    ],
)
def test_cudnn_is_named_where_one_is_pinned(
    requires: tuple[str, ...], expected: str | None
) -> None:
    assert pinned_cudnn(requires) == expected


@pytest.mark.parametrize(
    ("own", "version", "expected"),
    [
        pytest.param("2.0.1+cu117", "2.0.1", "2.0.1+cu117", id="with the build"),
        pytest.param("2.0.1+cu117", "2.0.1+cu118", "2.0.1+cu117", id="the package knows better"),
        pytest.param("2.0.0", "2.0.1", "2.0.1", id="another version"),
        pytest.param("2.0.1+\x1b", "2.0.1", "2.0.1", id="no version"),
        pytest.param(None, "2.0.1", "2.0.1", id="none"),
    ],
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
