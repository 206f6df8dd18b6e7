"""Render builds and reports as text: the answer, what to type, then the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.model.plan import TITLES
from provision.output.text import answer, command, listed, row


def describe_build(account: Mapping[str, Any]) -> str:
    """Whether it works here, what to type next, what was built, and which checks passed."""
    if account["command"]:
        return str(account["command"])
    image, report = account["image"], account["verify"]
    steps = ", ".join(f"{s['name']} {s['seconds']:.1f} s" for s in account["steps"])
    lines = _answer(account["plan"], report, account["not_verified"])
    for other in account["verify_beside"]:
        lines += answer_of(other, TITLES[other["environment"]["framework"]["name"]])
    lines += ["", *_commands(account)]
    lines += [
        *row("image", _image_name(image)),
        *_withheld(image),
        f"digest   {image['digest']}",  # 71 letters, and 80 columns
        *[line for one in image["platforms"][1:] and image["platforms"] for line in _platform(one)],
        *row("size", _size(image)),
        *_cut(image.get("cut")),
        *row("built by", _maker(account["builder"])),
        *_project(account.get("project")),
        *row("lock", f"{account['lock']['path']}" if account["lock"]["path"] else "not kept"),
        *_documents(account["documents"]),
        *row("took", steps),
    ]
    for one in (*([report] if report else []), *account["verify_beside"]):
        lines += [*_shown(one), *_failures(one)]
    if (scope := account["scope"]) is not None:
        lines += row("tested", f"{scope['tested']}: {scope['because']}")
    return "\n".join([*lines, *listed("note", account["notes"])])


def _answer(
    plan: Mapping[str, Any], report: Mapping[str, Any] | None, not_verified: str | None
) -> list[str]:
    framework = plan["framework"]
    build = f"{TITLES[framework['name']]} {framework['version']} for CUDA {plan['cuda']}"
    if report is None:
        return answer("Not proven", f"the image has {build}, and was not tested ({not_verified}).")
    return answer_of(report, build)


def answer_of(report: Mapping[str, Any], what: str) -> list[str]:
    """The verdict on what was tested, as a sentence."""
    statuses = [check["status"] for check in report["checks"]]
    left_out, failed = statuses.count("skip"), statuses.count("fail") + statuses.count("error")
    ran = len(statuses) - left_out
    more = f"; {left_out} did not run" if left_out else ""
    if report["verdict"] == "unfit":
        return answer("No", f"{what} failed {failed} of {ran} checks on this machine{more}.")
    if report["verdict"] == "fit":
        return answer("Yes", f"{what} works on this machine: {ran} checks passed{more}.")
    on_cpu = sum(check["measured"].get("device") == "cpu" for check in report["checks"])
    where = f", {on_cpu} of them on the CPU" if on_cpu else ""
    return answer("Not proven", f"{what} passed {ran} checks{where}{more}.")


def _commands(account: Mapping[str, Any]) -> list[str]:
    """What to type next, under headings, and an empty line; nothing if there is nothing."""
    heading = _next(account["next_on_arch"])
    if account["image"]["withheld"]:
        heading = "to look inside:"
    shown = [
        (heading, account["next"]),
        ("on a machine with NVIDIA GPUs:", account["next_on_gpu_host"]),
        ("to test the rest, where it will run:", (account["scope"] or {}).get("prove")),
    ]
    lines = [line for head, one in shown if one for line in (head, *command(one))]
    return [*lines, ""] if lines else []


def _next(arch: str | None) -> str:
    return f"next, on a machine with NVIDIA GPUs ({arch}):" if arch else "next:"


def _image_name(image: Mapping[str, Any]) -> str:
    """The name, and where the image is stored."""
    name = image["tag"]
    if name is None:
        return "not kept"
    if image["destination"] == "registry":
        return str(image["place"])
    return f"{name} in {image['place']}" if image["destination"] in _FILES else str(name)


def _withheld(image: Mapping[str, Any]) -> list[str]:
    """The name that the image did not get."""
    withheld = image["withheld"]
    if withheld is None:
        return []
    what = "pushed to" if image["destination"] == "registry" else "named"
    return row("", f"not {what} {withheld['name']}: {withheld['because']}")


_FILES = ("local", "layout", "archive", "squashfs")


def _platform(one: Mapping[str, Any]) -> list[str]:
    return [f"  {one['platform']}", f"         {one['digest']}"]


def _size(image: Mapping[str, Any]) -> str:
    """As its place counts: compressed layers, or the size on an engine's disk."""
    layers = image["layers"]
    size = f"{image['size_bytes'] / 1e9:.2f} GB"
    if not layers:
        return size
    new = sum(layer["size"] for layer in layers if layer["how"] == "written")
    return f"{size} in {len(layers)} layers, {_in_bytes(new)} of them new"


