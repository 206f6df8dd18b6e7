"""Decides from counted fatbins what can be claimed about a wheel. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from images.inspect.model import Capability, LibraryCode
from images.inspect.texts import capability

NEARLY_ALL = 0.95
"""A library counts as built for a target if at least this share of its fatbins contains it.

Measured: where torch's flags list the targets (nine wheels from 2.0.1 to 2.15.0), each of them is
in all fatbins of libtorch_cuda.so, and no other in more than 13.3 % (kernels for one GPU). Fatbins
from third parties make it 99.8 % (sm_75 in paddlepaddle 2.6.2) or 97.4 % (PTX in cuBLAS 13.10). At
91 % it no longer holds: one of nvJPEG's eleven fatbins has no PTX, so that a newer GPU cannot run
it. In libtorch_cuda_cu.so of torch 1.13.1, with code from several sources, no target is in more
than 95.04 %, not even those of its own flags: there, counting cannot decide.
"""
_NOTHING = "No target is in nearly all fatbins of any library: nothing is claimed."


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What can be claimed, with notes on why not more."""

    sm: tuple[Capability, ...]
    ptx: Capability | None
    notes: tuple[str, ...] = ()


def judge_words(words: Iterable[str]) -> Verdict:
    """Judge a build's own flags: "sm_86" is binary code, "compute_86" is only PTX.

    TensorFlow's compute_90 comes with sm_90 code in only some fatbins (2.21: 249 of 1398).
    """
    words = tuple(words)
    sass = [word for word in words if word.startswith("sm_")]
    ptx = [word for word in words if word.startswith("compute_")]
    return Verdict(
        sm=_capabilities(sass), ptx=_highest_portable(ptx), notes=_notes_on_suffixes(words)
    )


def judge_libraries(libraries: Sequence[LibraryCode]) -> Verdict:
    """The targets that every library with device code was built for.

    A target that one of the libraries lacks is omitted, and named in the notes.
    """
    coded = [library for library in libraries if library.fatbins]
    if not coded:
        return Verdict(sm=(), ptx=None, notes=("No device code was found in it.",))
    sass = [_nearly_all(library.sass, library.fatbins) for library in coded]
    ptx = [_nearly_all(library.ptx, library.fatbins) for library in coded]
    in_all = [word for word in sass[0] if all(word in held for held in sass)]
    highest = [_highest_portable(held) for held in ptx]
    # claim the highest of their PTX versions: for it, every library has PTX to compile
    claimed = max((found for found in highest if found), default=None)
    return Verdict(
        sm=_capabilities(in_all),
        ptx=claimed if all(highest) else None,
        notes=(
            *_notes_on_differences(coded, sass, in_all),
            *([_NOTHING] if not any(sass) and not all(highest) else []),
            *_notes_on_ptx(coded, highest),
            *_notes_on_suffixes(in_all),
        ),
    )


def notes_on_libraries(libraries: Iterable[LibraryCode]) -> tuple[str, ...]:
    """Notes on what the claims omit: targets of a few kernels, and fatbins not counted."""
    notes = []
    for library in libraries:
        few = [
            f"{word} ({count})"
            for held in (library.sass, library.ptx, library.other)
            for word, count in held.items()
            if count < NEARLY_ALL * library.fatbins
        ]
        if few:
            notes.append(
                f"Of the {library.fatbins} fatbins of {library.name}, only some hold "
                f"{', '.join(few)}."
            )
        if library.outside is None:
            notes.append(
                f"{library.name} has no section table that can be read, so that all of its fatbins "
                "are counted."
            )
        elif library.outside:
            notes.append(
                f"{library.name} holds {library.outside} more fatbins outside its device code "
                "sections; they are not counted."
            )
    return tuple(notes)


def notes_on_flags(sm: Iterable[Capability], libraries: Iterable[LibraryCode]) -> tuple[str, ...]:
    """Notes on libraries without code for a GPU that the flags name."""
    notes = []
    for library in libraries:
        if not library.fatbins:
            continue
        held = _capabilities(_nearly_all(library.sass, library.fatbins))
        lacking = [
            f"{major}.{minor}"
            for major, minor in sm
            if not any(major == have and minor >= least for have, least in held)
        ]
        if lacking:
            notes.append(
                f"The build names {', '.join(lacking)}, and not nearly all fatbins of "
                f"{library.name} hold code that runs there."
            )
    return tuple(notes)


def _nearly_all(counts: Mapping[str, int], fatbins: int) -> list[str]:
    return [word for word, count in counts.items() if count >= NEARLY_ALL * fatbins]


def _capabilities(words: Iterable[str]) -> tuple[Capability, ...]:
    return tuple(sorted({found for word in words if (found := capability(word))}))


def _highest_portable(words: Iterable[str]) -> Capability | None:
    """The highest PTX for all later GPUs: not compute_90a (only 9.0) or compute_100f (a family)."""
    portable = _capabilities(word for word in words if word[-1].isdigit())
    return portable[-1] if portable else None


def _notes_on_differences(
    coded: Sequence[LibraryCode], sass: Sequence[Sequence[str]], in_all: Sequence[str]
) -> list[str]:
    """Notes on targets that only some libraries have, grouped by the libraries that lack them."""
    words_without: dict[tuple[str, ...], list[str]] = {}
    for word in sorted({word for held in sass for word in held} - set(in_all), key=_by_number):
        without = tuple(
            library.name for library, held in zip(coded, sass, strict=True) if word not in held
        )
        words_without.setdefault(without, []).append(word)
    return [
        f"Not claimed: {', '.join(words)}, which not nearly all fatbins of {_shown(names)} hold."
        for names, words in words_without.items()
    ]


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more libraries" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _notes_on_ptx(coded: Sequence[LibraryCode], highest: Sequence[Capability | None]) -> list[str]:
    with_ptx = [library.name for library in coded if library.ptx]
    without = [library.name for library, found in zip(coded, highest, strict=True) if not found]
    if not with_ptx or not without:
        return []
    note = (
        f"No PTX is claimed: {_shown(with_ptx)} holds some, and not nearly all fatbins of "
        f"{_shown(without)} do."
    )
    return [note]


def _notes_on_suffixes(words: Iterable[str]) -> tuple[str, ...]:
    exact = [word for word in words if word.endswith("a")]
    return (
        (f"{', '.join(exact)} is code for that very GPU, not for later ones of its generation.",)
        if exact
        else ()
    )


def _by_number(word: str) -> tuple[int, str]:
    return len(word.rstrip("af")), word
