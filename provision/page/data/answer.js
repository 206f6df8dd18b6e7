// The answer to a question: the verdict, versions, commands, reasons, warnings and alternatives.
"use strict";

const MARKS = {"direct": "\u2713", "minor-version": "\u223c", "forward": "\u2191", "unverified": "?", "none": "\u2715"};

function titleOf(framework) {
  return DATA.choices.find(one => one.framework === framework).title;
}

function planCommand(question) {
  const words = ["provision", "plan"];
  for (const name of question.gpus) words.push("--gpu", name);
  if (question.driver) words.push("--driver", question.driver);
  if (question.framework !== "pytorch") words.push("--framework", question.framework);
  if (question.cuda) words.push("--cuda", question.cuda);
  if (question.python) words.push("--python", question.python);
  return words.map(quoted).join(" ");
}

// In one sentence, what was asked.
function askedFor(question) {
  const parts = [titleOf(question.framework), question.cuda && `CUDA ${question.cuda}`, question.python && `Python ${question.python}`];
  return word("for", {framework: parts.filter(Boolean).join(", "), gpus: question.gpus.join(" + "),
    driver: question.driver || word("unknown")});
}

function banner(verdict, question, title, sentence) {
  return make("div", {class: `banner ${verdict}`},
    make("span", {class: "mark", "aria-hidden": "true"}, MARKS[verdict] || (verdict === "mixed" ? "+" : "!")),
    make("div", {},
      make("p", {class: "asked"}, askedFor(question)),
      make("h2", {id: "answer-title"}, title),
      make("p", {}, sentence)));
}

function showAnswer(question, isListed) {
  const section = document.getElementById("answer");
  section.replaceChildren(...answerTo(question, isListed));
  // read out: the verdict, not all of the answer
  const texts = section.querySelectorAll(".banner p, .banner h2");
  document.getElementById("said").textContent = [...texts].map(one => one.textContent).join(". ");
}

function answerTo(question, isListed) {
  if (question.unknown?.length) {
    return [banner("", question, word("linkUnknown", {what: question.unknown.join(", ")}), word("linkUnknownFix"))];
  }
  if (!question.gpus.length) return beginning();
  if (rangeOf(question.driver) < 0) {
    return [banner("", question, word("driver"),
      word(parseDriver(question.driver) ? "driverUnknown" : "driverBad")), commandFor(question)];
  }
  if (question.gpus.length > 1) return answerForMixed(question);
  const plan = planFor(question);
  if (!plan) return [banner("", question, word("more"), ""), commandFor(question)];
  const [title, sentence] = word(`verdicts/${plan.verdict}`);
  const [release] = plan.error ? [] : [`${titleOf(question.framework)} ${plan.framework.version}`];
  return [
    banner(plan.verdict, question, release ? `${release}, CUDA ${plan.cuda}` : title, release ? word("both", {title, sentence}) : sentence),
    word("english") && make("p", {class: "help"}, word("english")),
    plan.error ? refusal(plan, isListed) : versions(plan),
    warnings(plan),
    plan.alternatives.length ? alternatives(plan, question) : "",
    plan.error ? "" : commands(plan),
    listed("why", plan.reasons.map(one => said("li", `${one.message} `, source(one.source)))),
    listed("notes", plan.notes.map(one => said("li", one.message))),
    commandFor(question),
  ].filter(Boolean);
}

// What the table says of a machine with several GPUs; which build is best, only the command says.
function answerForMixed(question) {
  const running = matrixFor(question).filter(cell => cell.verdict !== "none");
  const {title, builds} = DATA.choices[choicesOf(question)];
  const [newest] = running.filter(cell => cell.existence === "confirmed");
  const count = word("mixedCount", {count: running.length, of: builds.length, framework: title});
  const upTo = newest ? word("mixedNewest", {framework: title, version: newest.framework_version, cuda: newest.cuda}) : "";
  const alone = question.gpus.map(name => make("li", {},
    make("a", {href: addressOf({...question, gpus: [name]})}, askedFor({...question, gpus: [name]}))));
  return [banner(running.length ? "mixed" : "none", question, running.length ? count : word("mixedNone", {framework: title}), upTo),
    running.length ? make("p", {}, word("mixedIntro")) : "",
    commandFor(question), listed("alone", alone)].filter(Boolean);
}

