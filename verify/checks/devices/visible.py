"""Which GPUs CUDA_VISIBLE_DEVICES lets through, by CUDA's own rules.

The rules are those of the CUDA programming guide ("CUDA Environment Variables") and of the MIG user
guide ("CUDA Device Enumeration"); what the two leave open (a word behind a number, a GPU named
twice) is as PyTorch's own parser found it out from CUDA.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from verify.backends.sight import START_WITH_GPUS
from verify.device.telemetry import State
from verify.model.check import Check, Context, Outcome, Status, gpus

FASTEST, BY_BUS = "FASTEST_FIRST", "PCI_BUS_ID"
UNSET = "unset CUDA_VISIBLE_DEVICES, or name GPUs that nvidia-smi -L lists in this container"
NONE_MEANT = {
    "": "it is empty",
    "NoDevFiles": "Slurm gave this job step no GPU (--gres=gpu:1 does)",
}
TWICE = "it names a GPU twice, and CUDA then shows none at all"
NO_GPU = ("", "void", "none")  # NVIDIA_VISIBLE_DEVICES, for which the runtime gives no GPU


@dataclass(frozen=True)
class VisibleCard:
    """One GPU as NVML names it, with the MIG devices that it is cut into."""

    uuid: str = ""
    name: str = ""
    mig: bool = False
    parts: Tuple[str, ...] = ()  # the UUIDs of its MIG devices


@dataclass(frozen=True)
class Selection:
    """What a value lets through: CUDA should then count `least` to `most` devices.

    The two differ where MIG is on: CUDA offers one process a single MIG device, which NVIDIA says a
    later driver may change, and it is not said what a plain number means then.
    """

    least: int
    most: int
    shown: Tuple[int, ...] = ()  # NVML's numbers of the GPUs, in CUDA's order; empty with MIG
    fault: Optional[str] = None  # the entry at which the list ends against its writer's will
    why: str = ""
    fix: str = UNSET
    notes: Tuple[str, ...] = ()


def cards_of(state: State) -> Tuple[VisibleCard, ...]:
    """The GPUs of NVML's state."""
    return tuple(
        VisibleCard(
            uuid=gpu.uuid or "",
            name=gpu.name or "",
            mig=bool(gpu.mig),
            parts=tuple(part.uuid or "" for part in gpu.mig_devices or ()),
        )
        for gpu in state.gpus
    )


def select(value: Optional[str], cards: Sequence[VisibleCard]) -> Selection:
    """Read a value of CUDA_VISIBLE_DEVICES; None is a variable that is not set."""
    if value is None:
        return _everything(cards)
    entries = [entry.strip() for entry in value.split(",")]
    if entries[0].startswith("MIG-"):
        return _mig_devices(entries, cards)
    named = entries[0].startswith("GPU-")
    twice = _twice(entries, named=named)
    if twice is not None:
        return Selection(0, 0, (), twice, TWICE, "name each GPU once")
    chosen: List[int] = []
    for place, entry in enumerate(entries):
        index = _named(entry, cards) if named else _numbered(entry, len(cards))
        if index is None:
            return _ended(entries, place, chosen, cards)
        if index in chosen:
            return Selection(0, 0, (), entry, TWICE, "name each GPU once")
        chosen.append(index)
    return _chosen(chosen, cards, _notes(value, named=named))


def _twice(entries: Sequence[str], *, named: bool) -> Optional[str]:
    """A repeated entry, among those up to the list's end; nonexistent GPUs count too."""
    seen: List[object] = []
    for entry in entries:
        number = _number(entry)
        if (named and not entry.startswith("GPU-")) or (not named and number < 0):
            return None
        meant = entry if named else number
        if meant in seen:
            return entry
        seen.append(meant)
    return None


def _everything(cards: Sequence[VisibleCard]) -> Selection:
    plain = tuple(i for i, card in enumerate(cards) if not card.mig)
    parts = sum(len(card.parts) for card in cards)
    if not parts:
        return Selection(len(plain), len(plain), plain)
    note = "MIG: a process can use only the first of {} MIG devices".format(parts)
    return Selection(1, parts + len(plain), notes=(note,))


def _chosen(
    chosen: Sequence[int], cards: Sequence[VisibleCard], notes: Tuple[str, ...]
) -> Selection:
    if any(card.mig for card in cards):
        note = "with MIG on, name a MIG device by its UUID: a GPU's number is ambiguous"
        return Selection(0, len(chosen), notes=(*notes, note))
    return Selection(len(chosen), len(chosen), tuple(chosen), notes=notes)


def _number(entry: str) -> int:
    """As C's strtol reads it: a sign, digits, and whatever follows is ignored; -1 without one."""
    match = re.match(r"[+-]?[0-9]+", entry)
    return int(match.group()) if match else -1


def _numbered(entry: str, count: int) -> Optional[int]:
    index = _number(entry)
    return index if 0 <= index < count else None


