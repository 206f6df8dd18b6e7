// From hits to ranked causes; see doctor/judge.py. Of the machine nothing is known but what the
// text says of it.
"use strict";

const PROOF = 30, TYPICAL = 20, HINT = 10, SUPPORT = 12, PARAGRAPH = 12, EVIDENCE_SHOWN = 4;

// How near the hits are, in lines.
function spread(hits) {
  const numbers = hits.map(hit => hit.number);
  return Math.max(...numbers) - Math.min(...numbers);
}

// A hit of each list, all of them as near to one another as they come.
function closest(lists) {
  if (!lists.every(hits => hits.length)) return null;
  const rarest = lists.reduce((best, hits) => hits.length < best.length ? hits : best);
  let best = null;
  for (const hit of rarest) {
    const chosen = lists.map(hits => nearest(hits, hit.number));
    if (!best || spread(chosen) < spread(best)) best = chosen;
  }
  return best;
}

function nearest(hits, wanted) {
  const found = hits.findIndex(hit => hit.number >= wanted);
  const after = found < 0 ? hits.length : found;
  const around = [after - 1, after].filter(i => i >= 0 && i < hits.length);
  return hits[around.reduce((best, i) => Math.abs(hits[i].number - wanted) < Math.abs(hits[best].number - wanted) ? i : best)];
}

// Less: true or false; null where it cannot be compared.
function isLess(have, wanted) {
  if (typeof have === "number" && typeof wanted === "number") return have < wanted;
  const [one, other] = [have, wanted].map(text => `${text}`.match(/^v?(\d+(?:\.\d+)*)((?:a|b|rc|\.dev)\d+)?/));
  if (!one || !other) return null;
  const [left, right] = [one, other].map(found => found[1].split(".").map(Number));
  for (let i = 0; i < Math.max(left.length, right.length); i++) {
    if ((left[i] || 0) !== (right[i] || 0)) return (left[i] || 0) < (right[i] || 0);
  }
  return Boolean(one[2]) && !other[2];
}

function holds([fact, operator, wanted], facts) {
  if (!(fact in facts)) return false;
  const have = facts[fact].value;
  if (operator === "is" || operator === "not") {
    const isSame = Array.isArray(wanted) && !Array.isArray(have) ? wanted.includes(have) : have === wanted;
    return isSame === (operator === "is");
  }
  if (operator === "under" || operator === "atleast") {
    const less = isLess(have, wanted);
    return less !== null && less === (operator === "under");
  }
  if (operator === "has") return (Array.isArray(have) ? have : `${have}`).includes(`${wanted}`);
  return [have].flat().some(one => new Pattern(wanted).test(bytesOf(`${one}`)));
}

function evidenceOf(condition, facts) {
  const [name, , , says] = condition, fact = facts[name];
  const value = Array.isArray(fact.value) ? fact.value.join(", ") || "nothing" :
    typeof fact.value === "boolean" ? (fact.value ? "yes" : "no") : `${fact.value}`;
  return {says: (says || `${name} is ${value}`).replaceAll("{value}", value), where: fact.where};
}

class Judge {
  // `hits` by pattern; `together`, `last`: see diagnosisOf; `stated`: facts.
  constructor(failures, hits, outline, {together, last, stated}) {
    Object.assign(this, {hits, outline, together, last, stated});
    this.candidates = failures.map(one => this.candidate(one)).filter(Boolean);
  }

  candidate(failure) {
    const {unless = [], clues = [], host} = failure;
    if (unless.some(pattern => this.hits.has(pattern))) return null;
    const shown = this.shown(failure);
    if (!shown.length) return null;
    const hits = linesOf(shown);
    const own = new Set(hits.map(hit => hit.number));
    const facts = Object.fromEntries(Object.entries(this.stated).filter(([, fact]) => !own.has(fact.where)));
    const isProven = Boolean(host) && host.every(one => holds(one, facts));
    let [{strength}] = shown;
    if (isProven && strength === HINT) strength = TYPICAL;
    const speaking = clues.filter(([condition, supports]) => supports && holds(condition, facts));
    const isClosing = hits.some(hit => this.outline.after(hit) <= 1);
    const against = clues.some(([condition, supports]) => !supports && holds(condition, facts));
    const supported = [...speaking.map(([condition]) => condition), ...(isProven ? host : [])];
    return {
      failure, strength, hits, isProven,
      lines: own,
      supported: supported.map(one => evidenceOf(one, facts)),
      isDecided: speaking.some(([, , isDecisive]) => isDecisive),
      isRefuted: against && strength !== PROOF,
      groups: Object.assign({}, ...hits.toReversed().map(hit => hit.groups)),
      isSurvived: !isProven && shown.every(one => one.isSurvived),
      isAtEnd: isProven || shown.some(one => one.isAtEnd),
      saysWhy: shown.some(one => one.strength === shown[0].strength && one.saysWhy),
      isSure: shown.some(one => one.strength === PROOF && !one.shared && (one.saysWhy || isClosing || isHardwareFailure(failure))),
      isStated: !isProven && this.outline.isStated(),
      isTold: hits.some(hit => readsLikeAReason(hit.line, this.outline)),
      isByAReason: isProven || shown.some(one => one.isByAReason),
      isClosing,
      beatenBy: null,
    };
  }

