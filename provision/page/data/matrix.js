// The table of all builds: releases down, CUDA across; a cell shows its reason when it is chosen.
"use strict";

function showMatrix(question, chosen) {
  const section = document.getElementById("matrix");
  section.hidden = Boolean(question.unknown?.length) || !question.gpus.length || rangeOf(question.driver) < 0 ||
    !DATA.choices[choicesOf(question)].builds.length;
  if (section.hidden) return section.replaceChildren();
  const cells = matrixFor(question);
  const cudas = DATA.choices[choicesOf(question)].cudas.slice(1);
  const releases = [...new Set(cells.map(cell => cell.framework_version))];
  const reason = make("div", {id: "reason", role: "status"});
  const rows = releases.map(release => make("tr", {}, make("th", {scope: "row"}, release),
    cudas.map(cuda => cellOf(cells.find(one => one.framework_version === release && one.cuda === cuda), chosen, question))));
  const table = make("table", {role: "grid", "aria-labelledby": "matrix-title"},
    make("thead", {}, make("tr", {}, make("th", {scope: "col"}, word("release")),
      cudas.map(cuda => make("th", {scope: "col"}, cuda)))),
    make("tbody", {}, rows));
  table.addEventListener("keydown", moveInGrid);
  table.addEventListener("click", event => choose(event.target.closest("td"), reason, question));
  table.addEventListener("focusin", event => choose(event.target.closest("td"), reason, question));
  table.querySelector("td[tabindex]")?.setAttribute("tabindex", "0");
  table.querySelector("td.chosen")?.setAttribute("tabindex", "0");
  section.replaceChildren(make("h2", {id: "matrix-title"}, word("matrix")), make("p", {class: "help"}, word("matrixIntro")),
    legend(), make("div", {class: "wide"}, table), reason);
}

function cellOf(cell, chosen, question) {
  if (!cell) return make("td", {class: "empty"});
  const isChosen = chosen && chosen.framework.version === cell.framework_version && chosen.cuda === cell.cuda;
  const verdict = word(`onMatrix/${cell.verdict}`);
  const name = word("cell", {framework: titleOf(question.framework), version: cell.framework_version, cuda: cell.cuda,
    verdict: isChosen ? `${verdict} (${word("cellChosen")})` : verdict});
  const element = make("td", {class: `${cell.verdict} ${isChosen ? "chosen" : ""}`, tabindex: "-1", role: "gridcell",
    "aria-label": name, title: [name, ...cell.reasons.map(one => one.message)].join("\n")},
  MARKS[cell.verdict] + (cell.existence === "confirmed" ? "" : "*"));
  element.cell = cell;
  return element;
}

function choose(element, reason, question) {
  if (!element?.cell) return;
  const {cell} = element;
  const grid = element.closest("table");
  grid.querySelectorAll("[aria-selected]").forEach(one => one.removeAttribute("aria-selected"));
  grid.querySelectorAll("td[tabindex='0']").forEach(one => one.setAttribute("tabindex", "-1"));
  element.setAttribute("aria-selected", "true");
  element.setAttribute("tabindex", "0");
  const id = anchor("build", question.framework, cell.framework_version, cell.wheel_tag || `cuda${cell.cuda}`, archOf(question));
  reason.replaceChildren(
    make("p", {}, make("strong", {}, element.getAttribute("aria-label"))),
    ...cell.reasons.map(one => said("p", `${one.message} [${one.code}]`)),
    make("p", {}, make("a", {href: addressOf({...question, cuda: cell.cuda})}, word("ask", {cuda: cell.cuda})), " · ",
      make("a", {href: `#${id}`}, word("source"))));
}

function moveInGrid(event) {
  const steps = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};
  const step = steps[event.key], from = event.target.closest("td");
  if (!step || !from) return;
  event.preventDefault();
  const rows = [...from.closest("tbody").rows];
  let row = rows.indexOf(from.parentElement), column = from.cellIndex;
  do {
    row += step[0];
    column += step[1];
  } while (rows[row]?.cells[column] && !rows[row].cells[column].cell);
  rows[row]?.cells[column]?.focus();
}

function legend() {
  return make("ul", {class: "legend", "aria-label": word("legend")},
    Object.entries(word("onMatrix")).map(([verdict, name]) =>
      make("li", {}, make("span", {class: verdict, "aria-hidden": "true"}, MARKS[verdict]), name)),
    make("li", {}, word("likely")));
}
