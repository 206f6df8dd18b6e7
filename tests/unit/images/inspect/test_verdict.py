"""What may be claimed from counts: targets that nearly every fatbin of every library holds."""

from __future__ import annotations

from images.inspect.model import Capability, LibraryCode
from images.inspect.verdict import judge_libraries, judge_words, notes_on_flags, notes_on_libraries
from tests.kit.cases import cases


def code(fatbins: int, name: str = "a.so", outside: int | None = 0, **counts: int) -> LibraryCode:
    """A library, by keyword: sm_80=100, compute_90=3."""
    return LibraryCode(
        name=name,
        fatbins=fatbins,
        sass={word: count for word, count in counts.items() if word.startswith("sm")},
        ptx={word: count for word, count in counts.items() if word.startswith("compute")},
        outside=outside,
    )


@cases(
    "words sm ptx",
    ("binary code alone", "sm_37 sm_80", [(3, 7), (8, 0)], None),
    ("the highest PTX", "sm_50 compute_90 compute_80", [(5, 0)], (9, 0)),
    ("PTX is no binary code", "compute_80", [], (8, 0)),
    ("suffixes", "sm_100f sm_90a sm_90", [(9, 0), (10, 0)], None),
    ("PTX for one GPU, or one family", "compute_90a compute_100f", [], None),
    ("nothing", "", [], None),
)
def test_words_are_taken_as_they_are(
    words: str, sm: list[Capability], ptx: Capability | None
) -> None:
    verdict = judge_words(words.split())
    assert (list(verdict.sm), verdict.ptx) == (sm, ptx)


@cases(
    "libraries sm ptx said",
    ("all of them", [code(10, sm_80=10, sm_90=10)], [(8, 0), (9, 0)], None, ""),
    ("kernels for one GPU, as in torch 2.15", [code(476, sm_75=476, sm_89=1, sm_100a=59)], [(7, 5)],
     None, ""),
    ("a fatbin of someone else's, as in paddlepaddle 2.6.2",
     [code(666, sm_61=666, sm_75=665, sm_90=1)], [(6, 1), (7, 5)], None, ""),
    ("PTX in ten of eleven, as in nvJPEG", [code(11, sm_80=11, compute_121=10)], [(8, 0)], None,
     "No PTX is claimed: a.so holds some, and not nearly all fatbins of a.so do."),
    ("PTX as in TensorFlow 2.8", [code(288, compute_80=287)], [], (8, 0), ""),
    ("the threshold itself", [code(20, sm_80=19)], [(8, 0)], None, ""),
    ("just below it", [code(100, sm_80=94)], [], None, "nothing is claimed"),
    ("every library counts", [code(4, "a", sm_75=4, sm_80=4), code(9, "b", sm_80=9)], [(8, 0)],
     None, "Not claimed: sm_75, which not nearly all fatbins of b hold."),
    ("many libraries without it",
     [code(4, "a", sm_80=4), *(code(1, f"b{i}", sm_90=1) for i in range(6))], [], None,
     "sm_80, which not nearly all fatbins of b0, b1, b2 and 3 more libraries hold."),
    ("PTX in all libraries: the highest that is needed",
     [code(4, "a", compute_80=4), code(9, "b", compute_90=9)], [], (9, 0), ""),
    ("PTX in one library", [code(4, "a", sm_80=4, compute_80=4), code(9, "b", sm_80=9)], [(8, 0)],
     None, "No PTX is claimed: a holds some, and not nearly all fatbins of b do."),
    ("one GPU", [code(4, sm_90a=4)], [(9, 0)], None, "sm_90a is code for that very GPU"),
    ("libraries without code are none", [code(4, sm_80=4), code(0)], [(8, 0)], None, ""),
    ("no library", [], [], None, "No device code was found"),
)  # fmt: skip
def test_libraries_are_judged_by_what_nearly_all_hold(
    libraries: list[LibraryCode], sm: list[Capability], ptx: Capability | None, said: str
) -> None:
    verdict = judge_libraries(libraries)
    assert (list(verdict.sm), verdict.ptx) == (sm, ptx)
    assert said in " ".join(verdict.notes)
    assert bool(said) == bool(verdict.notes)


def test_a_few_kernels_and_what_lies_outside_are_told() -> None:
    notes = notes_on_libraries([code(476, outside=58, sm_75=476, sm_89=1, compute_90=3), code(0)])
    assert notes == (
        "Of the 476 fatbins of a.so, only some hold sm_89 (1), compute_90 (3).",
        "a.so holds 58 more fatbins outside its device code sections; they are not counted.",
    )


def test_counts_without_a_section_table_are_told() -> None:
    (note,) = notes_on_libraries([code(4, outside=None, sm_75=4)])
    assert (
        note
        == "a.so has no section table that can be read, so that all of its fatbins are counted."
    )


@cases(
    "library said",
    ("7.0 code runs on 7.5", code(9, sm_70=9, sm_80=9), ""),
    ("no device code", code(0), ""),
    ("8.0 code does not, as in torch 2.11", code(9, sm_80=9, sm_75=3),
     "The build names 7.5, and not nearly all fatbins of a.so hold code that runs there."),
    ("8.6 code does not run on 8.0", code(9, sm_75=9, sm_86=9), "names 8.0,"),
)  # fmt: skip
def test_a_library_that_leaves_out_a_named_gpu_is_told(library: LibraryCode, said: str) -> None:
    notes = notes_on_flags([(7, 5), (8, 0)], [library])
    assert said in " ".join(notes)
    assert bool(said) == bool(notes)
