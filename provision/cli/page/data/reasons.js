// Which lines of a text say why it ended; see doctor/reasons.py.
"use strict";

const NEAR = 40, LOOKED_AT = 60;  // lines
const READ = 2 * EVIDENCE_LIMIT;

const WHOLE = /(?:[.!'")\]>}]|\.\.\.)$/;  // a message that ends like this is

// With their numbers: of a text that ends badly, where it says why.
function* reasonsOf(bytes, outline) {
  if (outline.done) return [];
  const stated = statedEnds(outline), last = stated.at(-1);
  if (last) {
    if (!WHOLE.test(last.says) || last.says.includes("(Request ID")) last.says = continued(last, bytes, outline);
    return stated;
  }
  const end = outline.lastEnd()[0]?.[0] ?? outline.lines + 1, first = Math.max(end - LOOKED_AT, 1);
  const {wrapper, frame, says} = outline.patterns, said = new Map();
  let number = 0;
  for (const line of eachLine(bytes)) {
    if (++number >= end) break;
    if (number < first) continue;
    const shown = asReason(line), text = bytesOf(shown);
    const isReason = says.test(text) && !frame.test(text) && !wrapper.test(text) && !outline.isWarning(text);
    if (isReason) said.set(shown, number);
    yield;
  }
  const found = [...said].map(([says, number]) => ({number, says}));
  return found.length < 4 ? found : [found[0], ...found.slice(-2)];
}

// The first of the last lines that something ended by, but wrappers, and the last of them, or the
// last exception.
function statedEnds(outline) {
  const {wrapper, raised} = outline.patterns;
  const ends = outline.ends.filter(([, line]) => !wrapper.test(bytesOf(line)) && !outline.isWarning(line));
  let from = ends.length - 1;
  while (from > 0 && ends[from][0] - ends[from - 1][0] <= NEAR) from--;
  const [last] = outline.lastEnd(), byText = new Map();
  if (from < 0 || last && last[0] - ends.at(-1)[0] > 10 * LOOKED_AT) return [];
  for (const [number, line] of ends.slice(from)) if (!byText.has(line)) byText.set(line, number);
  const lines = [...byText], exceptions = lines.filter(([line]) => raised.test(bytesOf(line)));
  const chosen = [lines[0], (exceptions.length ? exceptions : lines).at(-1)];
  return [...new Map(chosen.map(([says, number]) => [number, {number, says}])).values()];
}

// A message that breaks off, with the lines that it goes on in.
function continued({number, says}, bytes, outline) {
  const {wrapper, frame} = outline.patterns;
  let at = 0;
  for (const line of eachLine(bytes)) {
    if (++at <= number) continue;
    if (at >= number + 5) break;
    const more = asReason(line), text = bytesOf(more);
    if (more && frame.test(text)) break;
    if (!more || wrapper.test(text)) continue;
    says = `${says} ${more}`;
    if (WHOLE.test(more)) break;
  }
  const letters = [...says];
  return letters.length <= EVIDENCE_LIMIT ? says : `${letters.slice(0, EVIDENCE_LIMIT - 3).join("")}...`;
}

// The begin of each line: one may be as long as the text.
function* eachLine(bytes) {
  let begun = "";
  for (const chunk of chunksOf(bytes)) {
    const [first, ...rest] = chunk.split("\n");
    begun = (begun + first).slice(0, READ);
    if (!rest.length) continue;
    yield begun;
    yield* rest.slice(0, -1);
    begun = rest.at(-1).slice(0, READ);
  }
  yield begun;
}

function asReason(bytes) {
  const words = printable(textOf(bytes.slice(0, READ)), " ").split(" ").filter(Boolean).join(" ");
  const text = words.replace(/^[│|╰─> ]+|[│|╰─> ]+$/g, ""), letters = [...text];
  return letters.length <= EVIDENCE_LIMIT ? text : `${letters.slice(0, EVIDENCE_LIMIT - 3).join("")}...`;
}
