// Patterns in RE2's syntax, searched for in a time that grows with the text and no faster, whatever
// the text: each choice of a pattern is tried once at each place. A browser's own regular expressions
// have no such bound, and a page cannot stop them. Bytes are characters from 0 to 255.
"use strict";

const SET = 0, SPLIT = 1, GO = 2, SAVE = 3, BEGIN = 4, END = 5, BOUND = 6, NOT_BOUND = 7, FOUND = 8;
const CLASSES = {d: "0-9", w: "0-9A-Za-z_", s: "\t\n\f\r "};
const CONTROLS = {n: "\n", r: "\r", t: "\t", f: "\f", v: "\v"};

class Pattern {
  constructor(source) {
    Object.assign(this, {source, at: 0, ignoresCase: false, code: [], names: [], splits: 0});
    this.write(this.alternatives());
    if (this.at < source.length) throw new SyntaxError(`unbalanced: ${source}`);
    this.emit(FOUND);
    this.first = this.firstBytes();
    this.saved = new Int32Array(2 * this.names.length);
  }

  test(text) { return this.exec(text) !== null; }

  // The leftmost match from a place on: {index, end, groups}; of several, the one that comes first.
  exec(text, from = 0) {
    const {code, first, saved} = this, size = text.length + 1;
    const tried = [], stack = [];  // for each 32 places: the choices that were made there
    for (let start = from; start < size; start++) {
      if (first && !first[text.charCodeAt(start)]) continue;
      saved.fill(-1);
      stack.push(0, start);
      while (stack.length) {
        let place = stack.pop(), at = stack.pop();
        if (at < 0) {  // what a choice that failed had saved
          saved[-at - 1] = place;
          continue;
        }
        for (let goesOn = true; goesOn;) {
          const step = code[at++];
          switch (step.kind) {
            case SET: goesOn = place < text.length && step.set[text.charCodeAt(place++)] === 1; break;
            case GO: at = step.to; break;
            case SPLIT: {
              const made = tried[place >> 5] ??= new Int32Array(this.splits), bit = 1 << (place & 31);
              goesOn = !(made[step.number] & bit);
              made[step.number] |= bit;
              if (goesOn) stack.push(step.other, place);
              at = step.to;
              break;
            }
            case SAVE:
              stack.push(-step.slot - 1, saved[step.slot]);
              saved[step.slot] = place;
              break;
            case BEGIN: goesOn = place === 0 || text[place - 1] === "\n"; break;
            case END: goesOn = place === text.length || text[place] === "\n"; break;
            case BOUND: goesOn = isWordAt(text, place - 1) !== isWordAt(text, place); break;
            case NOT_BOUND: goesOn = isWordAt(text, place - 1) === isWordAt(text, place); break;
            default: return {index: start, end: place, groups: this.groups(text)};
          }
        }
      }
    }
    return null;
  }

  groups(text) {
    const found = {};
    this.names.forEach((name, i) => {
      const [begin, end] = this.saved.slice(2 * i, 2 * i + 2);
      if (begin >= 0 && end >= begin) found[name] = text.slice(begin, end);
    });
    return found;
  }

  // ---- reading: a pattern is a list of alternatives, each a list of items ----

  alternatives() {
    const before = this.ignoresCase, found = [[]];
    while (this.at < this.source.length && this.source[this.at] !== ")") {
      if (this.source[this.at] === "|") {
        this.at++;
        found.push([]);
      } else if (this.source.startsWith("(?i)", this.at)) {
        this.at += 4;
        this.ignoresCase = true;
      } else found.at(-1).push(this.repeated(this.item()));
    }
    this.ignoresCase = before;
    return {alternatives: found};
  }

  item() {
    const char = this.source[this.at];
    if (char === "(") return this.group();
    if (char === "[") return this.inBrackets();
    if (char === "\\") {
      const name = this.source[this.at + 1];
      if (name === "b" || name === "B") {
        this.at += 2;
        return {kind: name === "b" ? BOUND : NOT_BOUND};
      }
      return this.setOf(this.escaped());
    }
    this.at++;
    if (char === "^" || char === "$") return {kind: char === "^" ? BEGIN : END};
    return char === "." ? this.setOf([["\n", "\n"]], true) : this.setOf([[char, char]]);
  }