def _named(entry: str, cards: Sequence[VisibleCard]) -> Optional[int]:
    matches = _starting(entry, [card.uuid for card in cards]) if entry.startswith("GPU-") else []
    return matches[0] if len(matches) == 1 else None


def _starting(prefix: str, uuids: Sequence[str]) -> List[int]:
    return [i for i, uuid in enumerate(uuids) if prefix and uuid.startswith(prefix)]


def _mig_devices(entries: Sequence[str], cards: Sequence[VisibleCard]) -> Selection:
    """CUDA takes the first MIG device that is named."""
    parts = [part for card in cards for part in card.parts]
    found: List[int] = []
    for entry in entries:
        matches = _starting(entry, parts) if entry.startswith("MIG-") else []
        if len(matches) != 1:
            return _unknown_part(entry, found, parts, cards)
        if matches[0] in found:
            return Selection(0, 0, (), entry, TWICE, "name each MIG device once")
        found.append(matches[0])
    several = "a process can use only the first of the {} MIG devices named".format(len(found))
    return Selection(1, len(found), notes=(several,) if len(found) > 1 else ())


def _unknown_part(
    entry: str, found: Sequence[int], parts: Sequence[str], cards: Sequence[VisibleCard]
) -> Selection:
    least, most = min(1, len(found)), len(found)
    old = re.fullmatch(r"MIG-(GPU-[0-9a-fA-F-]+)/\d+/\d+", entry)
    owners = _starting(old.group(1), [card.uuid for card in cards]) if old else []
    if len(owners) == 1 and cards[owners[0]].parts:
        note = "{!r} uses the form of drivers before R470; nvidia-smi -L shows the UUID"
        return Selection(least, most + 1, notes=(note.format(entry),))
    why = "no MIG device here has that UUID" if parts else "no GPU here has a MIG device"
    return Selection(least, most, (), entry, why, _nearest(entry, parts))


def _ended(
    entries: Sequence[str], place: int, chosen: Sequence[int], cards: Sequence[VisibleCard]
) -> Selection:
    """The list ends at an entry that names no GPU. -1 is the documented way to end one."""
    entry = entries[place]
    if chosen and re.match(r"-[0-9]", entry):
        behind = ",".join(entries[place + 1 :])
        note = "{} ends the list".format(entry) + (" before {}".format(behind) if behind else "")
        return _chosen(chosen, cards, (note,))
    shown = _chosen(chosen, cards, ())
    why, fix = _reason(entry, cards)
    return Selection(shown.least, shown.most, shown.shown, entry, why, fix, shown.notes)


def _reason(entry: str, cards: Sequence[VisibleCard]) -> Tuple[str, str]:
    uuids = [card.uuid for card in cards]
    if entry in NONE_MEANT:
        return NONE_MEANT[entry], UNSET
    if re.match(r"-[0-9]", entry):
        return "a negative number shows no GPU", UNSET
    if re.match(r"\+?[0-9]", entry):
        last = len(cards) - 1
        here = (
            "this machine has only GPU 0"
            if last == 0
            else "this machine has GPUs 0 to {}".format(last)
        )
        return here + "; a container numbers its own from 0", UNSET
    matches = _starting(entry, uuids) if entry.startswith("GPU-") else []
    if len(matches) > 1:
        return "{} GPUs have UUIDs that begin so".format(len(matches)), "write the complete UUID"
    if entry.lower() == "all":
        return "'all' works in NVIDIA_VISIBLE_DEVICES only; CUDA does not accept it", UNSET
    if entry.startswith(("GPU-", "MIG-")) and matches:
        return "numbers and UUIDs do not mix in one list", "write all of them as UUIDs"
    return "no GPU has this name", _nearest(entry, uuids)


def _nearest(entry: str, uuids: Sequence[str]) -> str:
    """The UUID that was most likely meant, compared on as many characters as were written."""
    heads: Dict[str, str] = {uuid[: max(len(entry), 8)].lower(): uuid for uuid in uuids if uuid}
    wanted = entry.lower()
    near = difflib.get_close_matches(wanted, list(heads), 1, 0.7)
    near = near or difflib.get_close_matches("gpu-" + wanted, list(heads), 1, 0.7)
    return "use {}, the nearest match".format(heads[near[0]]) if near else UNSET


def _notes(value: str, *, named: bool) -> Tuple[str, ...]:
    found = []
    if named and re.search(r"\s", value):
        found.append("remove the spaces: the documented form has none")
    junk = None if named else re.search(r"[0-9][^0-9,\s][^,]*", value)
    if junk:
        found.append("CUDA reads the number in {!r} and ignores the rest".format(junk.group()))
    return tuple(found)


# The check


