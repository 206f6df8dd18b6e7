"""The contract of `--json`: values and exit codes; its keys and types are those of docs/schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from images.oci.layout import LayoutTarget
from images.oci.model import MANIFEST
from provision.errors import Exit
from provision.verification import own_images
from tests import DATA, ROOT
from tests.kit import schemas
from tests.kit.cases import cases
from tests.kit.fake_engine import Engine
from tests.kit.oci_images import write_image
from tests.unit.provision.cli.test_cli import main

DOCUMENTED = DATA / "hosts" / "documented.json"
HOSTS: dict[str, dict[str, Any]] = {
    "unknown": {},
    "rtx3090": json.loads(DOCUMENTED.read_text()),
    "a100-470": {"driver": "470.82.01", "gpus": [{"name": "NVIDIA A100-SXM4-80GB"}]},
    "h100": {"driver": "535.104.05", "gpus": [{"name": "NVIDIA H100 80GB HBM3"}]},
    "nothing there": {"gpus": [], "driver": None, "arch": "aarch64"},
    "no such gpu": {"driver": "535.104.05", "gpus": [{"name": "Voodoo 2"}]},
}


def run(words: list[str], stdin: str = "{}") -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command, in this process."""
    said = main(*words, stdin=stdin)
    return said.code, said.out, said.err


def plan(host: str, *words: str) -> tuple[int, dict[str, Any]]:
    code, out, err = run(["plan", "--json", "--host", "-", *words], json.dumps(HOSTS[host]))
    assert err == "" or code != 0
    data: dict[str, Any] = json.loads(out)
    return code, data


@cases(
    "host words verdict code",
    ("a driver of that CUDA's own time", "rtx3090", "--cuda 11.7", "direct", 0),
    ("an older minor version", "a100-470", "--cuda 11.7", "minor-version", 0),
    ("cuda-compat on a data-centre GPU", "a100-470", "--cuda 12.1", "forward", 0),
    ("nothing is known", "unknown", "--cuda 11.7", "unverified", 0),
    ("no GPU there", "nothing there", "", "unverified", 0),
    ("a GPU nobody knows", "no such gpu", "--cuda 11.8", "unverified", 0),
    ("a GPU newer than the wheel", "h100", "--cuda 11.7", "none", 3),
    ("a driver too old for any way", "a100-470", "--cuda 13.0", "none", 3),
    ("a framework for newer drivers", "rtx3090", "--framework jax", "none", 3),
    ("a Python that no wheel is for", "rtx3090", "--python 3.30", "none", 3),
)
def test_a_plan_has_the_contract_s_shape(host: str, words: str, verdict: str, code: int) -> None:
    exit_code, data = plan(host, *words.split())
    assert (data["verdict"], exit_code) == (verdict, code)
    assert schemas.problems("plan", data) == []
    assert (data["error"] is None) == (verdict != "none")


def test_a_result_with_another_key_or_type_is_not_as_its_schema_says() -> None:
    _, data = plan("rtx3090", "--cuda", "11.7")
    wrong = {**data, "cuda": 11.7, "more": 1, "gpus": [{"name": "a"}]}
    assert len(schemas.problems("plan", wrong)) == 5
    assert schemas.problems("lock", {"schema": 1, "plan": wrong})


def test_every_schema_is_one_and_is_named_in_the_documentation() -> None:
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    for path in schemas.SCHEMAS.iterdir():
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text("utf-8")))
        assert f"](schemas/{path.name})" in page


@cases(
    "host words",
    ("it fits", "rtx3090", "--cuda 11.7"),
    ("nothing known", "unknown", "--cuda 12.1"),
    ("with a companion", "a100-470", "--cuda 12.1 --with torchvision"),
)
def test_a_plan_that_fits_says_everything_a_lock_needs(host: str, words: str) -> None:
    _, data = plan(host, *words.split())
    needed = ("cuda", "wheel_tag", "index", "python", "arch", "flavour", "base", "indexes")
    assert [key for key in needed if not data[key]] == []
    assert data["framework"]["name"] == "pytorch"
    assert data["wheel_tag"] == "cu" + data["cuda"].replace(".", "")
    assert data["reasons"]


@pytest.mark.parametrize("host", HOSTS)
def test_what_runs_on_a_gpu_is_one_of_few_words(host: str) -> None:
    import re

    _, data = plan(host, "--cuda", "11.8")
    words = re.compile(r"sm_\d{2,3}( binary)?|PTX|none|unknown")
    assert [gpu["runs"] for gpu in data["gpus"] if not words.fullmatch(gpu["runs"])] == []
    if data["verdict"] in {"direct", "minor-version", "forward"}:
        assert all(gpu["ok"] for gpu in data["gpus"])


def test_codes_are_kebab_case() -> None:
    import re

    for host in HOSTS:
        _, data = plan(host, "--cuda", "11.7")
        rows = [*data["reasons"], *data["warnings"], *([data["error"]] if data["error"] else [])]
        assert [r for r in rows if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", r["code"])] == []


def test_what_detect_prints_is_a_host_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    code, out, err = run(["detect", "--json"])
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert {"schema", "driver", "arch", "glibc", "os", "python", "gpus"} <= set(facts)
    code, planned, _ = run(["plan", "--json", "--host", "-", "--cuda", "11.7"], out)
    assert code in {0, 3}
    code, here, _ = run(["plan", "--json", "--cuda", "11.7"])
    strip = ("warnings", "reasons")  # these name the host, "standard input" or this one
    theirs, ours = json.loads(planned), json.loads(here)
    assert [theirs.pop(key) and ours.pop(key) for key in strip]
    assert theirs == ours


def test_exit_codes_are_those_of_the_contract() -> None:
    assert {code.name: int(code) for code in Exit} == {
        "DONE": 0, "UNFIT": 1, "USAGE": 2, "NOTHING_COMPATIBLE": 3, "HOST_UNFIT": 4,
        "UNREACHABLE": 5, "BUILD_FAILED": 6, "NO_VERDICT": 7, "BUG": 70, "INTERRUPTED": 130,
    }  # fmt: skip


def test_no_login_is_in_a_plan() -> None:
    _, data = plan("rtx3090", "--cuda", "11.7", "--index", "https://me:canary@e.example/simple")
    assert data["index"] == "https://e.example/simple"
    assert "canary" not in json.dumps(data)


def test_the_images_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(own_images, "image_engines", dict)
    layout = LayoutTarget.open(tmp_path / "gpu-provision" / "images")
    engine = Engine()
    labels = engine.labels(engine.digest)
    layout.publish(write_image(layout, config={"Labels": labels}), MANIFEST, name="team/app:1")
    layout.close()
    code, out, err = run(["ls", "--json"])
    data = json.loads(out)
    assert (code, err) == (0, "")
    (image,) = data["images"]
    code, out, _ = run(["rm", "--json", "team/app:1"])
    assert (code, json.loads(out)["error"]["code"]) == (2, "not-confirmed")
    code, out, _ = run(["rm", "--json", "--yes", "team/app:1"])
    assert (code, json.loads(out)["removed"]) == (0, [image])
    assert json.loads(run(["ls", "--json"])[1])["images"] == []
