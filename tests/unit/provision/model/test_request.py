"""Words of the command line: what is understood, and what is refused with a way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.errors import BadInputError
from provision.model import request
from tests.kit.cases import cases

PARSERS: tuple[Callable[[str], object], ...] = (
    request.parse_cuda, request.parse_python, request.parse_driver, request.parse_framework,
    request.parse_specifier, request.parse_requirement, request.parse_index, request.parse_base,
)  # fmt: skip


def refusal(parse: Callable[[str], object], text: str) -> BadInputError | None:
    """How a parser refuses a text; None when it takes it."""
    try:
        parse(text)
    except BadInputError as error:
        return error
    return None


@cases(
    "text cuda",
    ("major and minor", "11.7", "11.7"),
    ("a wheel tag is a spelling of it", "cu117", "11.7"),
    ("an old wheel tag has one figure for the major", "cu92", "9.2"),
    ("a wheel tag with minor zero", "cu130", "13.0"),
)
def test_cuda_is_understood(text: str, cuda: str) -> None:
    assert request.parse_cuda(text) == cuda


@cases(
    "text",
    ("negative", "-11.7"),
    ("a word", "latest"),
    ("nothing", ""),
    ("ten thousand figures", "1" * 10_000),
    ("a shell command", "11.7; rm -rf /"),
    ("a shell substitution", "$(id)"),
    ("a newline after it", "11.7\n"),
    ("a major alone", "11"),
    ("a patch release", "11.7.1"),
    ("figures of another script", "\u0661\u0661.\u0667"),
    ("too short a tag", "cu1"),
)
def test_what_is_no_cuda_version_is_refused(text: str) -> None:
    with pytest.raises(BadInputError) as caught:
        request.parse_cuda(text)
    assert caught.value.exit_code == 2
    assert "--cuda 11.7" in caught.value.fix
    assert "Without --cuda" in caught.value.fix
    assert len(caught.value.message) < 120


@cases(
    "text hint",
    ("a CUDA version", "12.2", True),
    ("an older CUDA version", "11.8", True),
    ("a word", "latest", False),
    ("a kernel's version", "5.15", False),
)
def test_a_cuda_version_for_a_driver_is_recognised(text: str, *, hint: bool) -> None:
    refused = refusal(request.parse_driver, text)
    assert refused is not None
    assert ("looks like a CUDA version" in refused.message) == hint


@cases(
    "parse text",
    ("Python 2", request.parse_python, "2.7"),
    ("a patch release of Python", request.parse_python, "3.11.4"),
    ("a driver in words", request.parse_driver, "latest"),
    ("a driver with a space", request.parse_driver, "515.65.01 "),
    ("free-threaded Python", request.parse_python, "3.14t"),
    ("another framework", request.parse_framework, "caffe"),
    ("an empty specifier", request.parse_specifier, ""),
    ("a specifier in words", request.parse_specifier, "two"),
    ("two words", request.parse_requirement, "a b"),
    ("no wheel's URL", request.parse_requirement, "x @ https://e.example/x.zip"),
    ("a file", request.parse_requirement, "x @ file:///x-1-py3-none-any.whl"),
    ("a broken URL", request.parse_requirement, "x @ https://[/x.whl"),
    ("a path", request.parse_requirement, "./local"),
    ("another scheme", request.parse_index, "ftp://e.example"),
    ("no host", request.parse_index, "https://"),
    ("not an address of a lock", request.parse_index, "https://e.example/{x}"),
    ("no such port", request.parse_index, "https://e.example:99999999/"),
    ("capitals in an image's name", request.parse_base, "Python:3.11"),
    ("an option as a base", request.parse_base, "--privileged"),
)
def test_bad_words_are_refused_with_a_fix(parse: object, text: str) -> None:
    assert callable(parse)
    with pytest.raises(BadInputError) as caught:
        parse(text)
    assert caught.value.fix


@cases(
    "text public whole",
    ("a name", "numpy<2", "numpy<2", ""),
    ("an address", "a @ https://h/a.whl", "a @ https://h/a.whl", ""),
    ("a signature", "a @ https://h/a.whl?sig=5e", "a @ https://h/a.whl", "https://h/a.whl?sig=5e"),
    ("a password with a slash", "a[x] @ http://u:5e/c@h/a.whl ; os_name=='posix'",
     'a[x] @ http://h/a.whl ; os_name == "posix"', "http://u:5e%2Fc@h/a.whl"),
)  # fmt: skip
def test_the_address_of_a_wheel_is_kept_apart(text: str, public: str, whole: str) -> None:
    assert request.parse_requirement(text) == (public, whole)
    made = request.parse_request(companions=[text])
    assert (made.companions, made.addresses) == ((public,), (whole,) if whole else ())


@pytest.mark.parametrize("secret", ["https://u:5ecret@h/x.zip", "https://h/x.zip?token=5ecret"])
def test_no_word_is_quoted_with_its_secrets(secret: str) -> None:
    for parse in PARSERS:
        refused = refusal(parse, f"x @ {secret}")
        assert refused is not None
        assert "5ecret" not in f"{refused.message} {refused.fix}"


@cases(
    "text specifier",
    ("a bare version means exactly it", "2.0.1", "==2.0.1"),
    ("a range", ">=2,<2.1", "<2.1,>=2"),
)
def test_specifiers(text: str, specifier: str) -> None:
    assert request.parse_specifier(text) == specifier


@given(st.text(max_size=300))
def test_no_text_crashes_a_parser(text: str) -> None:
    for parse in PARSERS:
        refused = refusal(parse, text)
        assert refused is None or (refused.fix and refused.message.isprintable())


@cases(
    "text framework",
    ("the name of the option's help", "pytorch", "pytorch"),
    ("as the project writes itself", "PyTorch", "pytorch"),
    ("the package's name", "torch", "pytorch"),
    ("the package's name with a capital", "Torch", "pytorch"),
    ("TensorFlow as it writes itself", "TensorFlow", "tensorflow"),
    ("the usual short form", "tf", "tensorflow"),
    ("the short form in capitals", "TF", "tensorflow"),
    ("JAX as it writes itself", "JAX", "jax"),
)
def test_a_framework_is_known_by_its_usual_names(text: str, framework: str) -> None:
    assert request.parse_framework(text) == framework


@cases(
    "words version cuda",
    ("as pip has it", {"framework_version": "2.1.2+cu118"}, "==2.1.2", "11.8"),
    ("pip takes it so", {"framework_version": "==2.1.2+cu118"}, "==2.1.2", "11.8"),
    ("beside the same CUDA", {"framework_version": "2.1.2+cu118", "cuda": "11.8"}, "==2.1.2",
     "11.8"),
    ("without a build", {"framework_version": "2.1.2"}, "==2.1.2", None),
)  # fmt: skip
def test_a_version_with_its_build_names_the_cuda(
    words: dict[str, str], version: str, cuda: str | None
) -> None:
    made = request.parse_request(**words)  # type: ignore[arg-type]
    assert (made.framework_version, made.cuda) == (version, cuda)


def test_a_version_of_another_cuda_than_the_one_asked_for_is_refused() -> None:
    with pytest.raises(BadInputError) as caught:
        request.parse_request(framework_version="2.1.2+cu118", cuda="12.1")
    assert "is a build for CUDA 11.8, not for --cuda 12.1" in caught.value.message
    assert caught.value.fix == "Use --cuda 11.8, or remove --cuda."


def test_an_old_name_is_remembered_in_any_case() -> None:
    assert request.parse_request(framework="TensorFlow-GPU").asked_as == "tensorflow-gpu"
    assert request.parse_request(framework="TensorFlow").asked_as is None


@cases(
    "text meant",
    ("two letters swapped", "pytroch", "pytorch"),
    ("a letter missing", "tensorflw", "tensorflow"),
    ("a letter too many", "Jaxx", "jax"),
    ("near the package's name", "trch", "pytorch"),
    ("another framework", "caffe", None),
    ("nothing", "", None),
)
def test_a_framework_mistyped_is_guessed_and_not_taken(text: str, meant: str | None) -> None:
    refused = refusal(request.parse_framework, text)
    assert refused is not None
    assert "pytorch, tensorflow, jax" in refused.fix
    guess = f"Did you mean {meant}?"
    assert guess in refused.message if meant else "Did you mean" not in refused.message


@cases(
    "words expected",
    ("none", {}, (None, ())),
    ("in order, each once", {"apt": ["git", "ffmpeg", "git"]}, (None, ("ffmpeg", "git"))),
    ("for a base built here", {"apt": ["g++"], "base": "bootstrap"}, ("bootstrap", ("g++",))),
    ("for an image of a registry", {"apt": ["git"], "base": "python:3.11-slim"},
     ("python:3.11-slim", ("git",))),
    ("for a local image", {"apt": ["git"], "base": "oci:/base"},
     "--apt installs packages in a base that is built from Debian packages, or by an engine"),
    ("a version", {"apt": ["ffmpeg=7"]}, "--apt 'ffmpeg=7' is not the name"),
    ("a list", {"apt": ["git,ffmpeg"]}, "--apt 'git,ffmpeg' is not the name"),
    ("capitals", {"apt": ["FFmpeg"]}, "--apt 'FFmpeg' is not the name"),
    ("an option", {"apt": ["--no-install"]}, "--apt '--no-install' is not"),
    ("nothing", {"apt": [""]}, "--apt '' is not the name"),
)  # fmt: skip
def test_debian_packages_are_named_without_versions(
    words: dict[str, Any], expected: tuple[str | None, tuple[str, ...]] | str
) -> None:
    if isinstance(expected, str):
        with pytest.raises(BadInputError) as caught:
            request.parse_request(**words)
        assert caught.value.message.startswith(expected)
    else:
        made = request.parse_request(**words)
        assert (made.base, made.apt) == expected
