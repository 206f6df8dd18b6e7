"""The page of `provision catalog page` in a real browser: it says what the command says, and can be
used with a mouse, a keyboard, a phone, in any colours, without any request.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision.catalog.loading import load
from provision.model.plan import Request
from provision.page.changes import changes, read_page
from provision.page.questions import choices, host_of
from provision.resolve import matrix
from tests import ROOT
from tests.browser.chromium import Browser, browser
from tests.browser.test_page import CONTRAST
from tests.kit.pages import KEPT_BY_OTHERS, LIMIT_S, planned, random_questions, shared_page
from tests.kit.programs import run_program

pytestmark = pytest.mark.timeout(LIMIT_S + 300)

QUESTION = "#gpu=nvidia-geforce-rtx-3090&driver=535.183.01"
REFUSED = "#gpu=nvidia-b200&driver=535.183.01"
MIXED = "#gpu=nvidia-geforce-gtx-1080-ti&gpu=nvidia-geforce-rtx-4090&driver=580.95.05"
APART = "#gpu=nvidia-geforce-gtx-1080-ti&gpu=nvidia-geforce-rtx-5090&driver=580.95.05"
MOST_BYTES = 1_500_000  # compressed; what a phone loads in a few seconds
ARCH = os.uname().machine


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(scope="module")
def page(tab: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    del tab  # without a browser the page need not be made, which takes minutes
    return shared_page(tmp_path_factory)


def show(tab: Browser, page: Path, fragment: str = "", width: int = 1200, **media: str) -> None:
    """Load the page at an address, as somebody who follows a link to it."""
    tab.open(Path("/dev/null"), width=width)
    features = {"prefers-color-scheme": "light", "forced-colors": "none", **media}
    medium = features.pop("media", "")
    rows = [{"name": name, "value": value} for name, value in features.items()]
    tab.send("Emulation.setEmulatedMedia", media=medium, features=rows)
    tab.events.clear()
    tab.send("Page.navigate", url=page.as_uri() + fragment)
    tab.wait_for("Page.loadEventFired")


def press(tab: Browser, *keys: str) -> None:
    """Press keys: one by its name, or text letter by letter."""
    for key in keys:
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "Backspace": 8, " ": 32}
        arrows = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        code = {**codes, **arrows}.get(key)
        if code is None:
            tab.send("Input.insertText", text=key)
            continue
        known = {"key": key, "windowsVirtualKeyCode": code, "code": key}
        text = {"Enter": "\r", " ": " "}.get(key)
        tab.send(
            "Input.dispatchKeyEvent", type="keyDown", **known, **({"text": text} if text else {})
        )
        tab.send("Input.dispatchKeyEvent", type="keyUp", **known)


def text_of(tab: Browser, selector: str) -> str:
    return str(tab.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))


def asked(tab: Browser) -> dict[str, Any]:
    return dict(tab.run("question"))


# ---- what it says ----


def test_a_thousand_questions_are_answered_as_by_the_command(tab: Browser, page: Path) -> None:
    catalog = load()
    questions = random_questions(catalog, 1000, seed=20)
    show(tab, page)
    answers = json.loads(tab.run(f"JSON.stringify({json.dumps(questions)}.map(planFor))"))
    for question, answer in zip(questions, answers, strict=True):
        expected = planned(question, catalog)
        assert answer is not None, question
        answer.pop("commands")
        assert answer == expected, question
    verdicts = {answer["verdict"] for answer in answers}
    assert verdicts == {"direct", "minor-version", "forward", "unverified", "none"}


def test_what_the_command_itself_prints(tab: Browser, page: Path) -> None:
    """The command that the page shows, typed here."""
    show(tab, page)
    tried = 0
    for question in random_questions(load(), 60, seed=21):
        if question["driver"] is None or tab.run(f"archOf({json.dumps(question)})") != ARCH:
            continue  # there is no option for these
        tried += 1
        words = shlex.split(tab.run(f"planCommand({json.dumps(question)})"))
        done = run_program([sys.executable, "-m", *words, "--json"], cwd=ROOT)
        printed = json.loads(done.stdout)
        answer = json.loads(tab.run(f"JSON.stringify(planFor({json.dumps(question)}))"))
        answer.pop("commands")
        assert answer == {k: v for k, v in printed.items() if k not in KEPT_BY_OTHERS}, words
        if tried == 5:
            return
    pytest.fail("too few questions for this CPU architecture")


def test_the_matrix_of_one_gpu_is_that_of_the_command(tab: Browser, page: Path) -> None:
    catalog = load()
    show(tab, page)
    for question in random_questions(catalog, 100, seed=22):
        gpu = next(row for row in catalog.gpus if row.name == question["gpus"][0])
        host = host_of(gpu, question["driver"], question["arch"])
        cells = matrix([host], Request(framework=question["framework"]), catalog)
        shown = tab.run(f"matrixFor({json.dumps(question)})")
        for cell, found in zip(cells, shown, strict=True):
            reasons = [{"code": cell.code, "message": cell.message}] if cell.message else []
            assert found["reasons"] == reasons
            for key in ("framework_version", "cuda", "wheel_tag", "existence", "verdict"):
                assert found[key] == getattr(cell, key)


def test_a_mixed_machine_runs_what_each_of_its_gpus_runs(tab: Browser, page: Path) -> None:
    """The page combines the answers for single GPUs; the resolver is asked about the machine."""
    catalog = load()
    show(tab, page)
    firsts, seconds = (
        random_questions(catalog, 300, seed=23),
        random_questions(catalog, 300, seed=24),
    )
    tried = 0
    for question, other in zip(firsts, seconds, strict=True):
        names = [question["gpus"][0], other["gpus"][0]]
        rows = [next(row for row in catalog.gpus if row.name == name) for name in names]
        hosts = [host_of(row, question["driver"], question["arch"]) for row in rows]
        if len({host.arch for host in hosts}) > 1 or rows[0] == rows[1]:
            continue
        tried += 1
        both = tuple(gpu for host in hosts for gpu in host.gpus or ())
        cells = matrix(
            [hosts[0]._replace(gpus=both)], Request(framework=question["framework"]), catalog
        )
        shown = tab.run(f"matrixFor({json.dumps({**question, 'gpus': names})})")
        assert [cell["verdict"] for cell in shown] == [cell.verdict for cell in cells], (
            question,
            names,
        )
    assert tried > 200


def test_what_it_cannot_represent_it_leaves_to_the_command(tab: Browser, page: Path) -> None:
    for fragment, part in (
        ("#gpu=nvidia-a40&driver=999.10", "not in the catalog of this page"),
        ("#gpu=nvidia-a40&driver=535", "Not a full driver version"),
        ("#gpu=nvidia-a40&driver=none", "Not a full driver version"),
        (MIXED, "the command's to say"),
        (APART, "No build of PyTorch runs on all of these GPUs"),
    ):
        show(tab, page, fragment)
        assert part in text_of(tab, "#answer"), fragment
        assert "None" not in text_of(tab, "#answer")
        assert not tab.logged()


@pytest.mark.parametrize(
    ("fragment", "what"),
    [
        ("#gpu=nvidia-a40&gpu=nvidia-z9000&driver=580.95.05", "nvidia-z9000"),
        ("#gpu=nvidia-a40&cuda=99.9", "CUDA 99.9"),
        ("#gpu=nvidia-a40&framework=jax&cuda=11.8", "CUDA 11.8"),
        ("#gpu=nvidia-a40&python=2.7", "Python 2.7"),
        ("#gpu=nvidia-a40&framework=caffe", "caffe"),
        ("#gpu=nvidia-a40&arch=riscv64", "riscv64"),
        ("#gpu=%3Cimg%20src=x%3E&driver=580.95.05", "<img src=x>"),
    ],
)
def test_a_link_that_asks_for_something_else_has_no_answer(
    tab: Browser, page: Path, fragment: str, what: str
) -> None:
    show(tab, page, fragment)
    assert f"This page does not have: {what}" in text_of(tab, "#answer")
    assert text_of(tab, "#matrix") == ""
    assert tab.logged() == []
    tab.run("change({gpus: ['NVIDIA A40']})")
    assert "PyTorch" in text_of(tab, "#answer") or "JAX" in text_of(tab, "#answer")
    assert "does not have" not in text_of(tab, "#answer")


@pytest.mark.parametrize(
    "fragment", ["#lang=__proto__", "#%E0%A4%A", "#=&&=", "#gpu", "#gpu-", "#driver-__proto__=1"]
)
def test_a_broken_address_is_no_question(tab: Browser, page: Path, fragment: str) -> None:
    show(tab, page, fragment)
    assert "Pick a GPU" in text_of(tab, "#answer")
    assert tab.logged() == []


def test_long_lines_are_read_in_no_time(tab: Browser, page: Path) -> None:
    show(tab, page)
    for text in ("'|   0  ' + ' '.repeat(1e6)", "'GPU 0: ' + ' ('.repeat(5e5)", "'1'.repeat(1e6)"):
        assert tab.run(f"readSmi({text}).gpus.length") == 0


def test_alternatives_lead_to_themselves(tab: Browser, page: Path) -> None:
    """A link of an alternative is the address of an answer with its release and its CUDA."""
    show(tab, page)
    questions = random_questions(load(), 150, seed=25)
    wrong, links = tab.run(
        json.dumps(questions)
        + """.reduce(([wrong, links], asked) => {
          const plan = planFor(asked);
          const list = plan.alternatives.length ? alternatives(plan, asked) : null;
          for (const link of list?.querySelectorAll("a") ?? []) {
            const there = planFor(questionOf(link.getAttribute("href")));
            const name = `${there.framework.version}`, cuda = `CUDA ${there.cuda}`;
            links += 1;
            const text = link.innerText;
            if (!text.includes(name) || !text.endsWith(cuda)) wrong.push(text);
          }
          return [wrong, links];
        }, [[], 0])"""
    )
    assert wrong == []
    assert links > 50


def test_a_driver_that_lists_a_gpu_is_believed(tab: Browser, page: Path) -> None:
    show(tab, page)
    paste(tab, "GPU 0: NVIDIA B200 (UUID: GPU-1)\nDriver Version: 535.183.01")
    assert "Your driver lists this GPU" in text_of(tab, "#answer")
    tab.run("change({driver: '535.104.05'})")  # another driver has listed nothing
    assert "Your driver lists" not in text_of(tab, "#answer")
    assert "Install NVIDIA driver 570" in text_of(tab, "#answer")


# ---- how it is used ----


SMI = """
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 535.183.01             Driver Version: 535.183.01   CUDA Version: 12.2     |
|-----------------------------------------+----------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
|=========================================+======================+======================|
|   0  NVIDIA GeForce RTX 3090        Off | 00000000:01:00.0 Off |                  N/A |
|  0%   33C    P8              21W / 350W |      6MiB / 24576MiB |      0%      Default |
+-----------------------------------------+----------------------+----------------------+
|   1  NVIDIA GeForce ...             Off | 00000000:02:00.0 Off |                  N/A |
"""
CSV = "name, driver_version\nNVIDIA A100-SXM4-80GB, 550.54.15\nNVIDIA A100-SXM4-80GB, 550.54.15\n"
NEW = """
| NVIDIA-SMI 610.43.02    KMD Version: 610.43.02    CUDA UMD Version: 13.3                |
|   0  NVIDIA L4                      On  | 00000000:00:04.0 Off |                    0 |
"""


def paste(tab: Browser, text: str) -> None:
    tab.run("document.getElementById('paste').focus()")
    tab.run("document.getElementById('paste').value = ''")
    tab.send("Input.insertText", text=text)


@pytest.mark.parametrize(
    ("text", "gpus", "driver", "unknown"),
    [
        (SMI, ["NVIDIA GeForce RTX 3090"], "535.183.01", "NVIDIA GeForce ..."),
        (CSV, ["NVIDIA A100-SXM4-80GB"], "550.54.15", ""),
        (NEW, ["NVIDIA L4"], "610.43.02", ""),
        ("GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-5b)", ["Tesla V100-SXM2-32GB"], None, ""),
        ("GPU 0: AMD Instinct MI300X (UUID: x)", [], None, "AMD Instinct MI300X"),
        ("bash: nvidia-smi: command not found", [], None, ""),
        ("<img src=x onerror=alert(1)>\nGPU 0: <b>x</b>", [], None, "<b>x</b>"),
    ],
)
def test_pasted_output_is_read(
    tab: Browser, page: Path, text: str, gpus: list[str], driver: str | None, unknown: str
) -> None:
    show(tab, page)
    paste(tab, text)
    assert (asked(tab)["gpus"], asked(tab)["driver"]) == (gpus, driver)
    assert unknown in text_of(tab, "#paste-result")
    assert text_of(tab, "#paste-result")
    assert tab.logged() == []


def test_names_that_are_read_are_those_of_the_catalog(tab: Browser, page: Path) -> None:
    """A name means the same card to the page and to the resolver, or nothing to the page."""
    catalog = load()
    names = [name for row in catalog.gpus for name in (row.name, *row.aliases)]
    names += [name.removeprefix("NVIDIA ") for name in names]
    names += [f"{name} MIG 1g.5gb" for name in names if "A100" in name]
    show(tab, page)
    read = tab.run(f"{json.dumps(names)}.map(name => cardNamed(name)?.name ?? null)")
    for name, card in zip(names, read, strict=True):
        if card is not None:
            assert card in {row.name for row in catalog.find_gpu(name).rows}, name
    assert read.count(None) < len(names) / 10


def test_typed_picked_and_shared(tab: Browser, page: Path) -> None:
    show(tab, page)
    tab.run("document.getElementById('gpu').focus()")
    press(tab, "4090")
    names = tab.run("[...document.querySelectorAll('#found li')].map(e => e.innerText)")
    assert names
    assert all("4090" in name for name in names)
    tab.run(
        "document.querySelector('#found li')"
        ".dispatchEvent(new MouseEvent('mousedown', {cancelable: true}))"
    )
    tab.run("document.getElementById('driver').focus()")
    press(tab, "580.95.05", "Tab")
    tab.run("document.querySelector('input[value=jax]').click()")
    address = tab.run("location.hash")
    assert "rtx-4090" in address
    answer = text_of(tab, "#answer")
    assert "JAX" in answer
    show(tab, page, address)
    assert text_of(tab, "#answer") == answer


def test_with_the_keyboard_alone(tab: Browser, page: Path) -> None:
    show(tab, page)
    tab.run("document.body.focus()")
    for _ in range(8):
        press(tab, "Tab")
        if tab.run("document.activeElement.id") == "gpu":
            break
    press(tab, "h100 pcie", "Enter", "Tab")
    assert asked(tab)["gpus"] == ["NVIDIA H100 PCIe"]
    assert tab.run("document.activeElement.id") == "driver"
    press(tab, "535.104.05", "Tab")
    assert asked(tab)["driver"] == "535.104.05"
    press(tab, "ArrowRight")
    assert asked(tab)["framework"] == "tensorflow"
    seen = []
    for _ in range(60):
        press(tab, "Tab")
        seen.append(
            tab.run(
                "document.activeElement.closest('td') ? 'cell' : document.activeElement.tagName"
            )
        )
        if seen[-1] == "cell":
            break
    assert {"SELECT", "BUTTON", "PRE", "cell"} <= set(seen)
    before = text_of(tab, "#reason")
    press(tab, "ArrowDown")
    assert text_of(tab, "#reason") not in {"", before}
    tab.run("document.getElementById('gpu').focus()")
    press(tab, "l4", "Escape")
    assert tab.run("document.getElementById('found').hidden")
    press(tab, "Backspace", "Backspace", "Backspace")
    assert asked(tab)["gpus"] == []


CLIPBOARDS = {
    "the clipboard's interface": "0",
    "an interface that refuses": "navigator.clipboard.writeText = async () => { throw Error(); }",
    "no interface": "Object.defineProperty(navigator, 'clipboard', {value: undefined})",
}


def pasted_from_clipboard(tab: Browser) -> str:
    """What Ctrl+V puts into a box."""
    tab.run(
        "at('paste').replaceWith(at('paste').cloneNode()),"
        "at('paste').value = '', at('paste').focus()"
    )
    keys = {"key": "v", "code": "KeyV", "windowsVirtualKeyCode": 86, "modifiers": 2}
    tab.send("Input.dispatchKeyEvent", type="keyDown", commands=["paste"], **keys)
    tab.send("Input.dispatchKeyEvent", type="keyUp", **keys)
    return str(tab.run("at('paste').value"))


@pytest.mark.parametrize("clipboard", CLIPBOARDS)
def test_what_is_shown_is_what_is_copied(tab: Browser, page: Path, clipboard: str) -> None:
    """Every button, of a page from a file."""
    show(tab, page, QUESTION)
    granted = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    tab.send("Browser.grantPermissions", permissions=granted)
    tab.run(CLIPBOARDS[clipboard])
    shown = tab.run(
        "[...document.querySelectorAll('.copy')].map(button =>"
        " button.parentElement.querySelector('code')?.textContent ?? location.href)"
    )
    assert len(shown) == 5
    assert "\n" in "".join(shown)
    for i, text in enumerate(shown):
        click = f"""at("copy-status").textContent = "";
            document.querySelectorAll(".copy")[{i}].click();
            new Promise(done => {{
              const look = () => {{
                const said = at("copy-status").textContent;
                said ? done(said) : setTimeout(look, 5);
              }};
              look();
            }})"""
        found = tab.send(
            "Runtime.evaluate",
            expression=click, userGesture=True, awaitPromise=True, returnByValue=True,
        )  # fmt: skip
        assert found["result"]["value"] == "Copied"
        assert pasted_from_clipboard(tab) == text
    assert tab.logged() == []


def test_its_commands_can_be_typed(tab: Browser, page: Path) -> None:
    """The plan of the command that the page shows is the page's."""
    from provision.cli.parser import build_parser

    for fragment in (QUESTION, REFUSED, MIXED, QUESTION + "&framework=jax&cuda=12.4&python=3.11"):
        show(tab, page, fragment)
        for line in tab.run(
            "[...document.querySelectorAll('.command code')].map(e => e.innerText)"
        ):
            if line.startswith("provision "):
                build_parser().parse_args(shlex.split(line)[1:])


