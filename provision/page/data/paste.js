// Reads GPUs and the driver from what nvidia-smi prints: its table, -L, or --format=csv.
"use strict";

const LONGEST_LINE = 500;
const BRANDS = /\b(nvidia|geforce|tesla|jetson)\b/g;

// The letters and digits of a name without the words that drivers and people leave out.
function nameKey(name) {
  return name.toLowerCase().replace(BRANDS, " ").replace(/[^a-z0-9]+/g, "");
}

// The card of a name as drivers print it; a slice of a card is that card. Null: none, or several.
function cardNamed(name) {
  const key = nameKey(name.replace(/ MIG .*$/, ""));
  const found = DATA.gpus.filter(gpu => [gpu.name, ...gpu.aliases].some(one => nameKey(one) === key));
  return found.length === 1 ? found[0] : null;
}

function readSmi(text) {
  // From branch 610 on the label is "KMD Version".
  const driver = text.match(/\b(?:Driver|KMD) Version\s*:\s*(\d{3}(?:\.\d+){1,3})/);
  const names = new Set();
  for (const line of text.split("\n").filter(one => one.length < LONGEST_LINE)) {
    const listed = line.match(/^\s*GPU \d+: (.+?)(?: \(UUID: .*)?\s*$/);
    const row = line.match(/^\|\s+\d+\s+(.+?)\s+(?:On|Off|N\/A|WDDM|TCC|MCDM)\s+\|/);
    const csv = line.match(/^\s*((?:NVIDIA(?!-SMI)|Tesla|Quadro|GeForce|TITAN|GRID)\b[^,|]*)(?:,|\s*$)/);
    const found = listed || row || csv;
    if (found) names.add(found[1].trim());
  }
  const numbers = text.match(/(?<![\d.])\d{3}\.\d{2,3}(?:\.\d{2})?(?=\s*(?:,|$))/gm) || [];
  const bare = numbers.find(one => rangeOf(one) > 0 && !one.endsWith(".00"));  // 450.00 are watts
  const all = [...names], known = all.filter(cardNamed);
  return {
    driver: driver ? driver[1] : all.length && bare || null,
    gpus: [...new Set(known.map(name => cardNamed(name).name))],
    unknown: all.filter(name => !cardNamed(name)),
  };
}
