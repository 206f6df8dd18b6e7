// The rows of the catalog, each with its source and an address of its own.
"use strict";

// The address of a row: "gpu-nvidia-a40", "driver-535", "build-pytorch-2-0-1-cu117-x86-64".
function anchor(...parts) {
  return parts.join("-").toLowerCase().replace(/[^a-z0-9]+/g, "-");
}

const TABLES = {cards: "gpu", branches: "driver", builds: "build"};

function showFacts() {
  const section = document.getElementById("facts");
  const parts = Object.keys(TABLES).map(name => {
    const box = make("details", {id: `facts-${name}`},
      make("summary", {}, `${word(name)} (${word("asOf", {date: DATA.facts[name].date})})`));
    box.addEventListener("toggle", () => box.open && fillTable(box, name));
    return box;
  });
  section.replaceChildren(make("h2", {id: "facts-title"}, word("facts")), make("p", {class: "help"}, word("factsIntro")), ...parts);
}

function fillTable(box, name) {
  if (box.querySelector("table")) return;
  const {columns, rows} = DATA.facts[name];
  box.append(make("div", {class: "wide", tabindex: "0", role: "region", "aria-label": word(name)}, make("table", {},
    make("thead", {}, make("tr", {}, columns.map(column => make("th", {scope: "col"}, word(`columns/${column}`))))),
    make("tbody", {}, rows.map(row => factRow(valueOf(row), columns, TABLES[name]))))));
}

function factRow([id, ...values], columns, kind) {
  const address = anchor(kind, id);
  return make("tr", {id: address}, columns.map((column, i) => {
    if (i === 0) return make("th", {scope: "row"}, make("a", {href: `#${address}`}, values[i]));
    return make("td", {}, column === "source" ? source(values[i]) : `${values[i] ?? ""}`);
  }));
}

// Opens the table of a row's address, and goes there.
function goToFact(id) {
  const name = Object.keys(TABLES).find(one => id.startsWith(`${TABLES[one]}-`));
  if (!name) return;
  const box = document.getElementById(`facts-${name}`);
  box.open = true;
  fillTable(box, name);
  const row = document.getElementById(id);
  if (!row) return;
  row.setAttribute("tabindex", "-1");
  row.focus();
  row.scrollIntoView({block: "center"});
}
