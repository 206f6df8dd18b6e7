// A pasted text as the doctor reads a log: bytes, a character each, in lines; see doctor/reading.py.
"use strict";

const CHUNK = 1 << 14, OVERLAP = 1 << 10;
const COLOURS = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)|[@-Z\\^_])/g;
const ESCAPED = /\\+(?:n|r|t|"|\/|\\|u00[0-9a-fA-F]{2}|x1b|033|e(?=\[))/g;
const MEANS = {n: "\n", r: "\n", t: "\t", '"': '"', "/": "/", "\\": "\\"};
const WRAP_FROM = 56, WRAP_TO = 78;
const POWERSHELL = "+ CategoryInfo ", LINES_BEFORE = 20, LONGEST_JOINED = 1 << 12, WIDTH_FROM = 2000;
const EVIDENCE_LIMIT = 300;
const DECODER = new TextDecoder();

// UTF-8, each byte as the character of its number.
function bytesOf(text) {
  const bytes = new TextEncoder().encode(text), parts = [];
  for (let i = 0; i < bytes.length; i += CHUNK) parts.push(String.fromCharCode(...bytes.subarray(i, i + CHUNK)));
  return parts.join("");
}

function textOf(bytes) {
  return DECODER.decode(Uint8Array.from(bytes, byte => byte.charCodeAt(0)));
}

function printable(text, instead) {
  return text.replace(/[\p{C}\p{Z}]/gu, found => found === " " ? found : instead);
}

// One line as evidence, of at most so many characters; `isCut`: whether it is longer in any case.
function asEvidence(bytes, isCut) {
  const text = printable(textOf(bytes), " ").split(" ").filter(Boolean).join(" ");
  const letters = text.length > EVIDENCE_LIMIT - 3 ? [...text] : [];
  const isLong = isCut ?? letters.length > EVIDENCE_LIMIT;
  return isLong ? `${(letters.length ? letters.slice(0, EVIDENCE_LIMIT - 3).join("") : text)}...` : text;
}

// Join the lines that PowerShell wrapped; empty ones follow, so that each keeps its number.
function unwrapPowerShell(bytes) {
  if (!bytes.includes(POWERSHELL)) return bytes;
  const lines = bytes.split("\n").map(line => line.replace(/\r+$/, "")), lengths = lines.map(line => [...textOf(line)].length);
  const first = lines.findIndex(line => line.includes(POWERSHELL)), measured = [first, first + WIDTH_FROM];
  const width = consoleWidth(lines.slice(...measured), lengths.slice(...measured));
  for (let i = lines.length - 1; i > Math.max(first - LINES_BEFORE, 0); i--) {
    const before = lines[i - 1], isWrapped = trimmedEnd(before) && (before.endsWith(" ") || lengths[i - 1] === width);
    const isPart = lines[i].length < LONGEST_JOINED && trimmedEnd(lines[i]);
    if (isWrapped && isPart && lengths[i - 1] <= width) lines.splice(i - 1, 2, before + lines[i], "");
  }
  return lines.join("\n");
}

// The longest line that ends in a space, unless the next word would have fitted on most lines up to
// that length; or 0.
function consoleWidth(lines, lengths) {
  const ends = [];
  for (let i = 0; i < lines.length - 1; i++) {
    if (!lines[i].endsWith(" ") || !trimmedEnd(lines[i]) || !trimmedEnd(lines[i + 1])) continue;
    ends.push([lengths[i], lengths[i] + lines[i + 1].match(/[^ \t\n\r\v\f]+/)[0].length]);
  }
  for (const width of [...new Set(ends.map(([length]) => length))].sort((a, b) => b - a)) {
    const within = ends.filter(([length]) => length <= width);
    if (2 * within.filter(([, more]) => more > width).length >= within.length) return width;
  }
  return 0;
}

// Pieces that end where a line ends, as far as lines do end.
function* chunksOf(whole) {
  const bytes = unwrapPowerShell(whole);
  let pending = "";
  for (let i = 0; i < bytes.length; i += CHUNK) {
    pending += bytes.slice(i, i + CHUNK);
    const cut = Math.max(pending.lastIndexOf("\n"), pending.lastIndexOf("\r")) + 1;
    if (cut) {
      yield cleaned(pending.slice(0, cut));
      pending = pending.slice(cut);
    } else if (pending.length >= CHUNK) {
      yield cleaned(pending);
      pending = pending.slice(-OVERLAP);
    }
  }
  if (pending) yield cleaned(pending);
}

// Without colours and backspaces; every end of line is a newline.
function cleaned(piece) {
  return piece.replace(COLOURS, "").replaceAll("\b", "").replace(/\r\n?/g, "\n");
}

// The lines that hold escapes of a JSON log, with these undone; null where no line does.
function unescaped(piece) {
  if (!piece.includes("\\")) return null;
  const escaped = piece.split("\n").filter(line => line.includes("\\")).join("\n");
  const plain = escaped.replace(ESCAPED, found => {
    const name = found.replace(/^\\+/, "") || "\\";
    return name[0] === "u" ? String.fromCharCode(parseInt(name.slice(1), 16)) : MEANS[name] ?? "\x1b";
  });
  return plain === escaped ? null : cleaned(plain);
}

// The number, from 0, of the line whose escapes, undone, hold this one.
function escapedLineOf(plain, lines) {
  return Math.max(0, lines.findIndex(line => (unescaped(line) ?? "").split("\n").includes(plain)));
}

// Lines that a terminal or a mail may have broken, put together again, both ways; each with the
// number of its first line.
function* unwrapped(lines) {
  const width = Math.min(lines.reduce((most, line) => Math.max(most, line.length), 0), WRAP_TO);
  for (let i = 0; i < lines.length - 1; i++) {
    const together = [trimmedEnd(lines[i])];
    for (const following of lines.slice(i + 1, i + 4)) {
      const end = together.at(-1), word = following.match(/[^ \t\n\r\v\f]+/)?.[0] ?? "";
      if (end.length < WRAP_FROM || !word || end.length + 1 + word.length <= width) break;
      together.push(following.replace(/^[ \t|\r]+/, "").replace(/(?<![ \t|\r])[ \t|\r]+$/, ""));
    }
    if (together.length > 1) {
      yield [i + 1, together.join(" ")];
      yield [i + 1, together.join("")];
    }
  }
}

function trimmedEnd(line) {
  let end = line.length;
  while (end && " \t\n\r\v\f".includes(line[end - 1])) end--;
  return line.slice(0, end);
}
