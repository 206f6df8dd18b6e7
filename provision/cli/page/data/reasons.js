// Which lines of a text say why it ended; see doctor/reasons.py.
"use strict";

const LOOKED_AT = 60, LONGEST_END = 300, BEHIND = 6;  // lines
const READ = 2 * EVIDENCE_LIMIT;
const UV_CALL = "Call to `";
const HEADING = /(?:[:,]|\bvalidation errors? for \S+)$/;  // a message that goes on behind a blank line
const WORDLESS = /^[\w.]+(?:Error|Exception)$/;  // an exception without words of its own

const WHOLE = /(?:[.!'")\]>}]|directory|device|denied|refused|timed out|not found)$/;  // a message that ends like this is

// With their numbers: of a text that ends badly, where it says why.
function* reasonsOf(bytes, outline) {
  if (outline.done) return [];
  let found = statedEnds(outline);
  if (!found.length) {
    const lines = yield* linesAround(bytes, outline);
    found = raisedIn(lines, outline);
    if (!found.length) return saidIn(lines, outline);
  }
  for (const one of found) one.says = withItsCode(one, bytes, outline);
  const last = found.at(-1);
  if (!WHOLE.test(last.says) || last.says.includes("(Request ID")) last.says = continued(last, bytes, outline);
  return found;
}

// The first of the last lines that something ended by, but wrappers, and the last of them, or the
// last exception.
function statedEnds(outline) {
  const {raised, telling, frame} = outline.patterns;
  const ends = outline.ends.filter(([, line]) => {
    const words = bare(bytesOf(line), outline);
    return !isWrapper(words, outline) && !frame.test(words) && !outline.isWarning(line);
  });
  let from = ends.length - 1;
  while (from > 0 && outline.isJoined(ends[from - 1][0], ends[from][0])) from--;
  const [last] = outline.lastEnd(), byText = new Map();
  if (from < 0 || last && last[0] - ends.at(-1)[0] > 10 * LOOKED_AT) return [];
  for (const [number, line] of ends.slice(from)) if (!byText.has(line)) byText.set(line, number);
  const lines = [...byText].map(([says, number]) => ({number, says}));
  const matching = pattern => lines.filter(({says}) => pattern.test(bytesOf(says)));
  return eachOnce([lines[0], matching(raised).at(-1) ?? lines.at(-1), ...matching(telling).slice(-1)]);
}

function isWrapper(text, {patterns}) { return patterns.wrapper.test(text) && !patterns.telling.test(text); }

// A line without what a service, a rank or a logger puts before it.
function bare(text, {patterns}) { return text.slice(patterns.prefix.exec(text)?.end ?? 0); }

// Whether a line reads like the reason of a failure, and not like a warning or a reading.
function readsLikeAReason(line, outline) {
  const words = bare(bytesOf(line.trim()), outline), {says, wrapper} = outline.patterns;
  return (says.test(words) || wrapper.test(words)) && !goesOn(words, outline) && !outline.isWarning(line);
}

// Whether a program says in its line that it goes on.
function goesOn(bare, outline) { return outline.patterns.mild.test(bare) || outline.isWarning(bare); }

// The lines before the last end, those of it, and the few behind it.
function* linesAround(bytes, outline) {
  const ended = outline.lastEnd();
  if (!ended.length) ended.push([outline.lines + 1, ""]);
  const [last, said] = ended.at(-1), behind = said.includes(UV_CALL) ? LONGEST_END : BEHIND;
  const first = Math.max(ended[0][0], last - LONGEST_END) - LOOKED_AT, lines = [];
  let number = 0;
  for (const line of eachLine(bytes)) {
    if (++number > Math.min(last + behind, outline.lines)) break;
    if (number < first) continue;
    const says = asReason(line), text = bytesOf(says);
    lines.push({number, says, text, bare: bare(text, outline)});
    yield;
  }
  return lines;
}

// The first exception and the last, but wrappers.
function raisedIn(lines, outline) {
  let raised = ownWords(lines, outline).filter(({bare}) => outline.patterns.raised.test(bare));
  if (raised.some(({says}) => !says.endsWith(":"))) raised = raised.filter(({says}) => !says.endsWith(":"));
  return eachOnce([...raised.slice(0, 1), ...raised.slice(-1)]);
}

// The first and the last two lines that read like a reason, of a kernel's those about a GPU; of a text
// that just stops, or else like a warning.
function saidIn(lines, outline) {
  const {says, gpuLine} = outline.patterns;
  let said = ownWords(lines, outline).filter(({bare}) => says.test(bare));
  if (said.some(({text}) => gpuLine.test(text))) said = said.filter(({text}) => gpuLine.test(text));
  if (!said.length && !outline.ends.length) said = ownWords(lines, outline, true).filter(({text}) => says.test(text));
  return said.length < 4 ? said : [said[0], ...said.slice(-2)];
}

// The lines that are no wrapper, no frame, and no warning, unless it is mild. Each once, the last.
function ownWords(lines, outline, mild = false) {
  const found = new Map(), {frame, raised} = outline.patterns;
  let isCode = false;  // after each place a traceback shows a line of the file
  for (const one of lines) {
    const {says, text, bare} = one;
    isCode &&= !raised.test(bare);
    const framed = isCode || frame.test(bare) || isWrapper(bare, outline);
    if (bare && !framed && (mild || !goesOn(bare, outline) && !outline.isWarning(text))) found.set(says, one);
    isCode = bare.startsWith('File "');
  }
  return [...found.values()].sort((a, b) => a.number - b.number);
}

function eachOnce(lines) {
  return [...new Map(lines.map(one => [one.number, one])).values()].sort((a, b) => a.number - b.number);
}

// An exception that has no words, with the line of code that the traceback shows above it.
function withItsCode({number, says}, bytes, outline) {
  if (!WORDLESS.test(textOf(bare(bytesOf(says), outline)))) return says;
  const {frame} = outline.patterns;
  let at = 0, code = "";
  for (const line of eachLine(bytes)) {
    if (++at >= number) break;
    if (at < number - 3) continue;
    const text = bare(bytesOf(asReason(line)), outline);
    if (text && !frame.test(text)) code = textOf(text);
  }
  return code ? [...`${code} ${says}`].slice(0, EVIDENCE_LIMIT).join("") : says;
}

// A message that breaks off, with the lines that it goes on in.
function continued({number, says}, bytes, outline) {
  const {frame} = outline.patterns;
  let at = 0;
  for (const line of eachLine(bytes)) {
    if (++at <= number) continue;
    if (at >= number + 5) break;
    const text = bare(bytesOf(asReason(line)), outline), more = textOf(text);
    if (more ? goesOn(text, outline) || frame.test(text) : !HEADING.test(says)) break;
    if (!more || isWrapper(text, outline)) continue;
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
