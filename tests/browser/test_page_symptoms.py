"""A text pasted into the page of `provision catalog page`, in a real browser: one of its lines is
known, or the command is named; the page stays quiet, and never claims to know the cause.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.catalog.loading import load
from provision.doctor import diagnose
from provision.doctor.knowledge import load as knowledge
from provision.page.site import page as made
from tests import DATA
from tests.browser.chromium import Browser, browser
from tests.browser.test_catalog_page import paste, show, text_of
from tests.browser.test_page import CONTRAST

ERROR = "NVIDIA-SMI has failed because RM has detected an NVML/RM version mismatch."
CODE = "driver-library-mismatch"
COMMAND = "provision doctor FILE"
SMI = "| NVIDIA-SMI 535.183.01   Driver Version: 535.183.01   CUDA Version: 12.2 |\n"
L4 = "GPU 0: NVIDIA L4 (UUID: GPU-5b)\n"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page for one card and one branch of drivers, which takes a second."""
    catalog = load()
    small = catalog.with_tables(
        gpus=tuple(row for row in catalog.gpus if row.name == "NVIDIA L4"),
        branches=tuple(row for row in catalog.branches if row.branch == 535),
    )
    path = tmp_path_factory.mktemp("page") / "index.html"
    with pytest.MonkeyPatch.context() as patch:  # nothing is forked: this process has threads
        patch.setattr(os, "sched_getaffinity", lambda _: {0})
        path.write_bytes(made(small, lambda _: None))
    return path


def meaning(tab: Browser, text: str) -> str | None:
    """The code of the symptom that the page sees in a text."""
    found = tab.run(f"symptomIn({json.dumps(text)})?.meaning.code ?? null")
    return None if found is None else str(found)


def test_a_log_gets_the_sentence_the_line_and_the_commands(tab: Browser, page: Path) -> None:
    show(tab, page)
    paste(tab, f"step 1\n\x1b[31m  {ERROR}\x1b[0m\nstep 2\n")
    shown, known = text_of(tab, "#symptom"), knowledge().by_code[CODE]
    assert known.title in shown
    assert ERROR in shown
    assert "Line 2;" in shown
    assert any(fix.note and fix.note in shown for fix in known.fixes)
    assert COMMAND in shown
    assert f"provision doctor explain {CODE}" in shown
    assert "known" in text_of(tab, "#paste-result")
    assert tab.logged() == []
    assert tab.requested() == [page.as_uri()]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_it_is_never_sure(tab: Browser, page: Path, language: str) -> None:
    show(tab, page, f"#lang={language}")
    paste(tab, ERROR)
    words = text_of(tab, "#paste-box") + text_of(tab, "#symptom")
    assert not [one for one in ("sure", "certain", "确定", "肯定") if one in words]


@pytest.mark.parametrize("text", ["hello", "Traceback\nKeyError: 'id'", "\0\1\2\x7f" * 50])
def test_what_is_not_known_gets_the_command(tab: Browser, page: Path, text: str) -> None:
    show(tab, page)
    paste(tab, text)
    assert text_of(tab, "#symptom").startswith("?")
    assert "Not known here" in text_of(tab, "#paste-result")
    assert COMMAND in text_of(tab, "#symptom")
    assert tab.logged() == []


def test_one_box_takes_both(tab: Browser, page: Path) -> None:
    """What nvidia-smi prints is a question; an error below it is looked up, too."""
    show(tab, page)
    paste(tab, SMI + L4)
    assert "NVIDIA L4" in text_of(tab, "#paste-result")
    assert "PyTorch" in text_of(tab, "#answer h2")
    assert tab.run("at('symptom').hidden")
    paste(tab, SMI + ERROR)
    assert knowledge().by_code[CODE].title in text_of(tab, "#symptom")
    assert "535.183.01" in text_of(tab, "#paste-result")
    tab.run("at('paste').value = '', at('paste').dispatchEvent(new Event('input'))")
    assert tab.run("at('symptom').hidden")
    assert text_of(tab, "#paste-result") == ""


def test_the_box_is_open_and_first(tab: Browser, page: Path) -> None:
    for width in (360, 1200):
        show(tab, page, width=width)
        first = tab.run("document.querySelector('textarea, input, select').id")
        assert first == "paste"
        assert tab.run("at('paste').getBoundingClientRect().bottom < innerHeight / 2")


def test_the_parts_of_a_phrase_are_on_one_line_in_their_order(tab: Browser, page: Path) -> None:
    show(tab, page)
    for text, place in (
        ("a b\tc", -1),
        ("first ... second", 0),
        ("second first", -1),
        ("first\nsecond", -1),
        ("first\nfirst second", 6),
        (f"first{' ' * 700}second", -1),
    ):
        assert tab.run(f"placeOf(['first', 'second'], {json.dumps(text)})") == place, text
    for text, place in (("\n- is cuda here: no", 6), ("cuda, as installed here, has no", -1)):
        assert tab.run(f"placeOf(['', 'cuda', 'no'], {json.dumps(text)})") == place, text


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("GPU Available: False\nNumber of GPUs: 0", id="the line that tutorials print"),
        pytest.param("Is CUDA available: False", id="another spelling"),
        pytest.param("torch.cuda.is_available() is False", id="the call"),
    ],
)
def test_no_gpu_is_a_symptom(tab: Browser, page: Path, text: str) -> None:
    show(tab, page)
    assert meaning(tab, text) == "torch-sees-no-gpu"


