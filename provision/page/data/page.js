// The question: the form, the address of the page, and the language.
"use strict";

const at = id => document.getElementById(id);
const EMPTY = {gpus: [], driver: null, framework: "pytorch", cuda: null, python: null, arch: "x86_64"};
const OWN_LANGUAGE = navigator.language.startsWith("zh") ? "zh" : "en";
const LISTED = 200;  // all cards of the catalog; the list scrolls

let question = {...EMPTY};
let options = [], active = -1;  // of the list of cards

// ---- the address ----

function addressOf(asked) {
  const words = new URLSearchParams();
  asked.gpus.forEach(name => words.append("gpu", gpuNamed(name).id));
  for (const key of ["driver", "framework", "cuda", "python", "arch"]) {
    if (asked[key] && asked[key] !== EMPTY[key]) words.set(key, asked[key]);
  }
  if (language !== OWN_LANGUAGE) words.set("lang", language);
  return `#${words}`;
}

function questionOf(hash) {
  const words = new URLSearchParams(hash.slice(1));
  const known = words.getAll("gpu").map(id => DATA.gpus.find(gpu => gpu.id === id)?.name).filter(Boolean);
  const framework = DATA.choices.some(one => one.framework === words.get("framework")) ? words.get("framework") : "pytorch";
  const arch = DATA.choices.some(one => one.arch === words.get("arch")) ? words.get("arch") : "x86_64";
  const asked = {gpus: [...new Set(known)], driver: words.get("driver"), framework, cuda: words.get("cuda"),
    python: words.get("python"), arch};
  return {...asked, unknown: unknownIn(words, asked)};
}

// What an address asks for that this page does not have: it may be of a page from another catalog.
function unknownIn(words, asked) {
  const {cudas, pythons} = DATA.choices[choicesOf(asked)];
  const found = words.getAll("gpu").filter(id => !DATA.gpus.some(gpu => gpu.id === id));
  for (const key of ["framework", "arch"]) if (words.get(key) && words.get(key) !== asked[key]) found.push(words.get(key));
  if (!cudas.includes(asked.cuda)) found.push(`CUDA ${asked.cuda}`);
  if (!pythons.includes(asked.python)) found.push(`Python ${asked.python}`);
  return found;
}

function readAddress() {
  const id = location.hash.slice(1);
  if (id && !id.includes("=")) {  // the address of a fact leaves the question as it is
    show();
    return goToFact(id);
  }
  const asked = new URLSearchParams(location.hash.slice(1)).get("lang");
  if (asked && Object.hasOwn(DATA.words, asked)) setLanguage(asked);
  question = questionOf(location.hash);
  at("driver").value = question.driver || "";
  show();
}

function change(changes) {
  question = {...question, ...changes, unknown: []};
  history.replaceState(null, "", addressOf(question));
  show();
}

// ---- the form ----

function show() {
  showPicked();
  showChoices();
  const isKnown = !question.unknown?.length;
  const plan = isKnown && question.gpus.length === 1 && rangeOf(question.driver) >= 0 ? planFor(question) : null;
  const isBad = rangeOf(question.driver) < 0;
  at("driver").setAttribute("aria-invalid", String(isBad));
  const isListed = question.driver === pasted.driver && question.gpus.every(name => pasted.gpus.includes(name));
  showAnswer(question, isListed);
  showMatrix(question, plan && !plan.error ? plan : null);
  document.title = question.gpus.length ? `${askedFor(question)} · ${word("title")}` : word("title");
}

function showPicked() {
  at("picked").replaceChildren(...question.gpus.map(name => make("li", {},
    make("button", {type: "button", "aria-label": word("remove", {name}), onclick: () => {
      change({gpus: question.gpus.filter(one => one !== name)});
      at("gpu").focus();
    }}, name, make("span", {"aria-hidden": "true"}, "\u2715")))));
}

// What can be chosen depends on the framework and the CPU; a choice that is gone is taken back.
function showChoices() {
  const {cudas, pythons} = DATA.choices[choicesOf(question)];
  const arch = archOf(question);
  if (!cudas.includes(question.cuda)) question.cuda = null;
  if (!pythons.includes(question.python)) question.python = null;
  fillSelect("cuda", cudas, question.cuda);
  fillSelect("python", pythons, question.python);
  fillSelect("arch", [...new Set(DATA.choices.map(one => one.arch))], arch);
  at("arch").disabled = question.gpus.some(name => gpuNamed(name).arch);
  for (const radio of at("frameworks").querySelectorAll("input")) radio.checked = radio.value === question.framework;
}