  // The symptoms that are there, the strongest first.
  shown(failure) {
    const {outline} = this, found = [];
    for (const [parts, strong, within, without = -1, survived = false, shared = false] of failure.symptoms ?? []) {
      if (!parts.every(part => this.hits.has(part))) continue;
      let seen = this.together.get(`${parts}`) ?? parts.map(part => this.hits.get(part));
      if (failure.generic && seen.length === 1) seen = [this.last.get(parts[0]) ?? seen[0]];
      if (seen.every(hit => outline.patterns.code.test(bytesOf(hit.line)))) continue;
      const other = this.hits.get(without);
      if (other && spread([other, seen[0]]) <= PARAGRAPH) continue;
      const isNear = seen.length === 1 || spread(seen) <= within;
      const isOver = seen.every(hit => outline.isOver(hit));
      const isSurvivable = survived || seen.some(hit => outline.warnedEarly(hit));
      const hasGoneOn = isSurvivable && seen.every(hit => outline.hasGoneOn(hit));
      let strength = isNear ? strong : HINT;
      if (strength === HINT && seen.every(hit => outline.isApart(hit))) continue;
      const isJoined = seen.length === 1 && seen[0].joined;
      if (strength === PROOF && (isOver || hasGoneOn || isJoined)) strength = TYPICAL;
      const latest = [...seen, ...parts.map(part => this.last.get(part)).filter(Boolean)];
      const isAtEnd = latest.some(hit => failure.generic ? outline.endsWith(hit) : outline.isAtEnd(hit));
      found.push({strength, hits: seen, isSurvived: isOver || hasGoneOn, isAtEnd, isByAReason: latest.some(hit => outline.isByAReason(hit)), saysWhy: latest.some(hit => outline.saysWhy(hit)), shared});
    }
    return found.sort((one, other) => other.strength - one.strength);
  }

  // The first of the ranked causes, and how sure it is; null where the text goes beyond what is known.
  verdict() {
    let standing = survivedTogether(this.candidates.filter(one => !one.isRefuted));
    standing = standing.filter(one => one.isAtEnd || !one.failure.generic);
    standing = explainedBy(this.beforeTheEnd(standing));
    const [first] = reasonsFirst(this.closingFirst(endingFirst(standing.toSorted(byRank))));
    const isUnexplained = this.outline.ends.length > 0 ?
      standing.every(one => one.isSurvived) || isAside(first) || isElsewhere(first) :
      first?.strength === HINT && isElsewhere(first);
    const hasEndedWell = this.outline.done > 0 && standing.every(one => one.isSurvived);
    if (!first || isUnexplained || hasEndedWell) return {first: null, confidence: "low"};
    const confidence = confidenceOf(first, standing);
    return {first, confidence: first.isSurvived && confidence === "high" ? "medium" : confidence};
  }

  closingFirst(ranked) {
    const {outline} = this;
    const [top] = ranked;
    if (!top || !top.hits.every(hit => outline.after(hit) > TOGETHER)) return ranked;
    if (top.strength === PROOF && (top.isSure || top.isByAReason)) return ranked;
    const last = ranked.find(one => isRoot(one) && one.strength !== HINT && !one.failure.generic && one.isClosing);
    return last ? [last, ...ranked.filter(one => one !== last)] : ranked;
  }

  beforeTheEnd(candidates) {
    if (!this.outline.endsByItself()) return candidates;
    const isExplained = candidates.some(one => one.isAtEnd && !one.isSurvived && one.strength !== HINT);
    return candidates.map(one => {
      if (one.isAtEnd || one.supported.length) return one;
      if (one.strength === PROOF) return isHardwareFailure(one.failure) ? one : {...one, strength: TYPICAL};
      return isExplained ? one : {...one, isSurvived: true};
    });
  }
}

// The lines of all symptoms, the strongest first.
function linesOf(shown) {
  const byLine = new Map();
  for (const hit of shown.flatMap(one => one.hits).toReversed()) byLine.set(hit.number, hit);
  return [...byLine.values()].toReversed();
}

