"""The user's copy of catalog rows: whole or not there, and laid over the shipped tables by rule."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from provision.catalog.loading import current, load
from provision.catalog.overlay import (
    IDENTITIES,
    Overlay,
    OverlayError,
    _checksum,
    merged,
    overlay_path,
    read_overlay,
    write_overlay,
)
from provision.catalog.tables import TABLES
from provision.errors import CatalogError, Exit
from tests import ROOT
from tests.kit.cases import cases
from tests.kit.programs import run_program
from tools.checks import check

TODAY = "2030-01-01"
SHIPPED = "2026-11-21"
SOURCES = {"seen": "a page that was read for this test"}

RELEASE: dict[str, object] = {
    "version": "2.99.0", "requires_python": ">=3.10", "torchvision": None, "torchaudio": None,
    "upload_time": "2029-12-24T00:00:00", "yanked": False, "numpy": None, "source": "seen",
    "as_of": TODAY,
}  # fmt: skip
BUILD: dict[str, object] = {
    "version": "2.99.0", "tag": "cu130", "cuda": "13.0", "arch": "x86_64",
    "python_tags": ["cp312-cp312"], "sm": ["sm_80", "sm_90"], "ptx": None, "cudnn": "9.13.0.50",
    "nccl": None, "glibc": "2.28", "existence": "confirmed", "at": ["pytorch"], "source": "seen",
    "as_of": TODAY,
}  # fmt: skip


def overlay(**tables: Mapping[str, object]) -> Overlay:
    """One row a table."""
    return Overlay(
        date=TODAY, sources=SOURCES, tables={name: (row,) for name, row in tables.items()}
    )


NEW = overlay(releases=RELEASE, builds=BUILD)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gpu-provision" / "catalog.json"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_DATA_HOME": str(tmp_path)}


def put_raw(path: Path, **changes: Any) -> None:
    """A file with a right checksum, whatever its content."""
    raw: dict[str, Any] = {"schema": 1, "date": TODAY, "sources": SOURCES, "tables": {}, **changes}
    raw["sha256"] = _checksum(raw)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(raw), encoding="utf-8")


class TestPlace:
    @cases(
        "env expected",
        ("XDG_DATA_HOME decides", {"XDG_DATA_HOME": "/data", "HOME": "/home/me"},
         "/data/gpu-provision/catalog.json"),
        ("without it the home directory", {"HOME": "/home/me"},
         "/home/me/.local/share/gpu-provision/catalog.json"),
        ("an empty one is none", {"XDG_DATA_HOME": "", "HOME": "/home/me"},
         "/home/me/.local/share/gpu-provision/catalog.json"),
        ("a relative one is none", {"XDG_DATA_HOME": "here", "HOME": "/home/me"},
         "/home/me/.local/share/gpu-provision/catalog.json"),
        ("without a home the root", {}, "/.local/share/gpu-provision/catalog.json"),
    )  # fmt: skip
    def test_where_it_lies(self, env: Mapping[str, str], expected: str) -> None:
        assert overlay_path(env) == Path(expected)


class TestReading:
    def test_what_was_written_is_read(self, path: Path) -> None:
        write_overlay(path, NEW)
        assert read_overlay(path) == NEW

    def test_words_of_any_script_survive(self, path: Path) -> None:
        spoken = Overlay(date=TODAY, sources={"seen": "ein Gerät, 一个设备"}, tables={})
        write_overlay(path, spoken)
        assert read_overlay(path) == spoken

    def test_no_file_is_no_overlay(self, path: Path) -> None:
        assert read_overlay(path) is None

    def test_a_file_for_a_directory_is_no_overlay(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        assert read_overlay(tmp_path / "file" / "catalog.json") is None

    @pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9, 0.999])
    def test_a_truncated_file_is_refused(self, path: Path, kept: float) -> None:
        write_overlay(path, NEW)
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data.rstrip()) * kept)])
        with pytest.raises(OverlayError, match="not complete JSON") as caught:
            read_overlay(path)
        assert "provision catalog refresh" in caught.value.fix

    def test_an_edited_file_is_refused(self, path: Path) -> None:
        write_overlay(path, NEW)
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace('"confirmed"', '"likely"'), encoding="utf-8")
        with pytest.raises(OverlayError, match="its checksum is not that of its content"):
            read_overlay(path)

    @cases(
        "changes what",
        ("another schema", {"schema": 2}, "it is not of schema 1"),
        ("a word for a date", {"date": "today"}, "date: expected a day"),
        ("a list of sources", {"sources": []}, "sources: expected a table"),
        ("a number for a source", {"sources": {"a": 1}}, "sources: expected"),
        ("a list of tables", {"tables": []}, "tables: expected lists"),
        ("a table nobody knows", {"tables": {"colours": []}}, "'colours' is no table"),
        ("no rows", {"tables": {"builds": {}}}, "builds: expected a list of rows"),
        ("a word for a row", {"tables": {"builds": ["cu117"]}}, r"builds\[0\]: expected an object"),
        ("a row that says not which it is",
         {"tables": {"builds": [{"version": "2.0.1", "source": "seen"}]}},
         r"builds\[0\]: missing tag, arch, as_of"),
        ("a number for a day", {"tables": {"builds": [BUILD | {"as_of": 2026}]}},
         r"builds\[0\]\.as_of: expected a day"),
        ("a word for a truth", {"tables": {"builds": [BUILD | {"measured": "yes"}]}},
         r"builds\[0\]\.measured: expected true or false"),
        ("a source that the file does not have",
         {"tables": {"builds": [BUILD | {"sm_source": ["hearsay"]}]}},
         r"builds\[0\]\.sm_source: expected keys of the file's sources"),
        ("a row without a source", {"tables": {"builds": [BUILD | {"source": []}]}},
         r"builds\[0\]\.source: expected keys of the file's sources"),
        ("a key nobody knows", {"colour": "red"}, "unknown key colour"),
    )  # fmt: skip
    def test_another_shape_is_refused(self, path: Path, changes: dict[str, Any], what: str) -> None:
        put_raw(path, **changes)
        with pytest.raises(OverlayError, match=what) as caught:
            read_overlay(path)
        assert (caught.value.code, caught.value.exit_code) == ("bad-catalog-copy", 4)
        assert str(path) in caught.value.message

    @pytest.mark.parametrize("text", ["[]", "null", "1", '"word"', "[" * 100_000, "\x00"])
    def test_any_text_is_refused(self, path: Path, text: str) -> None:
        path.parent.mkdir()
        path.write_text(text)
        with pytest.raises(OverlayError):
            read_overlay(path)

    def test_a_directory_is_refused(self, path: Path) -> None:
        path.mkdir(parents=True)
        with pytest.raises(OverlayError, match="not a regular file"):
            read_overlay(path)

    def test_a_pipe_does_not_hang(self, path: Path) -> None:
        path.parent.mkdir()
        os.mkfifo(path)
        with pytest.raises(OverlayError, match="not a regular file"):
            read_overlay(path)

    def test_a_link_to_itself_is_refused(self, path: Path) -> None:
        path.parent.mkdir()
        path.symlink_to(path)
        with pytest.raises(OverlayError, match=r"[Ss]ymbolic link"):
            read_overlay(path)

    def test_a_name_that_no_system_takes_is_refused(self) -> None:
        with pytest.raises(OverlayError):
            read_overlay(Path("/tmp/\x00/catalog.json"))

    def test_an_endless_file_is_refused(self, path: Path) -> None:
        path.parent.mkdir()
        with path.open("wb") as file:
            file.truncate(65 << 20)
        with pytest.raises(OverlayError, match="larger than 64 MiB"):
            read_overlay(path)


def as_nobody(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs Python code as a user without rights; whoever has none already stays who he is."""
    drop = "import os, sys\nsys.path.insert(0, sys.argv.pop(1))\n"
    drop += "if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
    load_first = (
        "from pathlib import Path\n"
        "from provision.catalog.loading import current\n"
        "from provision.catalog.overlay import *\n"
        "import provision.catalog.canonical, tempfile, hashlib\n"
        "import packaging.version\n"
        "current({})\n"
    )
    head = "import sys; sys.path.insert(0, sys.argv[1])\n"
    return run_program([sys.executable, "-c", head + load_first + drop + code, str(ROOT), *words])


