"""A squashfs is known by its bytes: records, provenance, the gate. Files are really mounted; the
suite in them is a stand-in.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from images.engines.sandbox import hold, mounts
from images.engines.spec import RunJob, RunResult
from images.engines.squashfs.write import SquashfsFile
from images.oci.sources import Image
from images.system.hashed_file import FileChangedError, hash_file
from provision.attestation.provenance.documents import beside, make_documents
from provision.attestation.provenance.statement import BuildRun
from provision.attestation.signing.keys import own_signer
from provision.catalog.loading import load
from provision.lock.labels import labels_for
from provision.lock.lockfile import Lock
from provision.verification import subject
from provision.verification.subject import ImagePlaces, find_subject
from tests import need
from tests.kit.cases import cases
from tests.kit.fake_engine import PLAN, Engine, report, says
from tests.kit.sandbox_images import entry, image, layer
from tests.unit.provision.cli.test_cli import Said, main
from tests.unit.provision.verification.conftest import Place
from tests.unit.provision.verification.test_subject import no_engine

pytestmark = pytest.mark.xdist_group("squashfs")  # one /dev/fuse
LOCK = Lock(text="the lock", plan=PLAN, wheels=())


class Sandbox(Engine):
    """The stand-in as what runs a squashfs."""

    def prepare(self, image: Image, on_bytes: Callable[[int], None], **_: str) -> str:
        del on_bytes
        return str(image.squashfs)

    def remove(self, handle: str) -> None:
        del handle


@pytest.fixture
def sandbox(here: Place, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    need.program("tar2sqfs", "squashfs-tools-ng")
    need.program("squashfuse", "squashfuse")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        need.lacking("/dev/fuse cannot be opened", "modprobe fuse")
    del here
    made = Sandbox()
    monkeypatch.setattr(subject, "sandbox_here", lambda _: made)
    return made


def write(path: Path, content: bytes = b"good", base: Image | None = None) -> Path:
    """A squashfs that says it is always the same image, whatever its content."""
    one = image([layer(entry("f", content))], {"Labels": labels_for(LOCK, "1")})
    if base is not None:
        one = replace(base, layers=one.layers)
    with contextlib.closing(SquashfsFile.open(path)) as file:
        file.write(one)
        file.publish()
    return path


SAME = image([layer(entry("f", b"good"))], {"Labels": labels_for(LOCK, "1")})


def good(here: Place, name: str = "good.sqfs") -> Path:
    return write(here / name, base=SAME)


def evil(here: Place, name: str = "evil.sqfs") -> Path:
    return write(here / name, b"evil", base=SAME)


def answer(said: Said) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said.out)
    return found


def code(said: Said) -> tuple[int, str | None]:
    return said.code, (answer(said)["error"] or {"code": None})["code"]


# Records ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["image.sqfs", "image.sif"])
def test_a_record_proves_the_file_that_was_tested_and_no_other(
    here: Place, sandbox: Sandbox, name: str
) -> None:
    file = good(here, name)
    assert main("verify", str(file), "--json").code == 0
    assert sandbox.jobs
    checked = main("verify", str(file), "--check-record", "--json")
    assert code(checked) == (0, None)
    assert answer(checked)["image"] == hash_file(file).digest
    changed = evil(here, f"evil-{name}")
    assert code(main("verify", str(changed), "--check-record", "--json")) == (7, "record-missing")
    proof = str(here.records[0])
    said = main("verify", str(changed), "--check-record", proof, "--json")
    assert code(said) == (7, "record-other-image")


@pytest.mark.usefixtures("sandbox")
def test_a_copy_is_the_same_image(here: Place) -> None:
    file = good(here)
    assert main("verify", str(file)).code == 0
    copy = here / "copy.sqsh"
    copy.write_bytes(file.read_bytes())
    assert code(main("verify", str(copy), "--check-record", "--json")) == (0, None)


@pytest.mark.usefixtures("sandbox")
def test_the_report_and_the_record_name_the_file_alone(here: Place) -> None:
    file = good(here)
    said = main("verify", str(file), "--json", "--record", str(here / "r.json"))
    assert answer(said)["environment"]["image"] == hash_file(file).digest
    digest = hash_file(file).digest.removeprefix("sha256:")
    text = json.loads((here / "r.json").read_text())["payload"]
    subjects = json.loads(base64.b64decode(text))["subject"]
    assert [one["digest"]["sha256"] for one in subjects] == [digest]


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("words", [("verify", "--check-record"), ("gate", "--no-test")])
def test_a_record_of_an_earlier_version_proves_nothing_and_says_how_to_renew_it(
    here: Place, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """It names the image that the file says it is: as if the image itself had been tested."""
    file = good(here)
    real = subject._read
    with monkeypatch.context() as patch:
        as_before = SAME.image_id

        def read(text: str, image: Image, registry: str | None = None) -> Any:
            return replace(real(text, image, registry), image_id=as_before, digest=None, claims=())

        patch.setattr(subject, "_read", read)
        assert main("verify", str(file)).code == 0
    assert as_before[7:19] in here.records[0].name
    verb, option = words
    said = main(verb, str(file), option, "--json")
    assert code(said) == (7, "record-not-of-file")
    assert answer(said)["error"]["fix"] == f"Test the file: provision verify {file}"
    assert main("verify", str(file)).code == 0
    assert main(verb, str(file), option).code == 0


# The gate -----------------------------------------------------------------------------------------


def test_the_gate_is_undecided_for_a_changed_file(here: Place, sandbox: Sandbox) -> None:
    file = good(here)
    assert main("gate", str(file)).code == 0
    assert main("gate", str(file), "--no-test").out.startswith("open: ")
    write(file, b"evil", base=SAME)
    sandbox.jobs.clear()
    said = main("gate", str(file), "--no-test", "--json")
    assert code(said) == (7, "record-missing")
    assert answer(said)["open"] is None
    assert main("gate", str(file)).code == 0, "it is tested"
    assert len(sandbox.jobs) == 1


def longer(path: Path) -> None:
    with path.open("ab") as opened:
        opened.write(b"more")


@cases(
    "change",
    ("it is written", longer),
    ("it is replaced", lambda path: path.with_suffix(".x").rename(path)),
    ("it is removed", Path.unlink),
)
@pytest.mark.parametrize("words", [["verify"], ["gate"]])
def test_a_file_that_changes_during_the_run_is_not_proven(
    here: Place, sandbox: Sandbox, words: list[str], change: Callable[[Path], object]
) -> None:
    file = good(here)
    evil(here, "good.x")

    def run(job: RunJob) -> RunResult:
        change(file)
        return says(report())(job)

    sandbox.suite = run
    said = main(*words, str(file), "--json")
    assert code(said) == (7, "file-changed")
    assert here.records == []
    assert not list((here.home / "gate").glob("*.json"))


@pytest.mark.usefixtures("sandbox")
def test_a_report_of_a_node_is_kept_for_the_same_file_alone(here: Place) -> None:
    fleet = pytest.importorskip("provision.fleet.verify.order", reason="the core alone")
    has_report = pytest.importorskip("provision.fleet.verify.reports").has_report
    file = good(here)

    def order() -> Any:
        places = ImagePlaces(connect=no_engine, images=here / "images", state=here / "state")
        words: dict[str, Any] = {"level": "standard", "timeout_s": 60, "way": None}
        return fleet.read_order(find_subject(str(file), places), load(), provision="p", **words)

    found = report()
    found["environment"]["image"] = order().image_id
    (here / "n1.json").write_text(json.dumps(found))
    assert has_report(here / "n1.json", order())
    assert order().work().digest == hash_file(file).digest
    write(file, b"evil", base=SAME)
    assert not has_report(here / "n1.json", order())
    found["environment"]["image"] = SAME.image_id
    (here / "n1.json").write_text(json.dumps(found))
    assert not has_report(here / "n1.json", order()), "as an earlier version wrote it"


# Provenance ---------------------------------------------------------------------------------------


def state(here: Place, file: Path, images: list[str]) -> Path:
    """The statement of a build, beside the file."""
    now = datetime.now(timezone.utc)
    run = BuildRun(builder="oci", started=now, finished=now, request=None, options={})
    signer = own_signer(here.home / "keys")
    made = make_documents(LOCK, run, signer, name="x", images=images)
    path = beside(file)[1]
    path.write_bytes(made.bundle)
    return path


@pytest.mark.usefixtures("sandbox")
def test_provenance_is_of_the_file_and_found_beside_it(here: Place) -> None:
    file = good(here)
    check = ("verify", str(file), "--check-provenance", "--json")
    said = main(*check)
    assert code(said) == (7, "provenance-missing")
    assert f"--output {file}" in answer(said)["error"]["fix"]
    statement = state(here, file, [hash_file(file).digest, SAME.image_id])
    assert code(main(*check)) == (0, None)
    changed = evil(here)
    said = main("verify", str(changed), "--check-provenance", str(statement), "--json")
    assert code(said) == (7, "provenance-not-of-file")
    assert f"--output {changed}" in answer(said)["error"]["fix"]


@pytest.mark.usefixtures("sandbox")
def test_provenance_of_an_earlier_version_names_no_file(here: Place) -> None:
    file = good(here)
    state(here, file, [SAME.digest, SAME.image_id])
    said = main("verify", str(file), "--check-provenance", "--json")
    assert code(said) == (7, "provenance-not-of-file")


# Inspect ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("sandbox")
def test_inspect_says_what_identifies_it_and_what_it_says_it_is(here: Place) -> None:
    file = good(here)
    assert answer(main("inspect", str(file), "--json"))["environment"]["image"] == (
        hash_file(file).digest
    )
    shown = " ".join(main("inspect", str(file)).out.split())
    assert f"digest {hash_file(file).digest} of the file; it says that it is image" in shown
    assert SAME.image_id in shown


@pytest.mark.usefixtures("sandbox")
def test_damaged_blocks_are_an_error_with_a_fix(here: Place) -> None:
    """Blocks of data are overwritten; the tables behind them are whole."""
    letters = bytes(random.Random(1).choices(range(60), k=1_000_000))  # not stored as they are
    file = write(here / "bad.sqfs", b"\x7fELF\x02\x01\x01" + letters, base=SAME)
    whole = bytearray(file.read_bytes())
    whole[200_000:600_000] = b"\xff" * 400_000
    file.write_bytes(whole)
    assert code(main("inspect", str(file), "--json")) == (5, "image-unreadable")


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("sandbox")
@cases(
    "reference",
    ("another block", bytes(8)),
    ("the middle of a block", b"\x40" + bytes(7)),
)
def test_a_squashfs_without_a_root_ends_at_once_and_leaves_no_mount(
    here: Place, reference: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = tmp_path / "hold.py"  # it would give up after the test's time limit
    limit = f"_LONGEST_S = {hold._LONGEST_S}"
    patient.write_text(Path(hold.__file__).read_text().replace(limit, "_LONGEST_S = 3600"))
    monkeypatch.setattr(mounts, "_HOLD", patient)
    file = good(here)
    whole = bytearray(file.read_bytes())
    whole[32:40] = reference  # where the root's inode is
    file.write_bytes(whole)
    assert code(main("inspect", str(file), "--json")) in {
        (5, "image-unreadable"),
        (5, "image-mount"),
    }
    assert str(here.path) not in Path("/proc/self/mounts").read_text()


def test_a_name_that_leads_to_another_file_mounts_the_one_that_was_hashed(
    here: Place, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    del sandbox
    file, other = good(here), evil(here)
    real = mounts._hold

    def hold(*words: Any) -> Callable[[], None]:
        other.replace(file)
        return real(*words)

    state = hash_file(file).state
    monkeypatch.setattr(mounts, "_hold", hold)
    with mounts.mounted(file, state) as tree:
        assert (tree / "f").read_bytes() == b"good"
    assert str(here.path) not in Path("/proc/self/mounts").read_text()


@pytest.mark.usefixtures("sandbox")
@cases(
    "change",
    ("it is replaced", lambda path: path.with_suffix(".x").rename(path)),
    ("it is removed", Path.unlink),
)
def test_what_changes_after_it_was_hashed_is_not_mounted(
    here: Place, change: Callable[[Path], object]
) -> None:
    file = good(here)
    evil(here, "good.x")
    state = hash_file(file).state
    change(file)
    with pytest.raises(FileChangedError), mounts.mounted(file, state):
        pass