def test_the_languages_have_the_same_words_and_holes(tab: Browser, page: Path) -> None:
    words = json.loads((ROOT / "provision/page/data/words.json").read_text("utf-8"))

    def flat(part: Any, path: str = "") -> dict[str, list[str]]:
        if isinstance(part, str):
            return {path: sorted(re.findall(r"\{\w+\}", part))}
        rows = part.items() if isinstance(part, dict) else enumerate(part)
        return {k: v for key, one in rows for k, v in flat(one, f"{path}/{key}").items()}

    assert flat(words["en"]) == flat(words["zh"])
    show(tab, page, QUESTION + "&lang=zh")
    assert tab.run("document.documentElement.lang") == "zh-CN"
    assert "驱动" in text_of(tab, "#ask")
    assert "只有英文" in text_of(tab, "#answer")


def test_every_row_of_the_facts_has_an_address(tab: Browser, page: Path) -> None:
    catalog = load()
    show(tab, page, "#gpu-nvidia-a40")
    assert tab.run("document.activeElement.id") == "gpu-nvidia-a40"
    assert "460.32.03" in tab.run("document.activeElement.innerText")
    show(tab, page, "#driver-535")
    assert tab.run("document.activeElement.id") == "driver-535"
    tab.run("document.querySelectorAll('#facts details').forEach(e => { e.open = true; })")
    tab.run("Object.keys(TABLES).forEach(n => fillTable(document.getElementById('facts-' + n), n))")
    ids = tab.run("[...document.querySelectorAll('#facts tr[id]')].map(e => e.id)")
    assert len(set(ids)) == len(ids) > 400
    assert len([i for i in ids if i.startswith("gpu-")]) == len(catalog.gpus)
    sources = tab.run(
        "[...document.querySelectorAll('#facts tr[id] td .source')].map(e => e.textContent)"
    )
    assert len(sources) == len(ids)
    assert all(sources)


