"""Runs a sandbox in a process of its own, which may be another user's: one JSON in, one out.

`python3 -m tests.engines.sandbox_script JOB.json`; see `Job` in test_sandbox_real.py.
"""

# ruff: noqa: T201  its two streams are its result

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from images.engines.sandbox import launch
from images.engines.sandbox.devices import find_driver
from images.engines.sandbox.run import Sandbox
from images.engines.spec import Foreground, RunJob
from images.errors import Failure
from images.oci.archive_reader import open_archive
from tests.engines.hostile_images import hostile_image


def run(job: dict[str, Any]) -> dict[str, Any]:
    (launcher,) = [
        one for one in launch._candidates() if [one.kind, one.own_users] == job["launcher"]
    ]
    if problem := launch.probe(launcher):
        return {"lacking": f"{launcher} does not start a sandbox here: {problem}"}
    sandbox = Sandbox(
        launcher, Path(job["roots"]), driver=lambda: find_driver(Path(job["driver_root"]))
    )
    hostile = job.get("hostile", "")
    image = hostile_image(hostile) if hostile else open_archive(Path(job["archive"]))
    handle = sandbox.prepare(image, lambda _: None)
    files = {name: text.encode() for name, text in job.get("files", {}).items()}
    told = {**job["job"], "command": tuple(job["job"]["command"]), "files": files}
    if job.get("terminal"):
        front = Foreground(terminal=True)
        sys.exit(sandbox.attend(RunJob(image=handle, **told), front, lambda _: None))
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        print(line, file=sys.stderr, flush=True)

    result = sandbox.run(RunJob(image=handle, **told), on_line)
    return {
        "exit_code": result.exit_code,
        "stdout": result.stdout,
        "stderr_tail": result.stderr_tail,
        "notes": list(result.notes),
        "lines": lines,
    }


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    try:
        answer = run(job)
    except Failure as failure:
        answer = {"failure": type(failure).__name__, "message": failure.message, "fix": failure.fix}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
