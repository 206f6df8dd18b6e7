// What a pasted error means: the first phrase of the table that one of its lines holds. The page does
// not judge a log as a whole, as `provision doctor FILE` does, whose command it shows in any case.
"use strict";

const LONGEST_TEXT = 1 << 17;  // characters: of a longer text the end is read, which says why it ended
const LONGEST_LINE_SHOWN = 300, APART = 600;  // characters between the first and the last part of a phrase
const MOST_OTHER_LETTERS = 12;  // of a line that a phrase is all of: "is", "PyTorch"
const COLOURS = /\x1b\[[0-?]*[ -\/]*[@-~]/g;

let symptoms = null;

// {meaning, line, number} or null; `number` counts the lines that were read from 1.
function symptomIn(text) {
  symptoms ??= JSON.parse(at("symptoms").textContent);
  const plain = text.slice(-LONGEST_TEXT).replace(COLOURS, "").replace(/\r\n?/g, "\n").replace(/[ \t]+/g, " ");
  const lower = plain.replace(/[A-Z]+/g, letters => letters.toLowerCase());  // as long as before
  const absent = new Set();  // many phrases begin with the same words
  for (const [meaning, ...parts] of symptoms.phrases) {
    const first = parts[0] || parts[1];
    if (absent.has(first) || !lower.includes(first)) {
      absent.add(first);
      continue;
    }
    const place = placeOf(parts, lower);
    if (place < 0 || symptoms.unless[meaning]?.some(others => placeOf(others, lower) >= 0)) continue;
    const [code, sentence, advice, link] = symptoms.meanings[meaning];
    return {meaning: {code, sentence, advice, link}, ...lineAt(plain, place)};
  }
  return null;
}

// Where the parts of a phrase follow one another on a line; -1: nowhere. After "" they are all that it says.
function placeOf(parts, text) {
  const isWhole = parts[0] === "", [first, ...others] = isWhole ? parts.slice(1) : parts;
  for (let place = text.indexOf(first); place >= 0; place = text.indexOf(first, place + 1)) {
    const line = others.length || isWhole ? text.slice(place, place + APART).split("\n", 1)[0] : "";
    let end = first.length;
    const isThere = others.every(part => {
      const found = line.indexOf(part, end);
      end = found + part.length;
      return found >= 0;
    });
    if (!isThere) continue;
    const before = isWhole ? text.slice(Math.max(0, place - APART), place).split("\n").at(-1) : "";
    if (!isWhole || lettersIn(before + line) - lettersIn(parts.join("")) <= MOST_OTHER_LETTERS) return place;
  }
  return -1;
}

function lettersIn(text) {
  return text.replace(/[^a-z0-9]+/g, "").length;
}

function lineAt(text, place) {
  const begin = text.lastIndexOf("\n", place - 1) + 1, before = Math.max(begin, place - 60);
  const line = text.slice(before, before + LONGEST_LINE_SHOWN).split("\n", 1)[0].trim();
  return {line, number: text.slice(0, begin).split("\n").length};
}

// `text` "": nothing is shown. `isQuestion`: it has said which GPU or driver is asked about.
function showSymptom(text, isQuestion) {
  const section = at("symptom"), found = text && symptomIn(text);
  section.hidden = !text || isQuestion && !found;
  section.replaceChildren(...section.hidden ? [] : found ? symptomShown(found, text.length > LONGEST_TEXT) : notKnown());
  return found;
}

function symptomShown({meaning: {code, sentence, advice, link}, line, number}, isCut) {
  return [
    symptomBanner("forward", "!", said("h2", sentence), said("code", line)),
    make("p", {class: "help"}, isCut ? word("symptomCut") : word("symptomLine", {number})),
    command(word("doctor"), "provision doctor FILE", "symptom-doctor"),
    advice ? make("section", {}, make("h3", {}, word("advice")), said("p", advice)) : "",
    link ? make("p", {}, `${word("links")}: `, ...sourceOf(link)) : "",
    command(word("explain"), `provision doctor explain ${code}`, "symptom-explain"),
  ].filter(Boolean);
}

function notKnown() {
  return [symptomBanner("", "?", make("h2", {}, word("notKnown")), word("notKnownWhy")),
    command(word("doctor"), "provision doctor FILE", "symptom-doctor")];
}

function symptomBanner(kind, mark, title, text) {
  title.id = "symptom-title";
  return make("div", {class: `banner ${kind}`}, make("span", {class: "mark", "aria-hidden": "true"}, mark),
    make("div", {}, make("p", {class: "asked"}, word("pastedText")), title, make("p", {}, text)));
}