class TestPermissions:
    def test_an_unreadable_directory_is_refused(self, path: Path) -> None:
        write_overlay(path, NEW)
        path.parent.chmod(0)
        done = as_nobody(
            "try: read_overlay(Path(sys.argv[1]))\nexcept OverlayError as e: print(e)\n", str(path)
        )
        path.parent.chmod(0o755)
        assert "Permission denied" in done.stdout, done.stderr

    def test_with_an_unreadable_directory_the_shipped_catalog_is_used(self, path: Path) -> None:
        write_overlay(path, NEW)
        path.parent.chmod(0)
        done = as_nobody(
            "catalog, note = current({'XDG_DATA_HOME': sys.argv[1]})\n"
            "print(len(catalog.torch), note)\n",
            str(path.parent.parent),
        )
        path.parent.chmod(0o755)
        assert done.stdout.startswith(f"{len(load().torch)} "), done.stderr
        assert "Permission denied" in done.stdout

    def test_a_directory_that_may_not_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "locked").mkdir(mode=0o555)
        done = as_nobody(
            "try: write_overlay(Path(sys.argv[1]), Overlay(date='2030-01-01', sources={},"
            " tables={}))\nexcept OverlayError as e: print(e, e.fix)\n",
            str(tmp_path / "locked" / "catalog.json"),
        )
        assert "Permission denied" in done.stdout, done.stderr
        assert "XDG_DATA_HOME=" in done.stdout


