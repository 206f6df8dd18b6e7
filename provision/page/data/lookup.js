// Answers are looked up, never computed: the resolver of `provision` has made them all.
"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const RANK = ["direct", "minor-version", "forward", "unverified", "none"];

// The value of a node: see nodes.py. `fill` puts the question's GPU and driver into texts.
function valueOf(node, fill = text => text) {
  const found = DATA.nodes[node];
  if (typeof found === "string") return fill(found);
  if (!Array.isArray(found)) return found;
  const values = found.slice(1).map(child => valueOf(child, fill));
  const keys = DATA.shapes[found[0]];
  return found[0] ? Object.fromEntries(keys.map((key, i) => [key, values[i]])) : values;
}

// The node at a path of positions below another node.
function below(node, ...path) {
  return path.reduce((at, position) => DATA.nodes[at][position + 1], node);
}

function parseDriver(text) {
  return /^\d{3}(\.\d{1,4}){1,3}$/.test(text) ? text.split(".").map(Number) : null;
}

function isAtLeast(version, floor) {
  for (let i = 0; i < Math.max(version.length, floor.length); i++) {
    const difference = (version[i] || 0) - (floor[i] || 0);
    if (difference) return difference > 0;
  }
  return true;
}

// The position of the range that a driver is in; -1: the page has no answers for it.
function rangeOf(driver) {
  if (!driver) return 0;
  const version = parseDriver(driver);
  if (!version) return -1;
  return DATA.ranges.findLastIndex(
    ([branch, first]) => branch === version[0] && (!first || isAtLeast(version, first.split(".").map(Number))));
}

function gpuNamed(name) {
  return DATA.gpus.find(gpu => gpu.name === name);
}

// The CPU architecture of a question: some GPUs are part of a machine that has no other.
function archOf(question) {
  return question.gpus.map(name => gpuNamed(name).arch).find(Boolean) || question.arch;
}

function choicesOf(question) {
  const arch = archOf(question);
  return DATA.choices.findIndex(one => one.framework === question.framework && one.arch === arch);
}

function blockOf(question, name) {
  return below(gpuNamed(name).answers, rangeOf(question.driver), choicesOf(question));
}

// Puts what the question says into the holes of a text.
function filler(question, name) {
  const values = {gpu: name, driver: question.driver, native: DATA.ranges[rangeOf(question.driver)][2],
    since: gpuNamed(name).since};
  return text => text.replace(/\{(gpu|driver|native|since)\}/g, (hole, key) => values[key]);
}

// What `provision plan --json` says for one GPU; null: only the command can tell.
function planFor(question) {
  const choices = DATA.choices[choicesOf(question)];
  const python = choices.pythons.indexOf(question.python), cuda = choices.cudas.indexOf(question.cuda);
  if (question.gpus.length !== 1 || rangeOf(question.driver) < 0 || python < 0 || cuda < 0) return null;
  const [name] = question.gpus;
  const plan = valueOf(below(blockOf(question, name), 0, python, cuda), filler(question, name));
  const {build, image, machine, ...rest} = plan;
  return {...build, ...image, ...machine, ...rest};
}

// Each build of the framework on all these GPUs: the verdict, and for each GPU why not. One machine
// has one driver, so a build runs if it runs on each of its GPUs.
function matrixFor(question) {
  const {builds} = DATA.choices[choicesOf(question)];
  const columns = question.gpus.map(name =>
    valueOf(below(blockOf(question, name), 1), filler(question, name)));
  return builds.map((build, i) => {
    const cells = columns.map(column => column[i]);
    const worst = Math.max(...cells.map(([verdict]) => RANK.indexOf(verdict)));
    const reasons = cells.filter(([, , message]) => message).map(([, code, message]) => ({code, message}));
    return {...build, verdict: RANK[worst], reasons};
  });
}