function beginning() {
  const examples = [
    ["NVIDIA GeForce RTX 4090", "580.95.05", "pytorch"],
    ["NVIDIA GeForce GTX 1080 Ti", "535.183.01", "pytorch"],
    ["NVIDIA H100 80GB HBM3", "535.104.05", "tensorflow"],
    ["Tesla V100-SXM2-32GB", "580.95.05", "jax"],
  ].filter(([name]) => gpuNamed(name));
  return [make("h2", {id: "answer-title"}, word("start")), make("p", {}, word("examples")),
    make("ul", {class: "examples"}, examples.map(([name, driver, framework]) => {
      const question = {gpus: [name], driver, framework, cuda: null, python: null, arch: "x86_64"};
      return make("li", {}, make("a", {href: addressOf(question)}, askedFor(question)));
    }))];
}

// `isListed`: the driver itself has listed the GPU.
function refusal(plan, isListed) {
  return make("dl", {class: "facts"},
    make("dt", {}, word("because")), said("dd", plan.error.message),
    make("dt", {}, word("fix")), isListed && plan.error.code === "gpu-not-driven" ? make("dd", {}, word("pasteListed")) : said("dd", plan.error.fix));
}

function versions(plan) {
  const {have, need} = plan.driver;
  const rows = [
    [titleOf(plan.framework.name), plan.framework.version + (plan.wheel_tag ? `+${plan.wheel_tag}` : "")],
    ["CUDA", plan.cuda],
    ["cuDNN", plan.cudnn || word("unknown")],
    ["NCCL", plan.nccl || word("unknown")],
    ["Python", plan.python],
    [word("runs"), plan.gpus.map(gpu => gpu.runs).join(", ")],
    [word("driver"), have ? word("needs", {have, need}) : word("minimum", {need}), "wider"],
    [word("base"), plan.base.reference, "wider"],
    [word("from"), plan.index, "wider"],
  ];
  return make("dl", {class: "facts versions"},
    rows.map(([name, value, wider]) => make("div", {class: wider}, make("dt", {}, name), make("dd", {}, value))));
}

function commands(plan) {
  const {build, run, uv} = plan.commands;
  return make("section", {}, make("h3", {}, word("commands")),
    command(word("command_build"), build, "command-build"),
    command(word("command_run"), run, "command-run"),
    command(word("command_uv"), uv.join("\n"), "command-uv"));
}

function commandFor(question) {
  return make("section", {},
    command(word("command_plan"), planCommand(question), "command-plan"),
    make("p", {}, copyButton(() => location.href, word("share"), word("share"))));
}

function warnings(plan) {
  return listed("warnings", plan.warnings.map(one =>
    said("li", one.message, make("br"), make("span", {class: "help"}, `fix: ${one.fix}`))));
}

function alternatives(plan, question) {
  return listed("alternatives", plan.alternatives.map(one => {
    const tag = one.wheel_tag ? ` (${one.wheel_tag})` : "";
    const name = `${titleOf(question.framework)} ${one.framework_version}${tag}, CUDA ${one.cuda}`;
    // The page has no question for a given release: some have no address here.
    const address = [question.python, null].map(python => ({...question, cuda: one.cuda, python}))
      .find(asked => planFor(asked)?.framework.version === one.framework_version);
    return make("li", {}, address ? make("a", {href: addressOf(address)}, name) : name, said("span", `: ${one.why}`));
  }));
}

function listed(title, items) {
  return items.length ? make("section", {class: title}, make("h3", {}, word(title)), make("ul", {}, items)) : "";
}

function source(text) {
  return text ? make("details", {class: "source"}, make("summary", {}, word("source")), ...sourceOf(text)) : "";
}