class TestWriting:
    def test_directories_are_made(self, tmp_path: Path) -> None:
        path = tmp_path / "a" / "b" / "catalog.json"
        write_overlay(path, NEW)
        assert [file.name for file in path.parent.iterdir()] == ["catalog.json"]
        assert path.stat().st_mode & 0o777 == 0o644

    def test_a_file_in_the_way_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(OverlayError, match="cannot be written") as caught:
            write_overlay(tmp_path / "file" / "catalog.json", NEW)
        assert caught.value.exit_code == Exit.HOST_UNFIT

    def test_a_wrong_row_is_never_written(self, path: Path) -> None:
        with pytest.raises(OverlayError, match=r"builds\[0\]: missing as_of"):
            write_overlay(path, overlay(builds={k: BUILD[k] for k in BUILD if k != "as_of"}))
        assert not path.exists()

    @pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
    @pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
    def test_an_interrupted_write_leaves_what_was_there(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
    ) -> None:
        write_overlay(path, NEW)

        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(os if step == "fsync" else Path, step, fail)
        with pytest.raises((KeyboardInterrupt, OverlayError)):
            write_overlay(path, overlay(releases=RELEASE))
        monkeypatch.undo()
        assert read_overlay(path) == NEW
        assert [file.name for file in path.parent.iterdir()] == ["catalog.json"]

    def test_a_killed_writer_leaves_a_whole_file(self, path: Path) -> None:
        write_overlay(path, overlay())
        for delay in (0.0, 0.003, 0.01, 0.03):
            writer = start_writer(path, "2031-01-01")
            time.sleep(delay)
            writer.kill()
            writer.wait(timeout=60)
            found = read_overlay(path)
            assert found is not None
            assert found.date in {TODAY, "2031-01-01"}

    def test_of_two_writers_one_wins_whole(self, path: Path) -> None:
        write_overlay(path, overlay())
        writers = [start_writer(path, date) for date in ("2031-01-01", "2032-02-02")]
        seen: set[str] = set()
        end = time.monotonic() + 60
        try:
            while len(seen) < 2 and time.monotonic() < end:
                found = read_overlay(path)
                assert found is not None
                assert {row["as_of"] for row in found.tables.get("cudnn", ())} <= {found.date}
                seen |= {found.date} - {TODAY}
        finally:
            for writer in writers:
                writer.kill()
                writer.wait(timeout=60)
        assert seen == {"2031-01-01", "2032-02-02"}
        assert read_overlay(path) is not None


