"""Rules over pyproject.toml and environment.yml: seeded faults, and twins that differ in them."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.catalog.loading import load
from provision.doctor.lint import LintFinding, kind_of_text, lint
from provision.errors import BadInputError
from tests.kit.twins import twins

CATALOG = load()
INDEX = CATALOG.pytorch_index("{tag}").replace("/{tag}", "")


def findings_of(text: str, path: str = "pyproject.toml") -> list[LintFinding]:
    return lint(path, text, CATALOG)


def uv_index(tag: str, *packages: str, explicit: bool = True, name: str = "wheels") -> str:
    told = "".join(f'{package} = {{ index = "{name}" }}\n' for package in packages)
    return (
        f'[[tool.uv.index]]\nname = "{name}"\nurl = "{INDEX}/{tag}"\n'
        f"explicit = {str(explicit).lower()}\n" + (f"[tool.uv.sources]\n{told}" if told else "")
    )


def project(*dependencies: str, rest: str = "", python: str = "") -> str:
    said = f'requires-python = "{python}"\n' if python else ""
    listed = "".join(f'  "{one}",\n' for one in dependencies)
    return f'[project]\nname = "p"\nversion = "1"\n{said}dependencies = [\n{listed}]\n{rest}'


# rule, and the text with its fault and without: tests/kit/twins.py
TWINS = {
    "a companion of another torch":
        ("torch-pair", project("torch==2.1.0", "torchvision==[-0.15.2-][+0.16.0+]")),
    "a companion of another torch, in an extra": ("torch-pair", project("torch==2.1.0",
        rest='[project.optional-dependencies]\nv = ["torchvision==[-0.15.2-][+0.16.0+]"]')),
    "a companion of another torch, in a group": ("torch-pair", project("torch==2.1.0", rest=(
        '[dependency-groups]\nd = [[-"torchaudio==2.0.2"]-][+{include-group = "e"}]\ne = []+]'))),
    "two extras that are never installed together": ("torch-build-missing", project(rest=(
        '[project.optional-dependencies]\na = ["torch==2.1.0[-+cu122"]-][+"]\n'
        'b = ["torchvision==0.15.2", "torch==2.0.1"]+]'))),
    "uv's index of another CUDA": ("torch-index-other",
        project("torch==2.1.0+cu118", rest=uv_index("[-cu121-][+cu118+]", "torch"))),
    "an explicit index that nothing names": ("torch-index-missing", project("torch==2.1.0+cu118",
        rest=f"[-{uv_index('cu118')}-][+{uv_index('cu118', explicit=False)}+]")),
    "a CPU index beside what needs a GPU": ("torch-cpu-wheel", project("torch", "vllm", rest=(
        uv_index("cpu") + '[tool.uv.sources]\ntorch = [-{ index = "wheels" }\n-][+[{ index = '
        "\"wheels\", marker = \"sys_platform == 'darwin'\" }]+]"))),
    "torchvision not from torch's index": ("torch-companion-elsewhere", project("torch",
        "torchvision", rest=uv_index("cu124", "torch")
        + '[--][+torchvision = { index = "wheels" }\n+]')),
    "torchaudio not from torch's index": ("torch-companion-elsewhere", project("torch",
        "torchaudio", rest=uv_index("cu124", "torch").replace("true", "[-true-][+false+]"))),
    "no wheel for the Pythons that are asked for":
        ("python-without-wheel", project("torch==2.0.1", python=">=[-3.12-][+3.11+]")),
    "NumPy 2 beside a torch of NumPy 1":
        ("torch-numpy", project("torch==2.1.0", "numpy>=[-2-][+1.26,<2+]")),
    "Poetry's exact pins": ("torch-pair", (
        '[tool.poetry.dependencies]\npython = "^3.11"\n'
        'torch = "[--][+^+]2.1.0"\ntorchvision = "0.15.2"\n')),
    "Poetry's groups": ("package-retired",
        '[tool.poetry.group.gpu.dependencies]\n[-pytorch-][+torch+] = "*"\n'),
    "Poetry's source of another CUDA": ("torch-index-other", (
        '[tool.poetry.dependencies]\ntorch = {version = "2.1.0+cu118", source = "w"}\n'
        f'[[tool.poetry.source]]\nname = "w"\nurl = "{INDEX}/[-cu121-][+cu118+]"\n'
        'priority = "explicit"\n')),
    "uv's old list for developers": ("tensorflow-gpu-retired",
        '[tool.uv]\ndev-dependencies = ["tensorflow[--gpu-][++]"]\n'),
    "uv's own index settings": ("torch-index-other", project("torch==2.1.0+cu118",
        rest=f'[tool.uv.pip]\nextra-index-url = ["{INDEX}/[-cu121-][+cu118+]"]')),
}  # fmt: skip
ENVIRONMENTS = {
    "conda's torch under pip's": ("torch-conda-and-pip", (
        "channels: [pytorch]\ndependencies:\n  - pytorch=2.1\n  - pip:\n"
        "      - [-torch==2.1.0-][+einops+]\n")),
    "a release that the channel never got": ("conda-channel-ended",
        "channels: [pytorch, nvidia]\ndependencies:\n  - pytorch=[-2.6.0-][+2.5.1+]\n"),
    "the same, the channel named with the package": ("conda-channel-ended", (
        "dependencies:\n  - [-pytorch-][+conda-forge+]::pytorch>=2.7\n"
        "channels: [[-conda-forge-][+pytorch+]]\n")),
    "pip's part is judged as a requirements file": ("torch-index-other", (
        "channels: [defaults]\ndependencies:\n  - python=3.11\n  - pip:\n"
        f"      - --extra-index-url {INDEX}/[-cu121-][+cu118+]\n      - torch==2.1.0+cu118\n")),
    "conda's Python has no wheel of it": ("python-without-wheel", (
        "channels: [defaults]\ndependencies:\n  - python=[-3.12-][+3.11+]\n"
        "  - pip:\n    - torch==2.0.1\n")),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "text"), TWINS.values(), ids=TWINS)
def test_a_project_and_its_twin(rule: str, text: str) -> None:
    fault, clean = twins(text)
    assert rule in {one.rule for one in findings_of(fault)}
    assert rule not in {one.rule for one in findings_of(clean)}


@pytest.mark.parametrize(("rule", "text"), ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_an_environment_and_its_twin(rule: str, text: str) -> None:
    fault, clean = twins(text)
    for path in ("environment.yml", "envs/gpu.yml", "env_gpu.yaml"):
        assert rule in {one.rule for one in findings_of(fault, path)}
        assert rule not in {one.rule for one in findings_of(clean, path)}


def test_a_finding_stands_on_its_own_line() -> None:
    text = project("numpy", "torch==2.1.0", "torchvision==0.15.2", rest="# torchvision==0.15.2\n")
    (finding,) = findings_of(text)
    assert text.splitlines()[finding.line - 1].strip() == '"torchvision==0.15.2",'
    assert finding.replacement == '  "torchvision==0.16.0",'
    text, _ = twins(ENVIRONMENTS["pip's part is judged as a requirements file"][1])
    (finding,) = findings_of(text, "environment.yml")
    assert text.splitlines()[finding.line - 1].strip().startswith("- --extra-index-url")
    text, _ = twins(TWINS["Poetry's exact pins"][1])
    (finding,) = findings_of(text)
    assert text.splitlines()[finding.line - 1].startswith("torchvision")


def test_what_two_installs_share_is_told_once() -> None:
    text = project(
        "torch==2.1.0", "torchvision==0.15.2", rest='[dependency-groups]\na = ["x"]\nb = ["y"]'
    )
    assert len(findings_of(text)) == 1


def test_a_finding_can_be_silenced() -> None:
    text = project("torch==2.1.0", "torchvision==0.15.2").replace(
        '0.15.2",', '0.15.2",  # provision: ignore=torch-pair'
    )
    assert findings_of(text) == []


def test_an_environment_is_known_by_what_stands_in_it() -> None:
    text, _ = twins(ENVIRONMENTS["a release that the channel never got"][1])
    assert kind_of_text(text) == "environment"
    assert findings_of(text, "machine.yml")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "project = 3",
        "[project]\ndependencies = 'torch'",
        "[project]\ndependencies = [1, {a = 2}, 'torch ==', '']\nrequires-python = 3",
        "[project]\nrequires-python = 'three'\ndependencies = ['torch==2.0.1']",
        "[tool.uv]\nindex = {url = 3}\nsources = []\ndev-dependencies = {}",
        "[[tool.uv.index]]\n[tool.uv.sources]\ntorch = 'wheels'\ntorchvision = [3]",
        "[tool.poetry]\nsource = 3\ngroup = []\n[tool.poetry.dependencies]\ntorch = 3\nb = []",
        "[tool.poetry.group]\na = 3\n[[tool.poetry.source]]\nname = 'x'",
        "[dependency-groups]\na = 3\nb = [[]]",
    ],
)
def test_a_project_of_another_form_is_passed_over(text: str) -> None:
    assert findings_of(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dependencies: 3\nchannels: {a: b}",
        "dependencies: [3, [], {pip: torch}, {pip: {a: b}}, {pip: [[], {}, '']}, '']",
        "- dependencies",
    ],
)
def test_an_environment_of_another_form_is_passed_over(text: str) -> None:
    assert findings_of(text, "environment.yml") == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("pyproject.toml", "[project\n"),
        ("pyproject.toml", "a = " + "[" * 100_000),
        ("environment.yml", "a: [\n"),
        ("environment.yml", "[" * 5000),
    ],
)
def test_what_cannot_be_read_is_bad_input(path: str, text: str) -> None:
    began = time.monotonic()
    with pytest.raises(BadInputError, match=f"{path} is n"):
        findings_of(text, path)
    assert time.monotonic() - began < 60


@given(st.text(max_size=300), st.sampled_from(["pyproject.toml", "environment.yml"]))
def test_any_text_has_findings_or_a_sentence(text: str, path: str) -> None:
    with contextlib.suppress(BadInputError):
        findings_of(text, path)
