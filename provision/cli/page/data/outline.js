// How the run went that a text is of; see doctor/outline.py and doctor/context.py.
"use strict";

const TAIL = 12, TOGETHER = 60, CHAINED = 600, MOST_ENDS = 4000, SOON = 15;

class Outline {
  constructor(patterns) {
    this.patterns = Object.fromEntries(Object.entries(patterns).map(([name, one]) => [name, new Pattern(one)]));
    this.ends = [];  // the lines by which something ended badly: their numbers, and they
    this.chains = [];  // the numbers of the lines that join two exceptions
    this.raised = null;
    this.reasons = [];  // the lines that say why the text ends
    this.done = this.lines = this.last = 0;
  }

  *read(bytes) {
    let number = 1, tail = [];
    for (const chunk of chunksOf(bytes)) {
      this.readEnds(chunk, number);
      this.readChains(chunk, number);
      const lines = chunk.split("\n"), from = Math.max(0, lines.length - 3 * TAIL);
      for (let i = from; i < lines.length; i++) if (trimmedEnd(lines[i])) tail.push([number + i, lines[i]]);
      tail = tail.slice(-TAIL);
      number += lines.length - 1;
      yield;
    }
    this.ends = this.ends.slice(-MOST_ENDS);
    this.chains = this.chains.slice(-MOST_ENDS);
    this.lines = number;
    this.last = tail.at(-1)?.[0] ?? 0;
    const {done, ended, rows, isCounted, gaveUp, readEnough} = this.patterns;
    const hasFailed = tail.some(([, line]) => gaveUp.test(line)) || tail.length > 0 && this.endsAfter(tail[0][0], number, readEnough);
    const isContradicted = this.endsAfter(0, number, isCounted);
    const said = tail.filter(([, line]) => done.test(line) && !(hasFailed && (ended.test(line) || gaveUp.test(line)))
      && !(isContradicted && rows.test(line)));
    if (said.length && !this.endsAfter(said.at(-1)[0], number)) this.done = said.at(-1)[0];
  }

  readEnds(chunk, first) {
    let place = 0, counted = 0, number = first;
    for (;;) {
      const match = this.patterns.ends.exec(chunk, place);
      if (!match) return;
      const end = match.end - (match.end > match.index && chunk[match.end - 1] === "\n");  // a blank may be the line's end
      const start = end ? chunk.lastIndexOf("\n", end - 1) + 1 : 0;
      place = chunk.indexOf("\n", end) < 0 ? chunk.length : chunk.indexOf("\n", end);
      for (; counted < start; counted++) if (chunk[counted] === "\n") number++;
      if (this.ends.at(-1)?.[0] === number) continue;
      const line = chunk.slice(start, place);
      this.ends.push([number, asEvidence(line.slice(0, EVIDENCE_LIMIT), line.length > EVIDENCE_LIMIT)]);
      if (!this.raised && this.patterns.raised.test(line)) this.raised = this.ends.at(-1);
    }
  }

  // The lines of the last end: those near to one another, back from the last one.
  lastEnd() {
    let from = this.ends.length - 1;
    while (from > 0 && this.isJoined(this.ends[from - 1][0], this.ends[from][0])) from--;
    return this.ends.slice(Math.max(from, 0));
  }

  // Whether two ends are near to one another, or exceptions of one chain.
  isJoined(first, then) {
    if (then - first <= TOGETHER) return true;
    return then - first <= CHAINED && this.chains.some(at => first < at && at < then);
  }

  readChains(chunk, first) {
    let counted = 0, number = first;
    for (let match; (match = this.patterns.chain.exec(chunk, counted));) {
      for (; counted < match.index; counted++) if (chunk[counted] === "\n") number++;
      this.chains.push(number);
      counted = match.end;
    }
  }

  endsAfter(first, last, but = null) {
    return this.ends.some(([number, line]) => first <= number && number <= last && !but?.test(line));
  }

  isWarning(line) { return this.patterns.warning.test(line) && !line.includes("NCCL INFO"); }

  isOver(hit) { return hit.number < this.done; }

  hasGoneOn(hit) { return !this.endsAfter(hit.number, hit.number + SOON, this.patterns.ordinary); }

  warnedEarly(hit) {
    return this.isWarning(hit.line) && (this.lines > hit.number + SOON || this.endsAfter(hit.number + 1, this.lines));
  }

  isAtEnd(hit) {
    const [begin] = this.lastEnd();
    return !begin || begin[0] - SOON <= hit.number;
  }

  endsWith(hit) {
    const saysWhy = hit.number === this.reasons.at(-1)?.number;
    const last = saysWhy && this.ends.length ? this.ends.at(-1)[0] : hit.number;
    if (this.lines - last > Math.max(TOGETHER, Math.floor(this.lines / 2))) return false;
    return saysWhy || this.isAtEnd(hit) || this.endsAfter(hit.number, hit.number);
  }

  saysWhy(hit) {
    const isSaid = this.reasons.some(({number, says}) => number === hit.number || says.includes(hit.line));
    return isSaid || !this.reasons.length || this.lines <= PARAGRAPH;
  }

  // Whether the text is longer than one message, and says why it ended.
  isStated() { return this.reasons.length > 0 && this.lines > PARAGRAPH; }

  isByAReason(hit) {
    const numbers = this.reasons.map(({number}) => number).filter(number => this.ends.some(([end]) => end === number));
    if (this.reasons.some(({says}) => says === hit.line)) return true;
    return !numbers.length || this.after(hit) <= 1 || numbers.some(number => Math.abs(hit.number - number) <= SOON);
  }

  after(hit) { return Math.max(this.last - hit.number, 0); }

  isApart(hit) {
    return this.ends.length > 0 && !this.endsAfter(hit.number - SOON, hit.number + SOON);
  }

  endsByItself() {
    const said = this.lastEnd().map(([, line]) => line).filter(line => this.patterns.raised.test(line));
    return said.length > 0 && !this.patterns.reports.test(said.at(-1));
  }

  // The exception before an outcome: what it goes back to.
  raisedBefore(hits) {
    const [number, line] = this.raised ?? [0, ""];
    const before = Math.min(...hits.map(hit => hit.number)) - number;
    return line && before > 0 && before <= TOGETHER ? [{says: `the first to fail: ${line}`, where: number}] : [];
  }
}
