// The doctor's answer for a pasted text, in steps: that of `provision doctor FILE`, or none.
"use strict";

const LONGEST_TEXT = 1 << 20;  // bytes; a longer log is the command's to read

const NAMED = {layer: "", defaults: {}, sources: [], cause: "", confirm: "", fixes: []};  // of a cause without texts

let doctor = null;

// The doctor's knowledge, read when it is first asked.
function knowledge() {
  if (!doctor) {
    doctor = JSON.parse(document.getElementById("doctor").textContent);
    doctor.all = new Patterns(doctor);
  }
  return doctor;
}

// A generator whose value is {state, cause}. "known": the first cause is sure or likely, and its texts
// are here; "named": its name is; "unknown": no cause is more than possible; "long": not read.
function* diagnosisOf(text) {
  if (text.length > LONGEST_TEXT) return {state: "long", cause: null};
  const bytes = bytesOf(text);
  if (bytes.length > LONGEST_TEXT) return {state: "long", cause: null};
  const known = knowledge(), outline = new Outline(known.outline);
  yield* outline.read(bytes);
  outline.reasons = yield* reasonsOf(bytes, outline);
  const hits = yield* known.all.inText(bytes);
  const symptoms = known.failures.flatMap(one => one.symptoms ?? []).filter(([parts]) => parts.every(part => hits.has(part)));
  const apart = symptoms.filter(([parts, , within]) => parts.length > 1 && spread(parts.map(part => hits.get(part))) > within);
  const together = new Map(), last = new Map();
  if (apart.length || outline.ends.length) {
    const every = yield* known.all.everyHit(bytes, new Set(symptoms.flatMap(([parts]) => parts)));
    for (const [part, all] of every) if (!all.length) every.set(part, [hits.get(part)]);
    for (const [part, all] of every) last.set(part, all.at(-1));
    for (const [parts, , within] of apart) {
      const chosen = closest(parts.map(part => every.get(part)));
      if (chosen && spread(chosen) <= within && !together.has(`${parts}`)) together.set(`${parts}`, chosen);
    }
    for (const [part, all] of every) hits.set(part, all.find(hit => !outline.isWarning(hit.line)) ?? all[0]);
  }
  const stated = yield* statedIn(bytes, hits);
  const {first, confidence} = new Judge(known.failures, hits, outline, {together, last, stated}).verdict();
  if (confidence === "low") return {state: "unknown", cause: null};
  const isHere = Object.hasOwn(known.texts, first.failure.code);
  return {state: isHere ? "known" : "named", cause: {...causeOf(first, outline, stated), confidence}};
}

// The facts that a text's lines state; of several such lines the first one counts.
function* statedIn(bytes, hits) {
  const {stated, all} = knowledge(), found = {};
  const seen = stated.filter(([, , pattern, , , unless]) => hits.has(pattern) && !hits.has(unless));
  const compared = new Set(seen.filter(row => row[4]).map(row => row[2]));
  const every = compared.size ? yield* all.everyHit(bytes, compared) : new Map();
  const ordered = seen.toSorted((one, other) => hits.get(one[2]).number - hits.get(other[2]).number);
  for (const [fact, kind, pattern, said, differs] of ordered) {
    const hit = hits.get(pattern);
    let value = said, where = hit.number;
    if (differs) {
      const other = differing(every.get(pattern));
      value = other ? true : null;
      where = other?.number;
    } else if (said === null) value = valueOfKind(kind, hit.groups.value ?? "");
    if (value !== null) found[fact] ??= {value, where};
  }
  return found;
}

function valueOfKind(kind, said) {
  if (kind === "int") return /^\d+$/.test(said) ? Number(said) : null;
  return kind === "list" ? [said.trim()] : said;
}

// The first line that says something else than one before it about the same.
function differing(hits) {
  const said = new Map();
  return hits.find(({groups: {of, value}}) => {
    if (!said.has(of)) said.set(of, value);
    return said.get(of) !== value;
  });
}

// A cause with its texts filled in, and the fixes for the machine that the text speaks of.
function causeOf(one, outline, stated) {
  const {code, outcome} = one.failure, texts = {...NAMED, ...one.failure, ...knowledge().texts[code]};
  const values = {...texts.defaults, ...one.groups};
  const filled = (text, quote = found => found) =>
    text.replace(/\{([a-z_]+)\}/g, (hole, name) => Object.hasOwn(values, name) ? quote(values[name]) : hole);
  const seen = one.hits.slice(0, EVIDENCE_SHOWN).map(hit => ({says: hit.line, where: hit.number}));
  return {
    code, layer: texts.layer, severity: severityOf(one), sources: texts.sources,
    title: filled(texts.title), cause: filled(texts.cause), confirm: filled(texts.confirm, quoted),
    fixes: pickFixes(texts.fixes, stated).map(({on, note, run}) => ({on, note: filled(note), run: filled(run, quoted)})),
    evidence: [...seen, ...one.supported, ...(outcome ? outline.raisedBefore(one.hits) : [])],
  };
}

// ---- fixes: see doctor/fixes.py ----

const EXCLUSIVE = ["wsl", "docker-desktop", "snap-docker", "rootless"];
const FAMILIES = ["debian", "rhel", "suse", "arch", "alpine", "nixos", "other"];
const MOST_USED = ["ubuntu", "debian", "rhel", "suse", "arch"];

function pickFixes(fixes, stated) {
  const places = ["os.id", "os.family"].map(name => stated[name]?.value).filter(Boolean);
  if (stated["docker.snap"]?.value) places.push("snap-docker");
  if (stated.wsl?.value) places.push("wsl");
  if (!places.length) return fixes.toSorted((one, other) => usage(one) - usage(other));
  const isNamed = ({on}) => on.some(name => places.includes(name));
  if (!fixes.some(fix => isNamed(fix) || !fix.on.length)) return fixes;
  const chosen = [...fixes.filter(isNamed), ...fixes.filter(fix => !fix.on.length)];
  const exclusive = chosen.filter(({on}) => on.some(name => EXCLUSIVE.includes(name)));
  if (exclusive.length) return exclusive;
  const others = [...FAMILIES, ...EXCLUSIVE, "docker", "podman", "systemd"];
  const hasOwn = chosen.some(({on}) => on.some(name => !others.includes(name)));
  return chosen.filter(({on}) => !(hasOwn && on.length && on.every(name => FAMILIES.includes(name))));
}

function usage({on}) {
  if (on.some(name => EXCLUSIVE.includes(name))) return FAMILIES.length + MOST_USED.length;
  return on.length ? Math.min(...on.map(name => MOST_USED.includes(name) ? MOST_USED.indexOf(name) + 1 : MOST_USED.length + 1)) : 0;
}
