"""The files that CI reads: the report as JSON, and what the suite renders from it.

They are written whatever the verdict. If the suite produced no report, JUnit, Markdown and the
verdict say why: a missing file would hide the failure from a reader of that file alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from images.errors import Failure, refuse_full
from images.system.scratch import scratch_directory
from images.text.suggestions import no_such, or_nearby
from provision.errors import BadInputError, Exit
from provision.output.files import refuse_unwritable, write_whole
from provision.output.style import width
from provision.verification.suite import report_bytes, run_here

RENDERED = ("junit", "html", "markdown", "prometheus", "verdict")
FORMATS = ("report", *RENDERED)
"""What `provision verify` can write, by option name."""

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class ReportNotWrittenError(Failure):
    """The suite made its report, but a requested file could not be made from it."""

    code = "report-not-written"
    exit_code = Exit.USAGE


def refuse_unusable(files: Mapping[str, Path], baseline: Path | None) -> None:
    """Check before the container starts that every file can be written and the baseline can be
    read. BadInputError: the first that cannot.
    """
    seen: dict[Path, str] = {}
    for name, path in files.items():
        refuse_unwritable(f"--{name}", path)
        if (other := seen.setdefault(path.resolve(), name)) != name:
            raise BadInputError(
                f"--{other} and --{name} name the same file.", fix="Use a different file for each."
            )
    if baseline is not None:
        if not baseline.exists():
            raise BadInputError(
                no_such("file", baseline, option="--baseline"),
                fix=or_nearby(baseline, "Name a report that provision verify wrote: --report FILE"),
            )
        done = run_here(["compare", str(baseline), str(baseline)])
        if done.code != 0:
            raise BadInputError(
                f"--baseline: {done.last_lines(1).removeprefix('verify: ')}",
                fix="Name a report that provision verify wrote: --report FILE",
            )


def compared(report: Mapping[str, Any], baseline: Path) -> dict[str, Any]:
    """The suite's comparison with an earlier report."""
    with scratch_directory() as made:
        path = made / "report.json"
        path.write_bytes(report_bytes(report))
        done = run_here(["compare", str(baseline), str(path), "--json"])
    if done.code not in {0, 1}:
        raise ReportNotWrittenError(
            f"The report could not be compared: {done.last_lines(1).removeprefix('verify: ')}",
            fix="Free space for temporary files on this machine, and run it again.",
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def page(report: Mapping[str, Any]) -> str | None:
    """The suite's own page for people, as wide as the terminal; None if it cannot be rendered."""
    with scratch_directory() as made:
        path = made / "report.json"
        path.write_bytes(report_bytes(report))
        done = run_here(["render", str(path), "--columns", str(width())])
    return done.stdout.rstrip("\n") if done.ok else None


def write_files(report: Mapping[str, Any], files: Mapping[str, Path]) -> None:
    """Write all requested files; ReportNotWrittenError says what could not be written."""
    data = report_bytes(report)
    try:
        if path := files.get("report"):
            write_whole(path, data)
        if not set(files) & set(RENDERED):
            return
        with scratch_directory() as made:
            source = made / "report.json"
            source.write_bytes(data)
            words = [w for kind in RENDERED if kind in files for w in (f"--{kind}", files[kind])]
            done = run_here(["render", str(source), *map(str, words)])
    except OSError as error:
        refuse_full(error, "The report")
        raise _not_written(error.strerror or str(error)) from error
    if not done.ok:
        raise _not_written(done.last_lines(1).removeprefix("verify: "))


def write_failure(files: Mapping[str, Path], image: str, error: BaseException) -> None:
    """What CI shows if there is no report. A failure here hides nothing: the error itself
    follows.
    """
    code = "interrupted" if isinstance(error, KeyboardInterrupt) else "bug"
    code = error.code if isinstance(error, Failure) else code
    said = error.message if isinstance(error, Failure) else type(error).__name__
    lines = [said]
    if isinstance(error, Failure):
        lines += [f"fix: {error.fix}", *error.detail.splitlines()]
    writers = {
        "junit": junit_of_failure,
        "markdown": markdown_of_failure,
        "verdict": verdict_of_failure,
    }
    for kind, write in writers.items():
        if kind in files:
            write_whole(files[kind], write(image, code, lines))


def junit_of_failure(image: str, code: str, lines: list[str]) -> bytes:
    """One test case, in error."""
    counts = {"tests": "1", "failures": "0", "errors": "1", "skipped": "0", "time": "0"}
    suites = ET.Element("testsuites", {"name": "gpu-provision", **counts})
    suite = ET.SubElement(suites, "testsuite", {"name": _xml(image), **counts})
    case = {"classname": "provision.verify", "name": "the suite gives a report", "time": "0"}
    found = ET.SubElement(ET.SubElement(suite, "testcase", case), "error")
    found.attrib.update({"type": code, "message": _xml(lines[0])})
    found.text = _xml("\n".join(lines))
    text = ET.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'.encode()


def markdown_of_failure(image: str, code: str, lines: list[str]) -> bytes:
    """A few lines, in which all text is literal."""
    text = "\n".join([image, code, "", *lines])
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text) or [""]))
    said = f"## GPU verification: no report\n\n{fence}text\n{text}\n{fence}\n"
    return said.encode("utf-8", "backslashreplace")


def verdict_of_failure(image: str, code: str, lines: list[str]) -> bytes:
    """A verdict of the unknown. An earlier file would claim another one."""
    source = {"tool": "gpu-provision", "image": image, "error": code, "message": "\n".join(lines)}
    found = {"overall_severity": "UNKNOWN", "affected_components": [], "check_verdicts": []}
    return (json.dumps({**found, "source": source}, indent=2) + "\n").encode()


def _xml(text: str) -> str:
    return _NOT_IN_XML.sub("\ufffd", text)


def _not_written(why: str) -> ReportNotWrittenError:
    return ReportNotWrittenError(
        f"The suite ended, and its report could not be written: {why}.",
        fix="Free space where the files go, then run it again.",
    )