def _cut(cut: Mapping[str, Any] | None) -> list[str]:
    """The GPU code of the libraries, before and after, in MB."""
    if cut is None:
        return []
    total = f"{_mb(cut['before_bytes'])} MB of GPU code, {_mb(cut['after_bytes'])} kept"
    rows = [
        f"{one['path']}: {_mb(one['before_bytes'])} -> {_mb(one['after_bytes'])} MB"
        for one in sorted(cut["libraries"], key=lambda one: -one["before_bytes"])
        if one["sha256"]
    ]
    known = [f"not read, because it was there: {title}" for title in cut["not_read"]]
    return [*row("cut", f"for {', '.join(cut['gpus'])}: {total}"), *listed("", [*rows, *known])]


def _mb(count: int) -> str:
    return f"{count / 1e6:.1f}"


def _in_bytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.2f} MB"


def _maker(builder: Mapping[str, Any]) -> str:
    names = {"docker": "docker (engine)", "oci": "oci (no engine)"}
    return f"{names[builder['name']]}: {builder['why']}"


def _project(project: Mapping[str, Any] | None) -> list[str]:
    if project is None:
        return []
    what = f"{project['name']}, {project['files']} files in {project['directory']}"
    return row("project", f"{what}; runs {' '.join(project['command'])}")


def _documents(documents: Mapping[str, Any]) -> list[str]:
    lines = row("sbom", documents["sbom"]) if documents["sbom"] else []
    lines += row("provenance", documents["provenance"]) if documents["provenance"] else []
    return lines + (row("attached", "both, to the image") if documents["attached"] else [])


def _shown(report: Mapping[str, Any]) -> list[str]:
    """The checks by result; skipped ones with the same reason share a line."""
    passed = [check for check in report["checks"] if check["status"] == "pass"]
    on_cpu = [check["id"] for check in passed if check["measured"].get("device") == "cpu"]
    proven = [check["id"] for check in passed if check["id"] not in on_cpu]
    skipped: dict[str, list[str]] = {}
    for check in report["checks"]:
        if check["status"] == "skip":
            skipped.setdefault(check["message"], []).append(check["id"])
    lines = row("proven", ", ".join(proven) or "nothing")
    lines += row("on the CPU", f"{', '.join(on_cpu)}; not tested on a GPU") if on_cpu else []
    return lines + listed("not run", [f"{', '.join(ids)}: {why}" for why, ids in skipped.items()])


def describe_check(result: Mapping[str, Any]) -> str:
    """The result of --check-record: the answer, what has changed since, what to type."""
    lines = row("verified", "yes" if result["proven"] else "no")
    lines += row("because", result["message"])
    lines.append(f"image    {result['image']}")  # 71 letters, and 80 columns
    lines += listed("changed", [_changed(change) for change in result["changed"]])
    lines += row("record", result["record"])
    if result["error"]:
        lines += row("fix", result["error"]["fix"])
    return "\n".join(lines)


def describe_origin(result: Mapping[str, Any]) -> str:
    """The result of --check-provenance: the answer, and what to type."""
    lines = row("verified", "yes" if result["stated"] else "no")
    lines += row("because", result["message"])
    lines.append(f"image    {result['image']}")  # 71 letters, and 80 columns
    lines += row("lock", result["lock"]) if result["lock"] else []
    lines += row("key", result["key"]) if result["key"] else []
    if result["error"]:
        lines += row("fix", result["error"]["fix"])
    return "\n".join(lines)


def _changed(change: Mapping[str, Any]) -> str:
    was, now = change["was"] or "none", change["now"] or "none"
    return f"{change['what']}: {was} -> {now}" + ("" if change["matters"] else " (does not matter)")


def _failures(report: Mapping[str, Any]) -> list[str]:
    """Failed checks, grouped by cause; the cause and its fix are shown once."""
    together: dict[tuple[str | None, str | None], list[Mapping[str, Any]]] = {}
    for check in report["checks"]:
        if check["status"] in {"fail", "error"}:
            together.setdefault((check.get("cause"), check.get("fix")), []).append(check)
    lines: list[str] = []
    for (cause, fix), checks in together.items():
        for check in checks:
            lines += row(check["status"], f"{check['id']}: {check['message']}")
        lines += row("cause", cause) if cause else []
        lines += row("fix", fix) if fix else []
    return lines
