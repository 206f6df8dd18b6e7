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
  section.replaceChildren(make("h2", {id: "facts-title"}, word("facts")), make("p", {class: "help"}, word("factsIntro")),
    ...DATA.changes ? [changesShown(DATA.changes)] : [], ...parts);
}

// What changed since an earlier page, each with a link to its row.
function changesShown({tool, tables}) {
  const dates = Object.entries(tables).map(([name, {date}]) => `${word(name)} ${date}`).join(", ");
  const parts = Object.entries(tables).filter(([, {added, removed, changed}]) => added.length + removed.length + changed.length);
  return make("details", {id: "changes", open: true}, make("summary", {}, word("changes")),
    make("p", {class: "help"}, word(parts.length ? "changesSince" : "changesNone", {tool, dates})),
    parts.map(([name, table]) => make("section", {}, make("h3", {}, word(name)), make("ul", {}, changesOf(name, table)))));
}

function changesOf(name, {added, removed, changed}) {
  const link = ([id, text]) => make("a", {href: `#${anchor(TABLES[name], id)}`}, text);
  const cells = rows => rows.map(([column, before, after]) =>
    word("changedCell", {column: word(`columns/${column}`), before: before || word("nothing"), after: after || word("nothing")})).join("; ");
  return [
    ...added.map(row => make("li", {}, `${word("added")}: `, link(row))),
    ...changed.map(row => make("li", {}, link(row), `: ${cells(row[2])}`)),
    ...removed.map(text => make("li", {}, `${word("removed")}: ${text}`)),
  ];
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