def test_of_a_long_text_the_end_is_read(tab: Browser, page: Path) -> None:
    show(tab, page)
    assert meaning(tab, "step\n" * 100_000 + ERROR) == CODE
    assert meaning(tab, ERROR + "\nstep" * 100_000) is None


def test_next_to_no_run_that_ended_well_holds_one(tab: Browser, page: Path) -> None:
    """Some were on a machine without a GPU, and say so."""
    show(tab, page)
    runs = json.loads((DATA / "doctor" / "successful.json").read_text("utf-8"))["runs"]
    found = [code for run in runs if (code := meaning(tab, run["text"])) is not None]
    assert len(found) < len(runs) / 10, found


def test_failed_runs_get_one_of_their_causes(tab: Browser, page: Path) -> None:
    """Most of them."""
    show(tab, page)
    runs = json.loads((DATA / "doctor" / "failed.json").read_text("utf-8"))["runs"]
    found = [(run, code) for run in runs if (code := meaning(tab, run["text"])) is not None]
    wrong = [(code, run["right"]) for run, code in found if code not in run["right"]]
    assert len(found) > len(runs) / 2
    assert len(wrong) < len(found) / 5, wrong


@pytest.mark.parametrize(
    "text",
    [
        "Failed to initialize NVML: Driver/library version mismatch",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: CUDA error: device-side assert triggered",
        "ImportError: libcudnn.so.8: cannot open shared object file: No such file or directory",
        "CUDA driver version is insufficient for CUDA runtime version",
        'docker: could not select device driver "" with capabilities: [[gpu]].',
        "AssertionError: Torch not compiled with CUDA enabled",
        "RuntimeError: Found no NVIDIA driver on your system.",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    ],
)
def test_what_people_paste_most_is_known(tab: Browser, page: Path, text: str) -> None:
    show(tab, page)
    assert meaning(tab, text) == diagnose([("log", text)]).causes[0].code


HOSTILE = {
    "10 MB of lines": "'CUDA error: out of memory\\n'.repeat(4e5)",
    "10 MB without a line": "'cuda nccl docker '.repeat(6e5)",
    "every phrase's beginning": "phrases().map(([, first]) => first).join(' ')",
    "every phrase but its end": "phrases().map(p => p.slice(1, -1).join(' ')).join('\\n')",
    "escapes": "'\\x1b['.repeat(4e5)",
    "binary": "String.fromCharCode(...[...Array(6e4).keys()].map(i => i * 7919 % 65536)).repeat(5)",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_stops_the_page(tab: Browser, page: Path, name: str) -> None:
    """The number of characters that are compared has a bound."""
    show(tab, page)
    script = """
      const phrases = () => JSON.parse(at("symptoms").textContent).phrases;
      const data = new DataTransfer(), split = String.prototype.split;
      let lines = 0;
      String.prototype.split = function (...words) { lines++; return split.apply(this, words); };
      data.setData("text/plain", TEXT);
      const paste = new ClipboardEvent("paste", {clipboardData: data, cancelable: true});
      at("paste").dispatchEvent(paste);
      if (!paste.defaultPrevented) readPasted(TEXT);
      lines
    """.replace("TEXT", HOSTILE[name])
    lines = tab.run("{" + script + "}")
    assert lines < 3_000_000
    assert text_of(tab, "#paste-result")
    assert tab.logged() == []


def test_a_text_cannot_write_into_the_page(tab: Browser, page: Path) -> None:
    show(tab, page)
    evil = "<img src=x onerror=alert(1)><script>document.title='x'</script>"
    paste(tab, f"{evil}\n{evil}{ERROR}{evil}")
    assert evil[:20] in text_of(tab, "#symptom")
    assert tab.run("document.querySelectorAll('#symptom img, #symptom script').length") == 0
    assert tab.logged() == []
    assert tab.requested() == [page.as_uri()]


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_it_fits_and_can_be_read(
    tab: Browser, page: Path, width: int, scheme: str, language: str
) -> None:
    for name, text in (("error", ERROR), ("unknown", "hello")):
        show(tab, page, f"#lang={language}", width, **{"prefers-color-scheme": scheme})
        paste(tab, text)
        assert tab.run("document.documentElement.scrollWidth") == width
        seen, bad = tab.run(CONTRAST)
        assert bad == []
        assert seen > 20
        if folder := os.environ.get("BROWSER_PICTURES"):
            tab.picture(Path(folder) / f"page-{name}-{language}-{width}-{scheme}.png")
