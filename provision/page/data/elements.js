// Small helpers: elements, words in the chosen language, copying.
"use strict";

let language = "en";

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter(child => child != null && child !== ""));
  return element;
}

// A text of words.json; {name} is replaced by the value of that name.
function word(path, values = {}) {
  const found = path.split("/").reduce((words, key) => words[key], DATA.words[language]);
  if (typeof found !== "string") return found;
  return found.replace(/\{(\w+)\}/g, (hole, name) => name in values ? values[name] : hole);
}

// What the tool itself says has no translation.
function said(tag, text, ...more) {
  return make(tag, {lang: "en"}, text, ...more);
}

// A source is a text with addresses in it.
function sourceOf(text) {
  const parts = text.split(/(https?:\/\/[^\s;,)]+)/);
  return parts.map((part, i) =>
    i % 2 ? make("a", {href: part, rel: "noreferrer"}, part.replace(/^https?:\/\//, "")) : part);
}

let copied = 0;

async function copyText(text, button) {
  let done = word("copied");
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    done = byHand(text) ? done : word("copyFailed");
  }
  const status = document.getElementById("copy-status");
  status.textContent = done;
  button.textContent = done;
  clearTimeout(copied);
  copied = setTimeout(() => { button.textContent = button.dataset.label; status.textContent = ""; }, 2000);
}

// A page from a file may not use the clipboard's interface everywhere.
function byHand(text) {
  const area = make("textarea", {"aria-hidden": "true", tabindex: "-1", class: "offscreen"});
  const focused = document.activeElement;
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return done;
}

function copyButton(text, label, title) {
  return make("button", {type: "button", class: "copy", "data-label": label, "aria-label": title,
    onclick: event => copyText(text(), event.currentTarget)}, label);
}

// A command with a button that copies it.
function command(label, text, id) {
  const title = `${word("copy")}: ${label}`;
  return make("div", {class: "command"},
    make("p", {id}, label), copyButton(() => text, word("copy"), title),
    make("pre", {tabindex: "0", "aria-labelledby": id}, make("code", {}, text)));
}

function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}
