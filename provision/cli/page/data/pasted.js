// What is pasted: the output of nvidia-smi is read into the question, an error gets the doctor's answer.
"use strict";

const SLICE_MS = 25, LIMIT_MS = 20000;
const SHOWN = 20000;  // characters: a longer text is read, and not shown, which takes a browser minutes
const FIXES_SHOWN = 2;

let pasted = {gpus: [], driver: null};  // a driver, and the GPUs that it has listed itself
let turn = 0;  // of several texts, one typed into another, the last one counts

function onPaste(event) {
  const text = event.clipboardData?.getData("text/plain") ?? "";
  if (text.length <= SHOWN) return;
  event.preventDefault();
  at("paste").value = text.slice(0, SHOWN);
  readPasted(text);
}

async function readPasted(text) {
  const mine = ++turn;
  const {read, short} = readQuestion(text.slice(0, LONGEST_TEXT)), isSmi = Boolean(read || short);
  const say = (...parts) => { at("paste-result").textContent = parts.filter(Boolean).join(" "); };
  say(read, short, text.trim() && !isSmi && word("pasteReading"));
  showDiagnosis(null);
  if (!text.trim()) return;
  const found = await inSlices(diagnosisOf(text), () => mine === turn);
  if (!found) return;
  if (found.cause) say(read, word(isSure(found.cause) ? "pasteCause" : "pasteLikely", {title: found.cause.title}));
  else say(read, short, found.state === "long" ? word("pasteLong") : !isSmi && word("pasteNothing"));
  showDiagnosis(found, !isSmi);
}

// Takes from a text what it says of the machine; in sentences, what was read, and what was not.
function readQuestion(text) {
  const found = readSmi(text);
  pasted = found;
  const parts = [...found.gpus, found.driver && `${word("driver")} ${found.driver}`].filter(Boolean);
  if (found.driver) at("driver").value = found.driver;
  if (parts.length) {
    change({gpus: found.gpus.length ? found.gpus : question.gpus, driver: found.driver || question.driver});
  }
  return {
    read: parts.length && word("pasteRead", {what: parts.join(", ")}),
    short: found.unknown.length && word("pasteShort", {names: found.unknown.join(", ")}),
  };
}

// The value of a generator, which is run so that the page can be used meanwhile; null: no longer wanted.
async function inSlices(steps, isWanted) {
  const begun = performance.now();
  for (;;) {
    const until = performance.now() + SLICE_MS;
    do {
      const {done, value} = steps.next();
      if (done) return value;
    } while (performance.now() < until);
    if (until - begun > LIMIT_MS) return {state: "long", cause: null};
    await new Promise(goOn => setTimeout(goOn));
    if (!isWanted()) return null;
  }
}

// `isError`: whether the text was nothing else, so that an unknown one needs an answer, too.
function showDiagnosis(found, isError = false) {
  const section = at("diagnosis");
  section.hidden = !found || !found.cause && !isError;
  section.replaceChildren(...section.hidden ? [] : found.cause ? causeShown(found) : notKnown(found.state));
}

function notKnown(state) {
  return [diagnosisBanner("", make("h2", {id: "diagnosis-title"}, word("notKnown")), word(state === "long" ? "pasteLong" : "notKnownWhy")), doctorCommand("doctorMore")];
}

function diagnosisBanner(kind, title, ...children) {
  return make("div", {class: `banner ${kind}`},
    make("span", {class: "mark", "aria-hidden": "true"}, kind ? "!" : "?"),
    make("div", {}, make("p", {class: "asked"}, word("pastedText")), title,
      ...children.filter(Boolean).map(one => one.tagName ? one : make("p", {}, one))));
}

const isSure = cause => cause.confidence === "high";

function causeShown({state, cause}) {
  const isBlocking = cause.severity === "blocks";
  const first = cause.fixes.slice(0, FIXES_SHOWN), more = cause.fixes.slice(FIXES_SHOWN);
  return [
    diagnosisBanner(isBlocking ? "none" : "forward", titled(cause.title), !isSure(cause) && word("likely"), cause.cause && said("p", cause.cause)),
    state === "named" ? make("p", {}, word("named")) : "",
    first.length ? make("section", {}, make("h3", {}, word("fix")), first.map(fixShown)) : "",
    more.length ? make("details", {}, make("summary", {}, word("fixesMore", {count: more.length})),
      more.map((fix, i) => fixShown(fix, i + FIXES_SHOWN))) : "",
    cause.confirm ? command(word("confirm"), cause.confirm, "diagnosis-confirm") : "",
    listed("seen", cause.evidence.map(({says, where}) => make("li", {}, `${word("line", {number: where})}: `, said("code", says)))),
    cause.sources.length ? listed("links", cause.sources.map(one => make("li", {}, ...sourceOf(one)))) : "",
    state === "named" ? command(word("explain"), `provision doctor explain ${cause.code}`, "diagnosis-explain") : "",
    doctorCommand(),
  ].filter(Boolean);
}

function fixShown({on, note, run}, i) {
  const whom = on.length ? `(${on.join(", ")}) ` : "", text = `${whom}${note}`;
  if (run) return command(text || word("type"), run, `diagnosis-fix-${i}`);
  return said("p", text);
}

function doctorCommand(label = "doctor") {
  return make("section", {}, command(word(label), "provision doctor FILE", "diagnosis-doctor"));
}

function titled(text) {
  const element = said("h2", text);
  element.id = "diagnosis-title";
  return element;
}
