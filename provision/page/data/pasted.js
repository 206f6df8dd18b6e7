// What is pasted: the output of nvidia-smi is read into the question, an error is looked up.
"use strict";

const SHOWN = 20000;  // characters: a longer text is read, and not shown, which takes a browser minutes

let pasted = {gpus: [], driver: null};  // a driver, and the GPUs that it has listed itself

function onPaste(event) {
  const text = event.clipboardData?.getData("text/plain") ?? "";
  if (text.length <= SHOWN) return;
  event.preventDefault();
  at("paste").value = text.slice(0, SHOWN);
  readPasted(text);
}

function readPasted(text) {
  const {read, short} = readQuestion(text.slice(-LONGEST_TEXT));
  const found = showSymptom(text.trim() && text, Boolean(read || short));
  const parts = [read, short, found ? word("pasteFound") : text.trim() && !read && !short && word("notKnown")];
  at("paste-result").textContent = parts.filter(Boolean).join(" ");
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
