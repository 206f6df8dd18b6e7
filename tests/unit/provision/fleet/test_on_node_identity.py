"""A node runs a file or a directory only if it has the bytes that the caller read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from provision.fleet.nodes.calls import NodeFailure
from provision.fleet.nodes.in_image import ImageWork, NodeRun, run_in_image, suite_command
from provision.fleet.nodes.work import NodeLimits
from provision.fleet.on_node.identity import layout_has
from tests.kit.cases import cases
from tests.unit.provision.fleet.test_in_image import Node
from tests.unit.provision.verification.test_subject import layout as make_layout

CONTENT = b"hsqs" + bytes(2_000_000)
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
REPORT = "import json, sys, os\nprint(json.dumps({'verdict': 'fit', 'checks': []}, indent=1))\n"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "torch.sqsh"
    path.write_bytes(CONTENT)
    return path


def engine(node: Node, name: str, body: str = "") -> None:
    """A program that runs any image, and then does `body`."""
    program = node.place / "bin" / name
    python = (node.place / "bin" / "python3").readlink()
    program.write_text(
        f"#!{python}\n{REPORT}open({str(node.asked)!r}, 'a').write('asked\\n')\n{body}\n"
    )
    program.chmod(0o755)


def ran(node: Node, image: str, digest: str | None, timeout_s: float = 60) -> NodeRun:
    work = ImageWork(
        image=image, command=suite_command("--json"), timeout_s=timeout_s, digest=digest,
        ways=("podman", "apptainer", "enroot"),
    )  # fmt: skip
    limits = NodeLimits(1, timeout_s + 30)
    (run,) = run_in_image([node.call()], lambda _: work, limits, lambda _: None)
    return run


def failure(run: NodeRun) -> NodeFailure:
    assert run.failure is not None, run
    assert run.json is None
    return run.failure


WAYS = pytest.mark.parametrize("way", ["apptainer", "enroot"])


@WAYS
def test_a_file_with_these_bytes_is_run(node: Node, file: Path, way: str) -> None:
    engine(node, way)
    assert ran(node, str(file), DIGEST).json is not None


def cut(path: Path) -> None:
    path.write_bytes(CONTENT[:-1])


def other_byte(path: Path) -> None:
    path.write_bytes(CONTENT[:-1] + b"x")


@WAYS
@cases(
    "change code",
    ("a byte differs", other_byte, "other-image-on-node"),
    ("it is shorter", cut, "other-image-on-node"),
    ("there is none", Path.unlink, "no-image-on-node"),
)
def test_another_file_is_not_run(
    node: Node, file: Path, way: str, change: Callable[[Path], object], code: str
) -> None:
    engine(node, way)
    change(file)
    found = failure(ran(node, str(file), DIGEST))
    assert found.code == code
    assert str(file) in found.message
    assert found.fix
    assert not node.asked.exists()


@WAYS
def test_a_file_that_changes_during_the_run_has_no_result(node: Node, file: Path, way: str) -> None:
    engine(node, way, f"open({str(file)!r}, 'a').write('x')")
    assert "was changed or replaced" in failure(ran(node, str(file), DIGEST)).message


def test_hashing_ends_with_the_time_limit(node: Node, file: Path) -> None:
    engine(node, "apptainer")
    assert failure(ran(node, str(file), DIGEST, timeout_s=0.0)).code == "node-timeout"


def test_a_reference_of_a_registry_is_pinned_by_its_name(node: Node) -> None:
    engine(node, "apptainer")
    assert ran(node, f"r.example/a@{DIGEST}", DIGEST).json is not None


# A layout directory -------------------------------------------------------------------------------


OTHER = b'{"of": "another processor"}'


@pytest.fixture
def layout(tmp_path: Path) -> tuple[str, str]:
    """A layout with an image, and an index that has a second name; the image's place and digest."""
    place = tmp_path / "layout"
    make_layout(place, "a:1")
    other = f"sha256:{hashlib.sha256(OTHER).hexdigest()}"
    index = json.dumps({"schemaVersion": 2, "manifests": [{"digest": other}]}).encode()
    for content in (OTHER, index):
        (place / "blobs/sha256" / hashlib.sha256(content).hexdigest()).write_bytes(content)
    names = json.loads((place / "index.json").read_text())
    digest = f"sha256:{hashlib.sha256(index).hexdigest()}"
    annotations = {"org.opencontainers.image.ref.name": "b:1"}
    names["manifests"].append({"digest": digest, "annotations": annotations})
    (place / "index.json").write_text(json.dumps(names))
    return f"oci:{place}", names["manifests"][0]["digest"]


def test_a_layout_has_the_manifest_that_a_name_leads_to(layout: tuple[str, str]) -> None:
    place, digest = layout
    second = f"sha256:{hashlib.sha256(OTHER).hexdigest()}"
    assert layout_has(f"{place}:a:1", digest)
    assert layout_has(f"{place}:b:1", second), "of an index"
    assert not layout_has(f"{place}:b:1", digest), "that is the other name's"
    assert not layout_has(f"{place}:c:1", digest), "there is no such name"


def test_a_manifest_that_was_changed_is_not_it(layout: tuple[str, str]) -> None:
    place, digest = layout
    blob = Path(place[4:], "blobs/sha256", digest[7:])
    blob.write_bytes(blob.read_bytes() + b" ")
    assert not layout_has(f"{place}:a:1", digest)


@cases(
    "text code",
    ("as it was", None, None),
    ("damaged", "{", "no-image-on-node"),
    ("nested too deeply", "[" * 100_000, "no-image-on-node"),
    ("a list", "[]", "other-image-on-node"),
    ("no list", '{"manifests": {"a": 1}}', "other-image-on-node"),
    ("no digest", '{"manifests": [{"digest": ["x"]}]}', "other-image-on-node"),
    ("a path", '{"manifests": [{"digest": "sha256:../../x"}]}', "other-image-on-node"),
    ("null", '{"manifests": [{"annotations": null, "digest": 1}]}', "other-image-on-node"),
)
def test_what_a_node_says_of_a_layout(
    node: Node, layout: tuple[str, str], text: str | None, code: str | None
) -> None:
    place, digest = layout
    if text is not None:
        Path(place[4:], "index.json").write_text(text)
    engine(node, "podman")
    run = ran(node, f"{place}:a:1", digest)
    assert (None if run.failure is None else run.failure.code) == code
