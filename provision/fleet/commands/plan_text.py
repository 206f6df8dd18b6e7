"""Render a plan for a fleet as text: the images, who gets them, and why there are not fewer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from provision.fleet.classes import NodeClass, several
from provision.fleet.images import FleetImage, FleetPlan, OneImageRefusal, UnservedClass, named
from provision.fleet.what_if import DriverChange
from provision.model.plan import RUNS, TITLES, Plan
from provision.output.text import command as command_lines
from provision.output.text import row

_MOST = 12
_NODES = 6  # of a class, by name


def describe_fleet(
    plan: FleetPlan, change: DriverChange | None, command: Callable[[FleetImage], str]
) -> str:
    """`command` is what to type for an image."""
    lines = row("images", _count(plan))
    notes = dict.fromkeys(
        note.message
        for image in plan.images
        for note in image.plan.notes
        if note.code == "packages-decide"
    )
    for message in notes:
        lines += row("note", message)
    for number, image in enumerate(plan.images, 1):
        lines += ["", *_image(f"image {number}", image), *command_lines(command(image))]
    if plan.images:
        lines.append("")
    for refusal in plan.against_one:
        lines += _against_one(refusal)
    lines += _unserved("no image", plan.unserved)
    if plan.without_gpu:
        lines += row("no GPU", f"{several(plan.without_gpu, _NODES)}: no image is needed")
    if change is not None:
        lines += ["", *_change(change, plan)]
    return "\n".join(lines).rstrip("\n")


def _count(plan: FleetPlan) -> str:
    count = len(plan.images)
    nodes = sum(len(image.nodes) for image in plan.images)
    if not plan.images:
        return "0: no node can have one" if plan.unserved else "0: no node has an NVIDIA GPU"
    text = f"{count} for {_counted(nodes)}"
    if count == 1:
        return text
    if not plan.proven:
        return f"{text}: an upper bound, at least {plan.at_least} are needed"
    if plan.apart:
        apart = ", ".join(one.nodes[0] for one in plan.apart)
        return f"{text}; fewer cannot do: no two of {apart} can share one"
    return f"{text}; fewer cannot do: all combinations were tried"


def _image(label: str, image: FleetImage) -> list[str]:
    lines = row(label, _in_short(image.plan))
    for one in image.classes[:_MOST]:
        lines += row("", f"{_nodes(one)}: {one.words}")
    more = sum(len(one.nodes) for one in image.classes[_MOST:])
    lines += row("", f"and {_counted(more)} of other kinds") if more else []
    if image.plan.limited_by is not None:
        lines += row("limited by", image.plan.limited_by.words(image.plan.framework))
    for warning in image.plan.warnings:
        lines += row("warning", warning.message)
    return lines


def _in_short(plan: Plan) -> str:
    framework = f"{TITLES[plan.framework]} {plan.framework_version}"
    build = f"{framework} ({plan.wheel_tag})" if plan.wheel_tag else framework
    arch = f", {plan.arch}" if plan.arch not in {None, "x86_64"} else ""
    image = f"CUDA {plan.cuda}, Python {plan.python}, {plan.flavour}{arch}"
    return f"{build}, {image}: {RUNS[plan.verdict]}"


def _nodes(one: NodeClass) -> str:
    return several(one.nodes, _NODES)


def _against_one(refusal: OneImageRefusal) -> Iterator[str]:
    error = refusal.plan.error
    if error is None:  # it was made of several images' classes, and only of those
        return
    yield from row("not one", error.message)
    limited = refusal.plan.limited_by
    if limited is not None:
        yield from row("limited by", limited.words(refusal.plan.framework, error.message))


def _unserved(label: str, unserved: Sequence[UnservedClass]) -> list[str]:
    lines: list[str] = []
    for one in unserved:
        lines += row(label, f"{_nodes(one.node_class)} ({one.node_class.words})")
        lines += row("", one.error.message)
        lines += row("fix", one.error.fix)
    return lines


def _change(change: DriverChange, plan: FleetPlan) -> Iterator[str]:
    now, then = len(plan.images), len(change.plan.images)
    without = sum(len(one.node_class.nodes) for one in plan.unserved)
    still = sum(len(one.node_class.nodes) for one in change.plan.unserved)
    if not change.changed:
        yield from row("if driver", f"{change.driver}: {_images(then)} as now, no node needs it")
    else:
        count = sum(len(one.nodes) for one in change.changed)
        served = f" and {_counted(without - still)} more served" if still < without else ""
        yield from row(
            "if driver",
            f"{change.driver}: {_images(then)} instead of {now}{served}, "
            f"if {_counted(count)} get it",
        )
        for one in change.changed:
            yield from row("", f"{_nodes(one)}: {one.words}")
        for number, image in enumerate(change.plan.images, 1):
            yield from row(f"image {number}", f"{_in_short(image.plan)}: {named(image.classes)}")
    yield from _unserved("not with it", change.lost)


def _images(count: int) -> str:
    return f"{count} image{'' if count == 1 else 's'}"


def _counted(nodes: int) -> str:
    return f"{nodes} node{'' if nodes == 1 else 's'}"