const isHardwareFailure = failure => failure.hardware && (failure.severity ?? "blocks") === "blocks";
const severityOf = one => one.isSurvived ? "warns" : one.failure.severity ?? "blocks";
const pointsOf = one => one.strength + SUPPORT * ((one.supported.length > 0) + one.isDecided) + (one.failure.often ?? 0);
const isAside = one => severityOf(one) === "warns" && !(one.isAtEnd && one.saysWhy);
const isWithin = (one, other) => [...one.lines].every(line => other.lines.has(line));

// Whether it is no proof, and stands apart from what says why the text ended, or says less than that.
function isElsewhere(one) {
  if (one.strength === PROOF || one.supported.length) return false;
  const tellsLess = !one.saysWhy && (one.failure.outcome || !one.isTold);
  return !one.isByAReason || one.isStated && (one.strength === HINT || tellsLess);
}

// Whether an outcome can follow from it.
function isRoot(one) {
  const isPossible = (one.strength !== HINT || one.supported.length) && severityOf(one) !== "warns";
  return isPossible && !one.beatenBy && !one.failure.outcome;
}

function explains(one, outcome) {
  const isSure = one.strength === PROOF || one.supported.length > 0 || one.isProven;
  const isFar = !one.isAtEnd && outcome.isAtEnd && !isSure;
  if (outcome.strength === PROOF && (one.failure.generic || isFar)) return false;
  return isSure || !isWithin(one, outcome);
}

function survivedTogether(candidates) {
  const lines = new Set(candidates.filter(one => one.isSurvived).flatMap(one => [...one.lines]));
  return candidates.map(one =>
    one.strength === HINT && [...one.lines].every(line => lines.has(line)) ? {...one, isSurvived: true} : one);
}

function endingFirst(ranked) {
  if (!ranked.length || severityOf(ranked[0]) !== "degrades") return ranked;
  const ended = ranked.find(one => isRoot(one) && one.strength === PROOF && severityOf(one) === "blocks" && one.isAtEnd &&
    ![...one.lines].some(line => ranked[0].lines.has(line)));
  return ended ? [ended, ...ranked.filter(one => one !== ended)] : ranked;
}

function reasonsFirst(ranked) {
  if (!ranked.length || !isElsewhere(ranked[0])) return ranked;
  const near = ranked.find(one => isRoot(one) && one.strength !== HINT && one.saysWhy && !one.failure.generic);
  return near ? [near, ...ranked.filter(one => one !== near)] : ranked;
}

function explainedBy(candidates) {
  const beaten = {};
  for (const one of candidates) {
    if (one.strength !== HINT) for (const code of one.failure.beats ?? []) beaten[code] = one.failure.code;
  }
  const byAReason = new Set(candidates.filter(one => one.isByAReason).map(one => beaten[one.failure.code]));
  const found = candidates.map(one => ({...one, beatenBy: beaten[one.failure.code] ?? null,
    isByAReason: one.isByAReason || byAReason.has(one.failure.code)}));
  const roots = found.toSorted(byRank).filter(isRoot);
  return found.map(one => one.failure.outcome && !one.beatenBy ?
    {...one, beatenBy: roots.find(root => explains(root, one))?.failure.code ?? null} : one);
}

function rankOf(one) {
  const isHarmless = severityOf(one) === "warns";
  const isElsewhere = !one.isAtEnd && !(one.strength === PROOF && severityOf(one) === "blocks");
  const kind = one.strength === HINT && !one.supported.length ? 2 : 0;
  return [Boolean(one.beatenBy), one.isSurvived, kind, isHarmless, isElsewhere, Boolean(one.failure.generic),
    -pointsOf(one), Math.min(...one.lines), one.failure.code];
}

function byRank(one, other) {
  const left = rankOf(one), right = rankOf(other);
  const i = left.findIndex((value, place) => value !== right[place]);
  return i < 0 ? 0 : left[i] < right[i] ? -1 : 1;
}

function confidenceOf(one, standing) {
  if (one.strength === HINT) return one.supported.length ? "medium" : "low";
  if (one.beatenBy) return "medium";
  const rivals = standing.filter(other => other !== one && !other.beatenBy && other.strength !== HINT &&
    [...other.lines].some(line => one.lines.has(line)));
  const better = rivals.filter(other => pointsOf(other) >= pointsOf(one));
  if (one.strength === PROOF) {
    const isAlone = !better.some(other => other.strength === PROOF);
    return isAlone && (one.isSure || one.supported.length) ? "high" : "medium";
  }
  if (one.isDecided && !rivals.some(other => other.isDecided)) return "high";
  if (one.supported.length && !rivals.some(other => other.supported.length)) return "high";
  return rivals.length > 1 && better.length ? "low" : "medium";
}