  group() {
    const [opened, , name, flag] = this.source.slice(this.at).match(/^\((\?(?:P?<(\w+)>|(i?):))?/);
    if (opened === "(" && this.source[this.at + 1] === "?") throw new SyntaxError(this.source);
    const before = this.ignoresCase;
    this.at += opened.length;
    this.ignoresCase ||= flag === "i";
    const slot = name ? this.names.push(name) - 1 : -1, inner = this.alternatives();
    if (this.source[this.at++] !== ")") throw new SyntaxError(`unbalanced: ${this.source}`);
    this.ignoresCase = before;
    return {...inner, slot};
  }

  // The ranges of what an escape means.
  escaped() {
    const name = this.source[this.at + 1];
    this.at += 2;
    const ranges = rangesOf(CLASSES[name.toLowerCase()] ?? "");
    if (ranges.length) return name === name.toLowerCase() ? ranges : others(ranges);
    if (name === "x") this.at += 2;
    else if (/\w/.test(name) && !CONTROLS[name]) throw new SyntaxError(`\\${name} in ${this.source}`);
    const char = name === "x" ? String.fromCharCode(parseInt(this.source.slice(this.at - 2, this.at), 16)) : CONTROLS[name] ?? name;
    return [[char, char]];
  }

  inBrackets() {
    const isNot = this.source[this.at + 1] === "^", ranges = [];
    this.at += isNot ? 2 : 1;
    for (let begin = this.at; this.source[this.at] !== "]" || this.at === begin;) {
      const from = this.one();
      if (this.source[this.at] !== "-" || this.source[this.at + 1] === "]" || from.length > 1) ranges.push(...from);
      else {
        this.at++;
        ranges.push([from[0][0], this.one()[0][1]]);
      }
    }
    this.at++;
    return this.setOf(ranges, isNot);
  }

  one() {
    if (this.source[this.at] === "\\") return this.escaped();
    const char = this.source[this.at++];
    if (char === undefined || char === "[" && this.source[this.at] === ":") throw new SyntaxError(this.source);
    return [[char, char]];
  }

  setOf(ranges, isNot = false) {
    const set = new Uint8Array(256);
    for (const [from, to] of ranges) set.fill(1, from.charCodeAt(0), to.charCodeAt(0) + 1);
    for (let i = 65; this.ignoresCase && i < 91; i++) set[i] = set[i + 32] = set[i] | set[i + 32];
    return {kind: SET, set: isNot ? set.map(one => 1 - one) : set};
  }

  repeated(item) {
    const found = this.source.slice(this.at).match(/^(?:([*+?])|\{(\d+)(,?)(\d*)\})(\??)/);
    if (!found) return item;
    this.at += found[0].length;
    const [, mark, least, comma, most, lazy] = found;
    if (mark) return {item, least: mark === "+" ? 1 : 0, most: mark === "?" ? 1 : Infinity, lazy};
    return {item, least: Number(least), most: comma ? most === "" ? Infinity : Number(most) : Number(least), lazy};
  }

  // ---- writing: steps, one after another ----

  emit(kind, rest = {}) {
    return this.code[this.code.push({kind, ...rest}) - 1];
  }

  // A choice: on with the next step, or elsewhere. `lazy`: elsewhere first.
  split(lazy = "") {
    const step = this.emit(SPLIT, {number: this.splits++, to: this.code.length + 1, other: -1});
    return () => {
      step.other = this.code.length;
      if (lazy) [step.to, step.other] = [step.other, step.to];
    };
  }

  write(node) {
    if (node.alternatives) this.writeGroup(node);
    else if (node.item) this.writeRepeated(node);
    else this.emit(node.kind, node);
  }

  writeGroup({alternatives, slot = -1}) {
    if (slot >= 0) this.emit(SAVE, {slot: 2 * slot});
    const ends = [];
    for (const [i, items] of alternatives.entries()) {
      const elsewhere = i < alternatives.length - 1 ? this.split() : null;
      items.forEach(item => this.write(item));
      if (elsewhere) {
        ends.push(this.emit(GO));
        elsewhere();
      }
    }
    for (const end of ends) end.to = this.code.length;
    if (slot >= 0) this.emit(SAVE, {slot: 2 * slot + 1});
  }

  writeRepeated({item, least, most, lazy}) {
    for (let i = 0; i < least; i++) this.write(item);
    if (most === Infinity) {
      const begin = this.code.length, end = this.split(lazy);
      this.write(item);
      this.emit(GO, {to: begin});
      end();
      return;
    }
    const ends = [];
    for (let i = least; i < most; i++) {
      ends.push(this.split(lazy));
      this.write(item);
    }
    ends.forEach(end => end());
  }

  // The bytes with which a match can begin; null: any, or none at all.
  firstBytes() {
    const found = new Uint8Array(256), seen = new Set(), open = [0];
    while (open.length) {
      const at = open.pop(), step = this.code[at];
      if (seen.has(at)) continue;
      seen.add(at);
      if (step.kind === FOUND) return null;
      if (step.kind === SET) step.set.forEach((one, byte) => { found[byte] |= one; });
      else if (step.kind === SPLIT) open.push(step.to, step.other);
      else open.push(step.kind === GO ? step.to : at + 1);
    }
    return found;
  }
}

function isWordAt(text, place) {
  const code = text.charCodeAt(place) | 0;
  return code >= 48 && code < 58 || code >= 65 && code < 91 || code >= 97 && code < 123 || code === 95;
}

function rangesOf(letters) {
  return [...letters.matchAll(/(.)-(.)|[^]/g)].map(([char, from, to]) => [from ?? char, to ?? char]);
}

// All bytes but those of some ranges.
function others(ranges) {
  const isIn = byte => ranges.some(([from, to]) => from.charCodeAt(0) <= byte && byte <= to.charCodeAt(0));
  return [...Array(256).keys()].filter(byte => !isIn(byte)).map(byte => [String.fromCharCode(byte), String.fromCharCode(byte)]);
}