def start_writer(path: Path, date: str) -> subprocess.Popen[bytes]:
    """A process that writes its own rows again and again; it has begun when this returns."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from provision.catalog.overlay import Overlay, write_overlay\n"
        "row = {'cuda_major': 12, 'source': 'seen', 'as_of': sys.argv[3]}\n"
        "rows = tuple({**row, 'version': f'9.{n}'} for n in range(500))\n"
        "copy = Overlay(date=sys.argv[3], sources={'seen': 'x'}, tables={'cudnn': rows})\n"
        "print(flush=True)\n"
        "while True: write_overlay(Path(sys.argv[2]), copy)\n"
    )
    argv = [sys.executable, "-c", code, str(ROOT), str(path), date]
    writer = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.readline()
    writer.stdout.close()
    return writer


OLD: dict[str, object] = {
    "version": "2.0", "tag": "cu118", "arch": "x86_64", "cuda": "11.8", "glibc": "2.17",
    "cudnn": None, "source": "page",
}  # fmt: skip


def named(rows: list[Mapping[str, object]]) -> list[str]:
    return [f"{row['version']} {row['tag']}" for row in rows]


class TestMerging:
    @cases(
        "changes expected",
        ("a newer row counts", {"as_of": TODAY, "glibc": "2.28"}, "2.28"),
        ("so does one of the day", {"as_of": SHIPPED, "glibc": "2.28"}, "2.28"),
        ("an older does not", {"as_of": "2026-11-20", "glibc": "2.28"}, "2.17"),
        ("a measured one counts whatever its day",
         {"as_of": "2020-01-01", "glibc": "2.28", "measured": True}, "2.28"),
        ("one that says it was not measured is as any other",
         {"as_of": "2020-01-01", "glibc": "2.28", "measured": False}, "2.17"),
        ("unknown is a value too", {"as_of": TODAY, "glibc": None}, None),
        ("a column that it lacks stays", {"as_of": TODAY}, "2.17"),
    )  # fmt: skip
    def test_which_of_two_counts(self, changes: dict[str, object], expected: str | None) -> None:
        row = {key: OLD[key] for key in ("version", "tag", "arch")} | {"source": "seen"} | changes
        (found,) = merged("builds", [OLD], [row], SHIPPED)
        assert found["glibc"] == expected
        assert not found.keys() & {"as_of", "measured"}

    def test_a_row_replaced_in_part_names_both_sources(self) -> None:
        row = {**{key: OLD[key] for key in ("version", "tag", "arch")}, "cudnn": "9"}
        (found,) = merged("builds", [OLD], [row | {"source": "seen", "as_of": TODAY}], SHIPPED)
        assert found["source"] == ["seen", "page"]

    def test_a_row_replaced_whole_names_its_own(self) -> None:
        (found,) = merged("builds", [OLD], [{**OLD, "source": "seen", "as_of": TODAY}], SHIPPED)
        assert found["source"] == "seen"

    @cases(
        "version cuda expected",
        ("before all", "1.13", "11.7", 0),
        ("before a newer CUDA of its version", "2.0", "11.7", 0),
        ("behind an older CUDA of its version", "2.0", "12.1", 1),
        ("without CUDA in front of its version", "2.0", None, 0),
        ("2.10 is newer than 2.9", "2.10", "12.8", 2),
        ("a candidate comes before its release", "2.9rc1", "12.8", 1),
        ("what is no version comes last", "nightly", "12.8", 2),
    )
    def test_a_new_row_stands_where_the_order_wants_it(
        self, version: str, cuda: str | None, expected: int
    ) -> None:
        rows = [OLD, {**OLD, "version": "2.9", "cuda": "12.8", "tag": "cu128"}]
        new = {**OLD, "version": version, "cuda": cuda, "tag": "new", "as_of": TODAY}
        assert named(merged("builds", rows, [new], SHIPPED)).index(f"{version} new") == expected

    def test_a_table_of_preferences_takes_new_rows_last(self) -> None:
        rows = [{"suite": "bookworm"}, {"suite": "trixie"}]
        found = merged("debian_suites", rows, [{"suite": "buster", "as_of": TODAY}], SHIPPED)
        assert [row["suite"] for row in found] == ["bookworm", "trixie", "buster"]

    def test_two_overlaid_rows_of_one_fact_are_one(self) -> None:
        new = {**OLD, "version": "3.0", "as_of": TODAY}
        key = {key: new[key] for key in ("version", "tag", "arch")}
        later = {**key, "glibc": "2.39", "as_of": TODAY}
        found = merged("builds", [], [new, later], SHIPPED)
        assert [row["glibc"] for row in found] == ["2.39"]

    def test_the_rows_given_are_not_changed(self) -> None:
        before = dict(OLD)
        merged("builds", [OLD], [{**OLD, "glibc": "2.39", "as_of": TODAY}], SHIPPED)
        assert before == OLD

    def test_every_table_has_its_identity(self) -> None:
        assert TABLES.keys() - IDENTITIES.keys() == {"conflicts", "exceptions"}
        for table, identity in IDENTITIES.items():
            assert set(identity.keys) | set(identity.order) <= TABLES[table].needed.keys()


class TestLoading:
    def test_a_merged_catalog_is_sound(self) -> None:
        catalog = load(overlay=NEW)
        assert check(catalog) == []
        (build,) = catalog.torch_builds("2.99.0")
        assert build.source == SOURCES["seen"]
        assert catalog.torch[-1] == build
        assert catalog.torch_release("2.99.0") is not None

    def test_what_is_merged_is_checked_as_the_shipped_tables_are(self) -> None:
        problems = check(load(overlay=overlay(builds=BUILD)))
        assert any("2.99.0 cu130 x86_64): its release is not" in problem for problem in problems)

    def test_the_shipped_catalog_stays_as_it_is(self) -> None:
        load(overlay=NEW)
        assert load().torch_release("2.99.0") is None
        assert load() is load()

    def test_keys_of_sources_may_be_the_same_word_as_ours(self) -> None:
        row = {**BUILD, "source": "pypi"}
        tables = {"releases": ({**RELEASE, "source": "pypi"},), "builds": (row,)}
        catalog = load(overlay=Overlay(date=TODAY, sources={"pypi": "other"}, tables=tables))
        assert {build.source for build in catalog.torch_builds("2.99.0")} == {"other"}
        assert not any("other" in build.source for build in catalog.torch_builds("2.0.1"))

    def test_a_shipped_row_is_replaced_column_by_column(self) -> None:
        row = {"version": "2.0.1", "yanked": True, "source": "seen", "as_of": TODAY}
        before = load().torch_release("2.0.1")
        after = load(overlay=overlay(releases=row)).torch_release("2.0.1")
        assert before is not None
        assert after is not None
        assert (after.yanked, after.torchvision) == (True, before.torchvision)
        assert after.source == f"{SOURCES['seen']}; {before.source}"

    def test_tables_that_are_read_later_are_merged_too(self) -> None:
        seen = {"source": "seen", "as_of": TODAY}
        cudnn = {
            "version": "9.99.0.1", "cuda_major": 12, "capabilities": ["7.5", "12.0"],
            "min_driver": "525.60.13", "archs": ["x86_64"], "upload_date": TODAY, "yanked": False,
            "sm_source": "seen",
        }  # fmt: skip
        image = {"tag": "12.8.1-cudnn-devel-ubuntu24.04", "status": "end-of-life"}
        new_image = {"tag": "13.4.2-base-ubuntu24.04", "archs": None, "status": "seen"}
        wheel = {"version": "2.18.0", "arch": "x86_64", "size_max_bytes": 5}
        catalog = load(
            overlay=Overlay(
                date=TODAY,
                sources=SOURCES,
                tables={
                    "cudnn": ({**cudnn, **seen},),
                    "images": ({**image, **seen}, {**new_image, **seen}),
                    "tensorflow_wheels": ({**wheel, **seen},),
                },
            )
        )
        assert check(catalog) == []
        versions = [row.version for row in catalog.cudnn if row.cuda_major == 12]
        assert versions[-1] == "9.99.0.1"
        assert catalog.cudnn[-1].cuda_major == 13
        known, seen_image = (catalog.cuda_image(str(row["tag"])) for row in (image, new_image))
        assert known is not None
        assert seen_image is not None
        assert (known.status, known.cudnn_version) == ("end-of-life", "9.8.0.87")
        assert catalog.images.index(seen_image) == len(catalog.images) - 1
        (changed,) = [
            w for w in catalog.tensorflow_wheels if (w.version, w.arch) == ("2.18.0", "x86_64")
        ]
        assert changed.size_max_bytes == 5
        assert "nvidia-cudnn-cu12==9.3.0.75" in changed.pins

    @cases(
        "table row message",
        ("a tag that cannot be read, in a table that is read later", "images",
         {"tag": "latest", "archs": None, "status": "seen", "source": "seen", "as_of": TODAY},
         "'latest' is not a tag such as"),
        ("a wrong value", "builds", {**BUILD, "sm": ["86"]}, r"\.sm: expected list of sm_NN"),
        ("a new row that lacks a column", "builds",
         {k: BUILD[k] for k in BUILD if k != "python_tags"}, "missing python_tags"),
        ("a column too many", "releases", {**RELEASE, "colour": "red"}, "unknown key colour"),
        ("a row that fits no other", "python_images",
         {"python": "3.12", "suite": "sid", "source": "seen", "as_of": TODAY},
         "suite sid is not among"),
    )  # fmt: skip
    def test_a_row_that_the_reader_refuses_is_the_copy_s_fault(
        self, path: Path, env: dict[str, str], table: str, row: dict[str, object], message: str
    ) -> None:
        wrong = overlay(**{table: row})
        with pytest.raises(OverlayError, match=message) as caught:
            load(overlay=wrong)
        assert "provision catalog refresh" in caught.value.fix
        write_overlay(path, wrong)
        catalog, note = current(env)
        assert catalog is load()
        assert note is not None
        assert caught.value.message in note


class TestCurrent:
    def test_without_a_copy_it_is_the_shipped_catalog(self, env: dict[str, str]) -> None:
        catalog, note = current(env)
        assert catalog is load()
        assert note is None

    def test_with_a_copy_it_holds_its_rows(self, path: Path, env: dict[str, str]) -> None:
        write_overlay(path, NEW)
        catalog, note = current(env)
        assert note is None
        assert catalog.torch_release("2.99.0") is not None

    @cases(
        "spoil",
        ("truncated", lambda path: path.write_bytes(path.read_bytes()[:-9])),
        ("another shape", lambda path: path.write_text("{}")),
        ("a directory", lambda path: (path.unlink(), path.mkdir())),
    )
    def test_a_broken_copy_is_left_aside_with_a_word(
        self, path: Path, env: dict[str, str], spoil: Callable[[Path], object]
    ) -> None:
        write_overlay(path, NEW)
        spoil(path)
        catalog, note = current(env)
        assert catalog is load()
        assert note is not None
        assert str(path) in note
        assert "provision catalog refresh" in note

    def test_a_broken_shipped_table_is_no_fault_of_the_copy(self, tmp_path: Path) -> None:
        with pytest.raises(CatalogError, match="cannot be read") as caught:
            load(tmp_path, NEW)
        assert not isinstance(caught.value, OverlayError)

    def test_without_a_copy_it_costs_no_hashing(self, tmp_path: Path) -> None:
        code = (
            "import sys\n"
            "from provision.catalog.loading import current\n"
            "current({'XDG_DATA_HOME': sys.argv[1]})\n"
            "print(*sorted({'hashlib', 'tempfile', 'packaging'} & set(sys.modules)))\n"
        )
        done = run_program([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)
        assert done.stdout == "\n"
