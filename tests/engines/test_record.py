"""Records and the GitHub Action, with the real engine, the real image and the real suite."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from tests import need
from tests.engines.lab import ROOT, Built, Done, World
from tests.unit.test_ci_templates import Runner

pytestmark = pytest.mark.docker

SCHEMA = json.loads((ROOT / "verify" / "report.schema.json").read_text())
FILES = ("report", "junit", "html", "markdown", "prometheus", "verdict")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def verified(world: World, built: Built, place: Path) -> Done:
    """One run with every file that can be asked for."""
    files = [word for name in FILES for word in (f"--{name}", str(place / name))]
    words = ["verify", built.tag, "--level", "quick", "--record", str(place / "record"), *files]
    return world.provision(*words, "--json", XDG_STATE_HOME=str(place / "state"))


def test_every_file_is_there_without_a_gpu_too(verified: Done, place: Path) -> None:
    assert verified.code in {0, 7}, verified.err
    assert json.loads((place / "report").read_text()) == verified.account
    jsonschema.validate(verified.account, SCHEMA)
    cases = list(ET.parse(place / "junit").getroot().iter("testcase"))
    assert len(cases) == len(verified.account["checks"])
    assert "<html" in (place / "html").read_text()
    assert "gpu_provision" in (place / "prometheus").read_text()
    assert "overall_severity" in json.loads((place / "verdict").read_text())


def test_the_record_speaks_of_the_image(
    world: World, built: Built, verified: Done, place: Path
) -> None:
    need.no_gpu()
    assert verified.code == 7
    words = ("verify", built.tag, "--check-record", str(place / "record"), "--json")
    done = world.provision(*words, XDG_STATE_HOME=str(place / "state"))
    assert done.code == 7, done.err
    assert done.account["error"]["code"] == "record-no-verdict"
    assert done.account["image"] == built.account["image"]["digest"]
    assert done.account["changed"] == []


@pytest.fixture
def other(client: Any, built: Built) -> Iterator[str]:
    """Another image of the same plan and lock."""
    container = client.containers.create(built.tag, ["true"])
    image = container.commit("gpu-provision-test", "other")
    container.remove()
    yield "gpu-provision-test:other"
    client.images.remove(image.id, force=True)


def test_a_record_is_not_that_of_another_image(
    world: World, other: str, verified: Done, place: Path
) -> None:
    del verified
    words = ("verify", other, "--check-record", str(place / "record"), "--json")
    done = world.provision(*words, XDG_STATE_HOME=str(place / "state"))
    assert (done.code, done.account["error"]["code"]) == (7, "record-other-image")
    assert [change["what"] for change in done.account["changed"]] == ["image"]


def test_a_record_that_was_edited_is_refused(
    world: World, built: Built, verified: Done, place: Path
) -> None:
    del verified
    envelope = json.loads((place / "record").read_text())
    envelope["payload"] = envelope["payload"].replace("eyJ", "eyK", 1)
    (place / "edited").write_text(json.dumps(envelope))
    words = ("verify", built.tag, "--check-record", str(place / "edited"), "--json")
    done = world.provision(*words, XDG_STATE_HOME=str(place / "state"))
    assert (done.code, done.account["error"]["code"]) == (2, "record-tampered")


def test_the_action_verifies_the_real_image(world: World, built: Built, tmp_path: Path) -> None:
    """All of it is real but ./run, which would make an environment; the command is called."""
    runner = Runner(
        tmp_path, f'#!/bin/sh\nshift\ncd "{ROOT}" && exec "{sys.executable}" -m provision "$@"\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in world.env.items():
            patch.setitem(os.environ, name, value)
        ran = runner.run("-", image=built.tag, level="quick", require="", allow_no_verdict="true")
    assert ran.code == 0, ran.log
    verdict = ran.outputs["steps.verify.outputs.verdict"]
    assert verdict in {"fit", "no-verdict"}
    assert "devices" in ran.summary
    report = json.loads(Path(ran.outputs["steps.verify.outputs.report"]).read_text())
    assert report["verdict"] == verdict