# ---- what changed since an earlier page ----


@pytest.fixture(scope="module")
def since(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page as `--since` makes it, from an earlier one that lacks a card, has another, and
    knows another end of life.
    """
    before, found, after = re.split(r"(?<=id=\"data\">)([^<]*)", page.read_text("utf-8"))
    data, old = json.loads(found), json.loads(found)
    nodes, tables = old["nodes"], old["facts"]
    for name, places, text in (
        ("cards", (1, 2), "<img src=x onerror=alert(1)>"),  # its address, and its name
        ("branches", (7,), "2001"),  # its end of life
    ):
        rows = tables[name]["rows"]
        row = [len(nodes) if i in places else child for i, child in enumerate(nodes[rows[0]])]
        nodes += [text, row]
        rows[0] = len(nodes) - 1
    folder = tmp_path_factory.mktemp("since")
    for name, content in (("old", old), ("new", data)):
        if name == "new":
            earlier = read_page(folder / "old.html")
            data["changes"] = changes(earlier, data["facts"], data["nodes"])
        text = json.dumps(content).replace("<", "\\u003c")
        (folder / f"{name}.html").write_text(before + text + after, "utf-8")
    return folder / "new.html"


def test_what_changed_is_listed_and_leads_to_its_rows(tab: Browser, since: Path) -> None:
    show(tab, since)
    card = load().gpus[0].name
    branch = max(row.branch for row in load().branches)
    shown = text_of(tab, "#changes")
    assert f"New: {card}" in shown
    assert "Gone: <img src=x onerror=alert(1)>" in shown
    assert re.search(rf"^{branch}: End of life: 2001 → ", shown, re.MULTILINE)
    assert tab.run("document.querySelectorAll('#changes li').length") == 3
    links = tab.run("[...document.querySelectorAll('#changes a')].map(a => a.getAttribute('href'))")
    assert len(links) == 2
    for link in links:
        show(tab, since, link)
        assert tab.run("document.activeElement.id") == link[1:]
    assert tab.logged() == []
    for width in (360, 1200):
        show(tab, since, "#lang=zh", width)
        assert tab.run("document.documentElement.scrollWidth") == width
        assert "新增" in text_of(tab, "#changes")
        if folder := os.environ.get("BROWSER_PICTURES"):
            tab.picture(Path(folder) / f"page-changes-{width}.png")


# ---- how it looks ----

SCHEMES: dict[str, dict[str, str]] = {
    "light": {},
    "dark": {"prefers-color-scheme": "dark"},
    "forced": {"forced-colors": "active"},
    "print": {"media": "print"},
}
ADDRESSES = {
    "start": "",
    "fits": QUESTION,
    "refused": REFUSED,
    "mixed": MIXED,
    "chinese": QUESTION + "&lang=zh",
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("name", ADDRESSES)
def test_it_is_quiet_and_within_its_width(
    tab: Browser, page: Path, name: str, width: int, scheme: str
) -> None:
    show(tab, page, ADDRESSES[name], width, **SCHEMES[scheme])
    assert tab.logged() == []
    assert tab.requested() == [page.as_uri()]
    assert tab.run("document.documentElement.scrollWidth") == width
    if scheme in {"light", "dark"}:
        seen, bad = tab.run(CONTRAST)
        assert bad == []
        assert seen > 20
    if folder := os.environ.get("BROWSER_PICTURES"):
        tab.picture(Path(folder) / f"page-{name}-{width}-{scheme}.png")


def test_a_screen_reader_finds_names_for_everything(tab: Browser, page: Path) -> None:
    show(tab, page, QUESTION)
    nodes = tab.send("Accessibility.getFullAXTree")["nodes"]
    controls = {"button", "combobox", "radio", "textbox", "link", "gridcell", "listbox", "option"}
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in controls
    ]
    # empty cells of the table have nothing to say
    empty = tab.run("document.querySelectorAll('td.empty').length")
    assert len([one for one in named if not one[1].strip()]) <= empty
    assert ("radio", "TensorFlow") in named
    assert any("PyTorch 2.5.1, CUDA 12.1: runs" in name for _, name in named)
    assert tab.run("document.getElementById('said').role") == "status"
    assert "Runs, by minor-version compatibility." in tab.run(SAID)
    tab.run("document.querySelector('input[value=tensorflow]').click()")
    assert "TensorFlow 2." in tab.run(SAID)


SAID = "document.getElementById('said').textContent"


def test_the_link_that_skips_the_form_keeps_the_question(tab: Browser, page: Path) -> None:
    show(tab, page, QUESTION)
    press(tab, "Tab", "Enter")
    assert tab.run("document.activeElement.id") == "answer"
    assert tab.run("location.hash") == QUESTION
    assert "2.14" in text_of(tab, "#answer")
    tab.run("location.hash = '#gpu-nvidia-a40'")
    tab.run("location.hash = '#no-such-row'")
    assert asked(tab)["driver"] == "535.183.01"


# ---- the file ----


def test_its_size(page: Path) -> None:
    content = page.read_bytes()
    assert len(gzip.compress(content)) <= MOST_BYTES
    assert len(choices(load())) == 6


def test_it_asks_for_nothing_elsewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    head = text.partition('<script type="application/json"')[0]
    assert "default-src 'none'" in head
    assert not re.search(r"<(?:link|img|iframe)\b|\bsrc=|@import|url\(", head)
    scripts = text.rpartition("</script>\n<script>")[0]
    assert not re.search(
        r"\b(?:fetch|XMLHttpRequest|WebSocket|import)\(", scripts.rpartition("</script>")[2]
    )
