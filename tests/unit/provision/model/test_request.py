"""Words of the command line: what is understood, and what is refused with a way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.errors import BadInputError
from provision.model import request

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


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        pytest.param("11.7", "11.7", id="major and minor"),
        pytest.param("cu117", "11.7", id="a wheel tag is a spelling of it"),
        pytest.param("cu92", "9.2", id="an old wheel tag has one figure for the major"),
        pytest.param("cu130", "13.0", id="a wheel tag with minor zero"),
    ],
)
def test_cuda_is_understood(text: str, cuda: str) -> None:
    assert request.parse_cuda(text) == cuda


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("-11.7", id="negative"),
        pytest.param("latest", id="a word"),
        pytest.param("", id="nothing"),
        pytest.param("1" * 10_000, id="ten thousand figures"),
        pytest.param("11.7; rm -rf /", id="a shell command"),
        pytest.param("$(id)", id="a shell substitution"),
        pytest.param("11.7\n", id="a newline after it"),
        pytest.param("11", id="a major alone"),
        pytest.param("11.7.1", id="a patch release"),
        pytest.param("\u0661\u0661.\u0667", id="figures of another script"),
        pytest.param("cu1", id="too short a tag"),
    ],
)
def test_what_is_no_cuda_version_is_refused(text: str) -> None:
    with pytest.raises(BadInputError) as caught:
        request.parse_cuda(text)
    assert caught.value.exit_code == 2
    assert "--cuda 11.7" in caught.value.fix
    assert "Without --cuda" in caught.value.fix
    assert len(caught.value.message) < 120


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        pytest.param("12.2", True, id="a CUDA version"),
        pytest.param("11.8", True, id="an older CUDA version"),
        pytest.param("latest", False, id="a word"),
        pytest.param("5.15", False, id="a kernel's version"),
    ],
)
def test_a_cuda_version_for_a_driver_is_recognised(text: str, *, hint: bool) -> None:
    refused = refusal(request.parse_driver, text)
    assert refused is not None
    assert ("looks like a CUDA version" in refused.message) == hint


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        pytest.param(request.parse_python, "2.7", id="Python 2"),
        pytest.param(request.parse_python, "3.11.4", id="a patch release of Python"),
        pytest.param(request.parse_driver, "latest", id="a driver in words"),
        pytest.param(request.parse_driver, "515.65.01 ", id="a driver with a space"),
        pytest.param(request.parse_python, "3.14t", id="free-threaded Python"),
        pytest.param(request.parse_framework, "caffe", id="another framework"),
        pytest.param(request.parse_specifier, "", id="an empty specifier"),
        pytest.param(request.parse_specifier, "two", id="a specifier in words"),
        pytest.param(request.parse_requirement, "a b", id="two words"),
        pytest.param(request.parse_requirement, "x @ https://e.example/x.zip", id="no wheel's URL"),
        pytest.param(request.parse_requirement, "x @ file:///x-1-py3-none-any.whl", id="a file"),
        pytest.param(request.parse_requirement, "x @ https://[/x.whl", id="a broken URL"),
        pytest.param(request.parse_requirement, "./local", id="a path"),
        pytest.param(request.parse_index, "ftp://e.example", id="another scheme"),
        pytest.param(request.parse_index, "https://", id="no host"),
        pytest.param(request.parse_index, "https://e.example/{x}", id="not an address of a lock"),
        pytest.param(request.parse_index, "https://e.example:99999999/", id="no such port"),
        pytest.param(request.parse_base, "Python:3.11", id="capitals in an image's name"),
        pytest.param(request.parse_base, "--privileged", id="an option as a base"),
    ],
)
def test_bad_words_are_refused_with_a_fix(parse: object, text: str) -> None:
    assert callable(parse)
    with pytest.raises(BadInputError) as caught:
        parse(text)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("text", "public", "whole"),
    [
        pytest.param("numpy<2", "numpy<2", "", id="a name"),
        pytest.param("a @ https://h/a.whl", "a @ https://h/a.whl", "", id="an address"),
        pytest.param("a @ https://h/a.whl?sig=5e", "a @ https://h/a.whl", "https://h/a.whl?sig=5e",
                     id="a signature"),
        pytest.param("a[x] @ http://u:5e/c@h/a.whl ; os_name=='posix'",
                     'a[x] @ http://h/a.whl ; os_name == "posix"', "http://u:5e%2Fc@h/a.whl",
                     id="a password with a slash"),
    ],
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


@pytest.mark.parametrize(
    ("text", "specifier"),
    [
        pytest.param("2.0.1", "==2.0.1", id="a bare version means exactly it"),
        pytest.param(">=2,<2.1", "<2.1,>=2", id="a range"),
    ],
)
def test_specifiers(text: str, specifier: str) -> None:
    assert request.parse_specifier(text) == specifier


@given(st.text(max_size=300))
def test_no_text_crashes_a_parser(text: str) -> None:
    for parse in PARSERS:
        refused = refusal(parse, text)
        assert refused is None or (refused.fix and refused.message.isprintable())


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        pytest.param("pytorch", "pytorch", id="the name of the option's help"),
        pytest.param("PyTorch", "pytorch", id="as the project writes itself"),
        pytest.param("torch", "pytorch", id="the package's name"),
        pytest.param("Torch", "pytorch", id="the package's name with a capital"),
        pytest.param("TensorFlow", "tensorflow", id="TensorFlow as it writes itself"),
        pytest.param("tf", "tensorflow", id="the usual short form"),
        pytest.param("TF", "tensorflow", id="the short form in capitals"),
        pytest.param("JAX", "jax", id="JAX as it writes itself"),
    ],
)
def test_a_framework_is_known_by_its_usual_names(text: str, framework: str) -> None:
    assert request.parse_framework(text) == framework


@pytest.mark.parametrize(
    ("words", "version", "cuda"),
    [
        pytest.param({"framework_version": "2.1.2+cu118"}, "==2.1.2", "11.8", id="as pip has it"),
        pytest.param({"framework_version": "==2.1.2+cu118"}, "==2.1.2", "11.8",
                     id="pip takes it so"),
        pytest.param({"framework_version": "2.1.2+cu118", "cuda": "11.8"}, "==2.1.2", "11.8",
                     id="beside the same CUDA"),
        pytest.param({"framework_version": "2.1.2"}, "==2.1.2", None, id="without a build"),
    ],
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


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        pytest.param("pytroch", "pytorch", id="two letters swapped"),
        pytest.param("tensorflw", "tensorflow", id="a letter missing"),
        pytest.param("Jaxx", "jax", id="a letter too many"),
        pytest.param("trch", "pytorch", id="near the package's name"),
        pytest.param("caffe", None, id="another framework"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_a_framework_mistyped_is_guessed_and_not_taken(text: str, meant: str | None) -> None:
    refused = refusal(request.parse_framework, text)
    assert refused is not None
    assert "pytorch, tensorflow, jax" in refused.fix
    guess = f"Did you mean {meant}?"
    assert guess in refused.message if meant else "Did you mean" not in refused.message


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param({}, (None, ()), id="none"),
        pytest.param({"apt": ["git", "ffmpeg", "git"]}, (None, ("ffmpeg", "git")),
                     id="in order, each once"),
        pytest.param({"apt": ["g++"], "base": "bootstrap"}, ("bootstrap", ("g++",)),
                     id="for a base built here"),
        pytest.param({"apt": ["git"], "base": "python:3.11-slim"}, ("python:3.11-slim", ("git",)),
                     id="for an image of a registry"),
        pytest.param({"apt": ["git"], "base": "oci:/base"}, "--apt installs packages in a base that"
                     " is built from Debian packages, or by an engine", id="for a local image"),
        pytest.param({"apt": ["ffmpeg=7"]}, "--apt 'ffmpeg=7' is not the name", id="a version"),
        pytest.param({"apt": ["git,ffmpeg"]}, "--apt 'git,ffmpeg' is not the name", id="a list"),
        pytest.param({"apt": ["FFmpeg"]}, "--apt 'FFmpeg' is not the name", id="capitals"),
        pytest.param({"apt": ["--no-install"]}, "--apt '--no-install' is not", id="an option"),
        pytest.param({"apt": [""]}, "--apt '' is not the name", id="nothing"),
    ],
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
