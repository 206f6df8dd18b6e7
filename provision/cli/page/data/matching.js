// Which patterns of the doctor a text holds, and where; see doctor/matching.py.
"use strict";

const MOST_HITS = 2000, MEMORY_LIMIT = 20000;

// The patterns, compiled when they are tried, and the words without which none matches.
class Patterns {
  constructor({patterns, words, needs, after}) {
    this.sources = patterns;
    this.after = after;
    this.compiled = [];
    this.tellsDigits = patterns.map(one => /\d/.test(one.replace(/\\d|0-9|\{\d+(?:,\d*)?\}/g, "")));
    this.next = new Map();  // edges of the tree of all words: node * 256 + byte
    this.ends = [];  // of each node: the patterns that need the word that ends there
    this.nodes = 1;
    const late = new Set(after.map(([pattern]) => pattern));
    const nodeOf = words.map(word => this.add(word));
    needs.forEach((need, pattern) => need.forEach(word => (this.ends[nodeOf[word]] ??= []).push(pattern)));
    this.isLate = pattern => late.has(pattern);
  }

  add(word) {
    let node = 0;
    for (let i = 0; i < word.length; i++) {
      const edge = node * 256 + word.charCodeAt(i);
      if (!this.next.has(edge)) this.next.set(edge, this.nodes++);
      node = this.next.get(edge);
    }
    return node;
  }

  // The patterns that a line may match.
  possible(line) {
    const lower = line.toLowerCase(), nodes = new Set();
    for (let i = 0; i < lower.length; i++) {
      let node = 0;
      for (let j = i; j < lower.length; j++) {
        node = this.next.get(node * 256 + lower.charCodeAt(j));
        if (node === undefined) break;
        if (this.ends[node]) nodes.add(node);
      }
    }
    const found = new Set();
    for (const node of nodes) for (const pattern of this.ends[node]) found.add(pattern);
    return found;
  }

  match(pattern, line) {
    this.compiled[pattern] ??= new Pattern(this.sources[pattern]);
    return this.compiled[pattern].exec(line);
  }

  hit(pattern, line, number, joined = false) {
    const match = this.match(pattern, line);
    return match && {line: shownAround(line, match.index), number, joined, groups: groupsOf(match)};
  }

  // The first hit of every pattern that the text holds. All of these are done in steps.
  *inText(bytes) {
    const found = new Map(), lines = new Set(), shapes = new Set(), kept = [];
    let number = 1;
    for (const chunk of chunksOf(bytes)) {
      const all = chunk.split("\n"), plain = unescaped(chunk)?.split("\n") ?? [];
      yield* this.fresh(all, i => number + i, found, lines, shapes);
      for (const [pattern, earlier] of this.after) {
        if (found.has(pattern) || !earlier.some(one => found.has(one))) continue;
        const i = all.findIndex(line => this.match(pattern, line));
        if (i >= 0) found.set(pattern, this.hit(pattern, all[i], number + i));
        yield;
      }
      yield* this.fresh(plain, i => number + escapedLineOf(plain[i], all), found, lines, shapes);
      number += all.length - 1;
      kept.push(chunk);
    }
    for (const [at, joined] of unwrapped(kept.join("").split("\n"))) {
      for (const pattern of this.possible(joined)) {
        if (found.has(pattern) || this.isLate(pattern)) continue;
        const hit = this.hit(pattern, joined, at, true);
        if (hit) found.set(pattern, hit);
        yield;
      }
      yield;
    }
    return found;
  }

  // Tries the lines that did not stand before; of those that differ in digits only, the first.
  *fresh(all, place, found, lines, shapes) {
    for (const known of [lines, shapes]) if (known.size > MEMORY_LIMIT) known.clear();
    for (const [i, line] of all.entries()) {
      if (lines.has(line)) continue;
      lines.add(line);
      const shape = line.replace(/[1-9]/g, "0"), isNew = !shapes.has(shape);
      shapes.add(shape);
      for (const pattern of this.possible(line)) {
        if (found.has(pattern) || this.isLate(pattern) || !(isNew || this.tellsDigits[pattern])) continue;
        const hit = this.hit(pattern, line, 0);
        if (hit) found.set(pattern, {...hit, number: place(i)});
        yield;
      }
      yield;
    }
  }

  // All hits of a few patterns, in the order of their lines.
  *everyHit(bytes, asked) {
    const found = new Map([...asked].map(pattern => [pattern, []]));
    const known = new Map();  // the hits of lines that come again
    let first = 1;
    for (const chunk of chunksOf(bytes)) {
      const all = chunk.split("\n"), plain = unescaped(chunk)?.split("\n") ?? [];
      for (const [lines, place] of [[all, i => i], [plain, i => escapedLineOf(plain[i], all)]]) {
        for (const [i, line] of lines.entries()) {
          if (known.size > MEMORY_LIMIT) known.clear();
          if (!known.has(line)) {
            const its = [];
            for (const pattern of this.possible(line)) {
              const hit = found.has(pattern) && this.hit(pattern, line, 0);
              if (hit) its.push([pattern, hit]);
              yield;
            }
            known.set(line, its);
          }
          for (const [pattern, hit] of known.get(line)) {
            const hits = found.get(pattern);
            if (hits.length < MOST_HITS) hits.push({...hit, number: first + place(i)});
          }
          yield;
        }
      }
      first += all.length - 1;
    }
    for (const hits of found.values()) hits.sort((one, other) => one.number - other.number);
    return found;
  }
}

// The line as evidence, around the match where it is long.
function shownAround(line, place) {
  const start = line.length > EVIDENCE_LIMIT ? Math.max(0, place - 60) : 0;
  return asEvidence(line.slice(start, start + 2 * EVIDENCE_LIMIT));
}

function groupsOf(match) {
  const named = Object.entries(match.groups).filter(([, value]) => value);
  return Object.fromEntries(named.map(([name, value]) => [name, printable(textOf(value), "?")]));
}
