"""The result for the whole fleet: judged by the suite's own command, which runs here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from images.system.scratch import scratch_directory
from provision.errors import Exit
from provision.fleet.verify.order import FleetOrder
from provision.fleet.verify.reports import UNSAVED_FIX, NodeReport, list_rows
from provision.verification.report_files import ReportNotWrittenError
from provision.verification.suite import BURN, run_here

FORMATS = ("junit", "html", "prometheus")
_CODES = (0, 1, 5, 7)
_JUDGE_S = 1800.0  # 10,000 nodes take a minute


def judge_fleet(
    nodes: Sequence[NodeReport],
    order: FleetOrder,
    folder: Path,
    files: Mapping[str, Path],
    across: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Judge every report, compare twins, write the requested files; docs/json.md has the format.
    `across` is what the nodes did together: the files have it, too, and it is in the exit code.
    ReportNotWrittenError: a file cannot be written.
    """
    with scratch_directory() as made:
        path = made / "list"
        with path.open("w", encoding="utf-8") as file:
            for row in list_rows(nodes, order):
                file.write(f"{json.dumps(row)}\n")
        words = [word for kind, to in files.items() for word in (f"--{kind}", str(to))]
        if across is not None:
            (made / "across").write_text(json.dumps(across), encoding="utf-8")
            words += ["--across", str(made / "across")]
        command = ["fleet", str(path), "--level", order.level, f"--image={order.image}"]
        command += [] if order.burn_min is None else ["--require", BURN]
        done = run_here([*command, *words], timeout_s=_JUDGE_S)
    if done.code not in _CODES:
        raise ReportNotWrittenError(
            f"The nodes were tested, and the result cannot be written: "
            f"{done.last_lines(1).removeprefix('verify: ')}.",
            fix="Free space where the files go, then repeat the command: tested nodes are kept.",
        )
    found: dict[str, Any] = json.loads(done.stdout)
    rows = {one.name: one for one in nodes}
    for node in found["nodes"]:
        one = rows[node["name"]]
        node["status"] = one.status
        node["report"] = str(folder / f"{one.name}.json") if one.place == folder else None
        if one.unsaved and node["code"] is None:
            unsaved = {"code": "report-not-kept", "message": one.unsaved, "fix": UNSAVED_FIX}
            node.update(unsaved)
            if found["exit_code"] in (Exit.DONE, Exit.NO_VERDICT):
                found["exit_code"] = Exit.UNREACHABLE
        node["way"] = one.way
        node["seconds"] = round(one.seconds, 2) if one.seconds else None
    return {**found, "image": order.image_id, "level": order.level, "directory": str(folder)}
