"""The page's bytes: the same for the same catalog, whole or not there, and what its questions are.

What it says, and how it is used, is tested in tests/browser/test_catalog_page.py.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from provision.catalog.catalog import Catalog
from provision.catalog.loading import load
from provision.cli import main as cli
from provision.errors import Exit
from provision.page.questions import choices, driver_ranges, holes, marked
from provision.page.site import data, page
from provision.resolve.specifiers import version
from tests import ROOT

# The command, with a tenth of the GPUs: what is answered first comes before any answer.
START = [
    *(sys.executable, "-c"),
    """
from provision.__main__ import run
from provision.catalog import loading
catalog = loading.load()
catalog.gpus = catalog.gpus[::10]
run()
""",
    *("catalog", "page"),
]
# A catalog that takes seconds: two cards, and the two newest branches.
SMALL = """
import hashlib
from provision.catalog.loading import load
from provision.page.site import page
catalog = load()
catalog.gpus, catalog.branches = catalog.gpus[60:62], catalog.branches[-2:]
print(hashlib.sha256(page(catalog, lambda text: None)).hexdigest())
"""


def small() -> Catalog:
    catalog = load()
    return catalog.with_tables(gpus=catalog.gpus[60:62], branches=catalog.branches[-2:])


def test_the_same_catalog_gives_the_same_bytes() -> None:
    """Whatever the order of Python's sets."""
    found = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SMALL], env=env, cwd=ROOT, capture_output=True, check=True
        )
        found.add(done.stdout.strip().decode())
    assert found == {hashlib.sha256(page(small(), lambda _: None)).hexdigest()}


def test_data_in_the_page_cannot_end_its_element() -> None:
    name = "</script><b>&\u2028"
    catalog = small()
    renamed = catalog.with_tables(gpus=(catalog.gpus[0]._replace(name=name),))
    text = page(renamed, lambda _: None).decode()
    assert "</script><b>" not in text
    inside = text.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(inside)["gpus"][0]["name"] == name


def test_every_node_is_there_once_and_after_its_parts() -> None:
    nodes = data(small(), lambda _: None)["nodes"]
    kept = [(type(node), tuple(node) if isinstance(node, tuple) else node) for node in nodes]
    assert len(set(kept)) == len(kept)
    for position, node in enumerate(nodes):
        if isinstance(node, tuple):
            assert all(child < position for child in node[1:])


def test_ranges_of_drivers_follow_each_other() -> None:
    ranges = driver_ranges(load())
    numbers = [version(one.first or str(one.branch)) for one in ranges[1:]]
    assert numbers == sorted(set(numbers))
    assert {one.branch for one in ranges[1:]} == {row.branch for row in load().branches}
    for one, after in itertools.pairwise(ranges[1:]):
        assert version(one.first or str(one.branch)) < version(one.sample or "")
        assert version(one.sample or "") < version(after.first or str(after.branch))


def test_marks_are_in_no_text_of_the_catalog() -> None:
    """What is replaced by a hole is nothing but what is repeated."""
    texts = json.dumps(load().files["torch.json"].raw) + json.dumps(
        load().files["drivers.json"].raw
    )
    catalog = marked(load())
    for gpu in catalog.gpus:
        for one in driver_ranges(load()):
            for text in set(holes(gpu, one, catalog)) - {gpu.name}:
                assert text not in texts
    for name in ("{gpu}", "{driver}", "{native}", "{since}"):
        assert name not in texts


def test_what_can_be_asked_is_what_there_is() -> None:
    for one in choices(load()):
        assert one.cudas[0] is None
        assert one.pythons[0] is None
    asked = {(one.framework, one.arch): one for one in choices(load())}
    assert "11.8" in asked["pytorch", "x86_64"].cudas
    assert "11.8" not in asked["pytorch", "aarch64"].cudas
    assert asked["tensorflow", "aarch64"].cudas == (None,)
    assert "3.15" not in asked["pytorch", "x86_64"].pythons  # no image of it is sure to exist


@pytest.mark.parametrize("where", ["file", "file/below", ""])
def test_a_directory_that_cannot_be_made(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "index.html").mkdir()
    assert cli.main(["catalog", "page", "--output", where]) == Exit.USAGE
    assert "fix:" in capsys.readouterr().err


@pytest.mark.timeout(400)
def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    words = [*START, "--output", str(tmp_path), "--verbose"]
    process = subprocess.Popen(
        words, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stderr is not None
        seen = b"".join(process.stderr.readline() for _ in range(3))  # the first answers are there
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert b"different machines" in seen
    assert process.returncode == Exit.INTERRUPTED
    assert b"Traceback" not in err
    assert out == b""
    assert list(tmp_path.iterdir()) == []