@dataclass(frozen=True)
class VisibleSettings:
    """The variables that select GPUs; None is a variable that is not set."""

    visible: Optional[str] = None  # CUDA_VISIBLE_DEVICES
    order: Optional[str] = None  # CUDA_DEVICE_ORDER
    runtime: Optional[str] = None  # NVIDIA_VISIBLE_DEVICES, for the container runtime

    def as_dict(self) -> Dict[str, Optional[str]]:
        """By the variables' own names."""
        return {
            "CUDA_VISIBLE_DEVICES": self.visible,
            "CUDA_DEVICE_ORDER": self.order,
            "NVIDIA_VISIBLE_DEVICES": self.runtime,
        }


def check_visible(context: Context) -> Outcome:
    """Compare the environment with NVML's list."""
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")
    environ = context.machine.environ()
    settings = VisibleSettings(*(environ.get(name) for name in names))
    return judge_visible(settings, cards_of(context.machine.seen()), context.expect.gpu_count)


def judge_visible(
    settings: VisibleSettings, cards: Sequence[VisibleCard], expected: Optional[int] = None
) -> Outcome:
    """Whether the variables hide a GPU that their writer meant to show."""
    if not cards:
        return _judge_no_cards(settings, expected)
    picked = select(settings.visible, cards)
    measured = {**settings.as_dict(), "gpus": len(cards), "shown": _shown(picked)}
    wanted = {"gpus": expected}
    if picked.fault is not None:
        message = "CUDA_VISIBLE_DEVICES={} shows {}: CUDA stops at {!r}".format(
            settings.visible, _left(picked, cards), picked.fault
        )
        return Outcome(Status.FAIL, message, picked.why, picked.fix, measured, wanted)
    if _unknown_order(settings) and _mixed(cards) and _by_number(settings):
        message = "CUDA_DEVICE_ORDER={} is not a value that CUDA knows".format(settings.order)
        cause = "the GPUs differ, and CUDA then numbers the fastest first"
        return Outcome(Status.FAIL, message, cause, "set CUDA_DEVICE_ORDER=" + BY_BUS, measured)
    notes = (*picked.notes, *_order_notes(settings, cards))
    message = "; ".join([_summary(settings, picked, cards), *notes])
    return Outcome(Status.PASS, message, measured=measured, expected=wanted)


def _judge_no_cards(settings: VisibleSettings, expected: Optional[int]) -> Outcome:
    measured, wanted = settings.as_dict(), {"gpus": expected}
    message = "NVML lists no GPU"
    fix = START_WITH_GPUS
    if settings.runtime in NO_GPU:
        told = "NVIDIA_VISIBLE_DEVICES={!r} asks the container runtime for no GPU"
        cause = told.format(settings.runtime)
        message = "NVML lists no GPU; " + cause
        if expected:
            message = "{} expected, NVML lists none".format(gpus(expected))
            return Outcome(Status.FAIL, message, cause, fix, measured, wanted)
    return Outcome(Status.SKIP, message, fix=fix, measured=measured, expected=wanted)


def _shown(picked: Selection) -> Optional[List[int]]:
    return list(picked.shown) if picked.least == picked.most == len(picked.shown) else None


def _left(picked: Selection, cards: Sequence[VisibleCard]) -> str:
    if not picked.most:
        return "no GPU"
    if not picked.shown:
        return "no more than {} of the devices it names".format(picked.most)
    numbers = ", ".join(str(i) for i in picked.shown)
    return "{} of {} (number {})".format(len(picked.shown), gpus(len(cards)), numbers)


def _summary(settings: VisibleSettings, picked: Selection, cards: Sequence[VisibleCard]) -> str:
    if settings.visible is None:
        return "CUDA_VISIBLE_DEVICES is not set: nothing is hidden"
    if not picked.shown:
        return "CUDA_VISIBLE_DEVICES={} is valid".format(settings.visible)
    return "CUDA_VISIBLE_DEVICES={} shows {}".format(settings.visible, _left(picked, cards))


def _mixed(cards: Sequence[VisibleCard]) -> bool:
    return len({card.name for card in cards}) > 1


def _by_number(settings: VisibleSettings) -> bool:
    return settings.visible is not None and not settings.visible.startswith(("GPU-", "MIG-"))


def _unknown_order(settings: VisibleSettings) -> bool:
    return settings.order not in (None, "", FASTEST, BY_BUS)


def _order_notes(settings: VisibleSettings, cards: Sequence[VisibleCard]) -> Tuple[str, ...]:
    """Where cards differ, CUDA numbers the fastest first, and nvidia-smi by the bus."""
    if _unknown_order(settings):
        return ("CUDA_DEVICE_ORDER={} is not a value that CUDA knows".format(settings.order),)
    if not _mixed(cards) or settings.order == BY_BUS:
        return ()
    note = "the GPUs differ: CUDA numbers the fastest first, nvidia-smi by PCI address"
    return (
        note + ("; CUDA_DEVICE_ORDER=PCI_BUS_ID makes both equal" if _by_number(settings) else ""),
    )


CHECKS = (
    Check(
        "devices.visible",
        "No GPU is hidden by mistake",
        check_visible,
        framework=False,
        shares=True,
        replays=True,
    ),
)