function fillSelect(id, values, chosen) {
  at(id).replaceChildren(...values.map(value =>
    make("option", {value: value ?? "", selected: value === chosen}, value ?? word("any"))));
}

// ---- the list of cards ----

function search(text) {
  const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
  return DATA.gpus.filter(gpu => !question.gpus.includes(gpu.name) && wanted.every(part =>
    [gpu.name, gpu.capability, ...gpu.aliases].some(name => name.toLowerCase().includes(part)))).slice(0, LISTED);
}

function openList() {
  options = search(at("gpu").value);
  active = at("gpu").value && options.length ? 0 : -1;
  at("found").replaceChildren(...options.map((gpu, i) => make("li", {role: "option", id: `option-${i}`,
    onmousedown: event => { event.preventDefault(); pick(i); }}, gpu.name, make("small", {}, gpu.capability))));
  at("found").hidden = !options.length;
  at("gpu").setAttribute("aria-expanded", String(!at("found").hidden));
  at("gpu-help").textContent = !options.length ? word("gpuNone") :
    at("gpu").value ? word("gpuFound", {count: options.length}) : word("gpuHelp");
  mark();
}

function mark() {
  [...at("found").children].forEach((item, i) => item.setAttribute("aria-selected", String(i === active)));
  if (active >= 0) {
    at("gpu").setAttribute("aria-activedescendant", `option-${active}`);
    at("found").children[active].scrollIntoView({block: "nearest"});
  } else at("gpu").removeAttribute("aria-activedescendant");
}

function closeList() {
  at("found").hidden = true;
  at("gpu").setAttribute("aria-expanded", "false");
  at("gpu").removeAttribute("aria-activedescendant");
  at("gpu-help").textContent = word("gpuHelp");
}

function pick(i) {
  const {name} = options[i];
  at("gpu").value = "";
  closeList();
  change({gpus: [...question.gpus, name]});
}

function onKey(event) {
  const isOpen = !at("found").hidden;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    if (!isOpen) return openList();
    const step = event.key === "ArrowDown" ? 1 : -1;
    active = active < 0 && step < 0 ? options.length - 1 : (active + step + options.length) % options.length;
    mark();
  } else if (event.key === "Enter") {
    event.preventDefault();
    if (isOpen && active >= 0) pick(active);
  } else if (event.key === "Escape") closeList();
  else if (event.key === "Backspace" && !at("gpu").value && question.gpus.length) {
    change({gpus: question.gpus.slice(0, -1)});
  }
}

// ---- the language ----

function setLanguage(chosen) {
  language = chosen;
  document.documentElement.lang = chosen === "zh" ? "zh-CN" : chosen;
  for (const element of document.querySelectorAll("[data-word]")) element.textContent = word(element.dataset.word);
  for (const button of at("languages").children) button.setAttribute("aria-pressed", String(button.value === chosen));
  const dates = Object.entries(DATA.dates).map(([name, date]) => `${name} ${date}`).join(", ");
  at("about").textContent = word("about", {tool: DATA.tool, dates});
  showFacts();
}

function begin() {
  at("frameworks").replaceChildren(...[...new Set(DATA.choices.map(one => one.framework))].map(name =>
    make("label", {}, make("input", {type: "radio", name: "framework", value: name,
      onchange: () => change({framework: name})}), make("span", {}, titleOf(name)))));
  at("drivers").replaceChildren(...DATA.drivers.map(([version, text]) => make("option", {value: version}, text)));
  at("gpu").addEventListener("input", openList);
  at("gpu").addEventListener("click", openList);
  at("gpu").addEventListener("keydown", onKey);
  at("gpu").addEventListener("blur", closeList);
  at("driver").addEventListener("change", event => change({driver: event.target.value.trim() || null}));
  for (const id of ["cuda", "python", "arch"]) {
    at(id).addEventListener("change", event => change({[id]: event.target.value || null}));
  }
  at("paste").addEventListener("input", event => readPasted(event.target.value));
  at("paste").addEventListener("paste", onPaste);
  at("ask").addEventListener("submit", event => event.preventDefault());
  for (const button of at("languages").children) {
    button.addEventListener("click", () => { setLanguage(button.value); change({}); });
  }
  addEventListener("hashchange", readAddress);
  document.body.append(make("p", {id: "copy-status", role: "status", class: "offscreen"}));
  at("skip").addEventListener("click", event => { event.preventDefault(); at("answer").focus(); });
  setLanguage(OWN_LANGUAGE);
  readAddress();
}

begin();
