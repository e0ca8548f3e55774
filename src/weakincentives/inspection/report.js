"use strict";
// Shows the runs whose data stands in script tags. Texts reach the page as text nodes alone.

const data = (id) => JSON.parse(document.getElementById(id).textContent);
const {runs, comparison} = data("index");
const LONGEST = 20000; // characters of a text that are shown at once
const MARKS = {full: "●", summary: "◐", closed: "○", hidden: "·"};
const STATES = {full: "full", summary: "summarized", closed: "closed", hidden: "hidden"};

/** Makes an element: attributes, then children, which are elements or texts. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== ""));
  return element;
}

const count = (number) => number.toLocaleString("en");
const seconds = (number) => number < 0.1 ? `${(1000 * number).toFixed(1)} ms` : `${number.toFixed(number < 10 ? 2 : 1)} s`;
const dollars = (number) => (number === null ? "" : `$${number.toFixed(4)}`);
const sum = (items, name) => items.reduce((total, item) => total + item[name], 0);
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** A text of any length: the beginning, and a button for all of it. */
function block(text, kind = "") {
  const pre = make("pre", {class: kind}, text.slice(0, LONGEST));
  if (text.length <= LONGEST) return pre;
  const show = () => { pre.textContent = text; more.remove(); };
  const more = make("button", {class: "more", onclick: show}, `Show all ${count(text.length)} characters`);
  return make("div", {}, pre, more);
}

function pretty(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 1);
}

// --------------------------------------------------------------------------------- turns

const turns = new Map(); // by key, those that are on the page: {run, number, entry, details}
const key = (run, number) => `${run}-${number}`;
let chosen = null;

function turnRow(run, number) {
  const entry = runs[run].turns[number];
  const calls = entry.calls.map((name) => make("span", {class: "chip"}, name));
  const fresh = entry.input - entry.cached;
  const numbers = [`${count(fresh)} + ${count(entry.cached)} → ${count(entry.output)}`,
    seconds(entry.seconds + entry.call_seconds), dollars(entry.cost)].filter(Boolean).join(" · ");
  const summary = make("summary", {title: entry.line},
    make("b", {}, `Turn ${entry.number}`), calls,
    entry.failed ? make("span", {class: "chip bad"}, `${entry.failed} failed`) : null,
    entry.error ? make("span", {class: "chip bad"}, "error") : null,
    entry.rejected ? make("span", {class: "chip bad"}, "rejected") : null,
    make("span", {class: "quiet", title: "fresh + cached input → output tokens"}, numbers));
  const details = make("details", {class: "turn"}, summary);
  const turn = {run, number, entry, details};
  turns.set(key(run, number), turn);
  details.addEventListener("toggle", () => { if (details.open) fill(turn); });
  summary.addEventListener("click", () => choose(turn, false));
  summary.addEventListener("focus", () => { if (chosen !== turn) choose(turn, false); });
  return details;
}

function fill(turn) {
  if (turn.details.children.length > 1) return;
  const body = data(`t${turn.run}-${turn.number}`);
  const {rejected} = turn.entry;
  turn.details.append(make("div", {class: rejected ? "body rejected" : "body"},
    body.requests.map((request) => make("p", {class: "quiet"},
      [request.line, request.model || request.adapter].filter(Boolean).join(" · "))),
    body.text ? block(body.text, "said") : null,
    body.steps.map((step) => stepView(turn.run, step))));
}

function openAll() {
  for (const turn of turns.values()) { // which grows by the turns inside
    turn.details.open = true;
    fill(turn);
  }
}

function stepView(run, step) {
  const inner = (step.evaluations || []).map((number) => make("div", {class: "inner"}, evaluationView(run, number)));
  if (step.event !== "ToolInvoked") return make("div", {}, make("p", {class: "quiet"}, step.line.trim()), inner);
  const chip = make("span", {class: step.success ? "chip good" : "chip bad"}, step.success ? "ok" : "failed");
  const labels = [step.replayed ? "answer repeated" : "", seconds(step.seconds || 0)].filter(Boolean).join(" · ");
  return make("section", {class: step.success ? "call" : "call failed", "aria-label": `call of ${step.name}`},
    make("div", {class: "name"}, make("b", {}, step.name), " ", chip, " ", make("small", {}, labels)),
    block(step.arguments || pretty(step.params)),
    inner, make("div", {class: "label"}, "answer"), block(step.content), mediaView(step.media));
}

/** The pictures whose data are on the page, and what is known of other media. */
function mediaView(media) {
  if (!media.length) return null;
  return make("div", {class: "media"}, media.map(({name, mime, size, digest, url}) => {
    const picture = digest && document.getElementById(`m-${digest}`);
    const facts = [name || url, mime, size ? `${count(size)} bytes` : ""].filter(Boolean).join(" · ");
    return make("figure", {}, picture ? make("img", {src: JSON.parse(picture.textContent), alt: name || "picture"}) : null,
      make("figcaption", {class: "quiet"}, facts));
  }));
}

function folded(title, view) {
  const details = make("details", {}, make("summary", {class: "quiet"}, title));
  details.addEventListener("toggle", () => { if (details.children.length === 1) details.append(view()); });
  return details;
}

function evaluationView(run, number) {
  const entry = runs[run].evaluations[number];
  const body = (name) => () => block(data(`e${run}-${number}`)[name]);
  return make("article", {class: "evaluation"},
    make("div", {class: "lead"}, make("h3", {}, entry.line), make("small", {}, entry.at)),
    folded("Prompt", body("text")),
    entry.changes ? folded("Changed sections", body("changes")) : null,
    entry.message ? make("div", {class: "message"}, make("small", {}, "User"), make("br"), entry.message) : null,
    entry.message.length > 2000 ? folded("Whole message", body("message")) : null,
    mediaView(entry.media),
    entry.steps.map((line) => make("p", {class: "quiet"}, line)),
    entry.turns.map((turn) => turnRow(run, turn)),
    entry.unfinished.map((inner) => make("div", {class: "inner"}, evaluationView(run, inner))));
}

// --------------------------------------------------------------------------------- what is beside them

function treeView(turn) {
  const rows = runs[turn.run].trees[turn.entry.tree];
  const size = (row) => row.visibility === "hidden" ? 0 : row.size + row.tool_size;
  const total = rows.reduce((all, row) => all + size(row), 0) || 1;
  const largest = Math.max(1, ...rows.map(size));
  return rows.map((row) => {
    const depth = row.path.split(".").length - 1;
    const {cost, input} = turn.entry;
    const tokens = Math.ceil(size(row) / 4);
    const price = cost === null || !input ? "" : ` · ~$${(cost * Math.min(1, tokens / input)).toFixed(5)}`;
    const bar = make("span", {class: "size"});
    bar.style.width = `${100 * size(row) / largest}%`;
    const item = make("li", {class: row.visibility},
      make("div", {class: "name"}, make("span", {class: "mark", "aria-hidden": "true"}, MARKS[row.visibility] || "?"),
        make("b", {}, row.path.split(".").pop()), make("small", {}, STATES[row.visibility] || row.visibility)),
      size(row) ? make("small", {title: `${Math.round(100 * size(row) / total)} % of the prompt`},
        `${count(size(row))} characters · ~${plural(tokens, "token")}${price}`) : null,
      row.opened_by ? make("small", {}, `opened by ${row.opened_by}`) : null,
      size(row) ? bar : null);
    item.style.paddingLeft = `${14 * depth}px`;
    return item;
  });
}

function diffView(text) {
  const pre = make("pre", {class: "diff"});
  const kinds = {"+": "added", "-": "removed"};
  for (const line of text.slice(0, 10 * LONGEST).split("\n")) {
    const kind = /^(\+\+\+|---|@@)/.test(line) ? "place" : kinds[line[0]] || "same";
    pre.append(make("span", {class: kind}, line || " "));
  }
  return pre;
}

function differenceView(difference) {
  const side = (name, sign, kind) => name in difference
    ? make("span", {class: kind}, `${sign} ${pretty(difference[name]).slice(0, LONGEST)}`) : null;
  return [make("div", {class: "path"}, difference.path.map((key) => typeof key === "number" ? `[${key}]` : key).join(" › ")),
    make("pre", {}, side("before", "-", "removed"), side("after", "+", "added"))];
}

function changeViews(steps) {
  return steps.filter((step) => Object.keys(step.changes || {}).length).map((step) => make("div", {class: "change"},
    make("h3", {}, step.name, step.success ? null : make("span", {class: "chip bad"}, "rolled back")),
    Object.entries(step.changes.state || {}).map(([name, differences]) =>
      [make("p", {class: "quiet"}, name), ...differences.slice(0, 200).flatMap(differenceView)]).flat(),
    Object.entries(step.changes.files || {}).map(([name, diff]) => [make("p", {class: "quiet"}, name), diffView(diff)]).flat(),
    Object.entries(step.changes).filter(([kind]) => kind !== "state" && kind !== "files")
      .map(([kind, values]) => [make("p", {class: "quiet"}, kind), block(pretty(values))]).flat()));
}

function timeViews(body) {
  const parts = [...body.requests.map((request) => [request.model || request.adapter || "request", request.seconds, ""]),
    ...body.steps.filter((step) => step.event === "ToolInvoked").map((step) => [step.name, step.seconds || 0, "tool"])];
  const longest = Math.max(...parts.map((part) => part[1]), 0.0001);
  return make("div", {class: "times"}, parts.flatMap(([name, time, kind]) => {
    const bar = make("i", {class: kind});
    bar.style.width = `${100 * time / longest}%`;
    return [make("span", {}, name), bar, make("span", {}, seconds(time))];
  }));
}

// --------------------------------------------------------------------------------- choosing

/** Opens the turn and those around it, so that it is on the page; returns it. */
function reach(run, number) {
  const outer = runs[run].evaluations[runs[run].turns[number].evaluation].turn;
  if (outer !== null) {
    const around = reach(run, outer);
    around.details.open = true;
    fill(around);
  }
  return turns.get(key(run, number));
}

function choose(turn, focus = true) {
  for (const [old, mark] of [[chosen, false], [turn, true]])
    for (const element of old ? [old.details, bars[old.run][old.number]] : []) {
      if (mark) element.setAttribute("aria-current", "true"); else element.removeAttribute("aria-current");
      if (element.tagName === "BUTTON") element.tabIndex = mark ? 0 : -1;
    }
  chosen = turn;
  const body = data(`t${turn.run}-${turn.number}`);
  const where = runs.length > 1 ? `turn ${turn.entry.number} of ${runs[turn.run].name}` : `turn ${turn.entry.number}`;
  tree.replaceChildren(make("h2", {}, `Sections at ${where}`), make("ul", {class: "tree"}, treeView(turn)));
  const changed = changeViews(body.steps);
  changes.replaceChildren(make("h2", {}, `Changes in ${where}`),
    ...(changed.length ? changed : [make("p", {class: "quiet"}, "Its calls changed nothing that the log knows.")]),
    make("h2", {}, "Time"), timeViews(body));
  const strip = bars[turn.run][turn.number].parentElement;
  if (strip) strip.scrollLeft = bars[turn.run][turn.number].offsetLeft - strip.offsetLeft - strip.clientWidth / 2;
  if (!focus) return;
  const summary = turn.details.firstChild;
  summary.scrollIntoView({block: "nearest"});
  summary.focus({preventScroll: true});
}

function move(step) {
  const places = runs.flatMap((run, number) => run.turns.map((_, turn) => [number, turn]));
  const at = chosen ? places.findIndex(([run, number]) => run === chosen.run && number === chosen.number) : -step;
  const next = places[Math.min(places.length - 1, Math.max(0, at + step))];
  if (next) choose(reach(...next));
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const here = document.activeElement;
  const roams = here === document.body || here.matches(".turn > summary, .bars button");
  const steps = {j: 1, k: -1, ...(roams ? {ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1} : {})};
  if (event.key in steps) { event.preventDefault(); move(steps[event.key]); }
  else if (event.key === "Enter" && here === document.body && chosen) chosen.details.open = !chosen.details.open;
});
addEventListener("beforeprint", () => { if (turns.size <= 300) openAll(); });

// --------------------------------------------------------------------------------- the page

function barsView(run, number) {
  const highest = Math.max(1, ...runs.flatMap((each) => each.turns.map((turn) => turn.input + turn.output)));
  return run.turns.map((entry, turn) => {
    const parts = {output: entry.output, fresh: entry.input - entry.cached, cached: entry.cached};
    const label = `Turn ${entry.number}: ${count(parts.fresh)} fresh, ${count(parts.cached)} cached, ${count(parts.output)} written`;
    const nested = run.evaluations[entry.evaluation].turn !== null;
    const bar = make("button", {class: nested ? "nested" : "", tabindex: "-1", title: label, "aria-label": label,
      onclick: () => choose(reach(number, turn))});
    if (entry.error && !entry.input) parts.error = highest;
    for (const [name, tokens] of Object.entries(parts)) {
      const part = make("i", {class: name});
      part.style.height = `${92 * tokens / highest}%`;
      if (tokens) bar.append(part);
    }
    return bar;
  });
}

function sums(run) {
  const {turns: all} = run;
  const costs = all.map((turn) => turn.cost);
  const known = all.length && !costs.includes(null);
  const facts = [[plural(all.length, "request"), ""], [count(sum(all, "input") - sum(all, "cached")), "fresh tokens"],
    [count(sum(all, "cached")), "cached"], [count(sum(all, "output")), "written"],
    [count(all.reduce((total, turn) => total + turn.calls.length, 0)), "calls"], [count(sum(all, "failed")), "failed"],
    [seconds(sum(all, "seconds")), "waiting for models"], [known ? dollars(sum(all, "cost")) : "", "cost"]];
  return make("dl", {class: "sums"}, facts.filter(([value]) => value).map(([value, name]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

const bars = runs.map(barsView);
const legend = [["fresh", "fresh input"], ["cached", "cached input"], ["output", "output"]].map(([kind, name]) =>
  make("span", {class: "quiet"}, make("i", {class: kind}), name));
const tree = make("nav", {class: "panel side", "aria-label": "sections of the chosen turn"});
const changes = make("aside", {class: "panel side changes", "aria-label": "changes and time of the chosen turn"});
const columns = runs.map((run, number) => make("section", {class: "panel", "aria-label": `turns of ${run.name}`},
  runs.length > 1 ? make("h2", {}, run.name) : null,
  run.top.map((evaluation) => evaluationView(number, evaluation)),
  run.notes.map((note) => make("p", {class: "quiet"}, note))));
const compared = comparison && make("section", {class: "panel timeline compared", "aria-label": "comparison"},
  make("table", {}, make("thead", {}, make("tr", {}, ["", ...runs.map((run) => run.name)].map((name) => make("th", {scope: "col"}, name)))),
    make("tbody", {}, comparison.rows.map(([name, ...values]) => make("tr", {}, make("th", {scope: "row"}, name),
      values.map((value) => make("td", {}, value === null ? "unknown" : value.toLocaleString("en", {maximumFractionDigits: 4}))))))),
  comparison.prompt ? make("div", {}, make("h2", {}, "How the first prompts differ"), diffView(comparison.prompt)) : make("p", {class: "quiet"}, "The first prompts are the same."));

if (runs.length === 1) document.getElementById("head").append(sums(runs[0]));
document.getElementById("main").append(
  compared || "",
  make("section", {class: "panel timeline", "aria-label": "tokens of each request"},
    make("span", {class: "quiet keys"}, "j and k or arrows: next, previous turn · Enter: open"),
    make("div", {class: "legend"}, legend), bars.map((run) => make("div", {class: "bars"}, run))),
  make("div", {class: runs.length > 1 ? "columns two" : "columns"}, tree, columns, changes));
if (turns.size <= 12) openAll();
const first = turns.values().next().value;
if (first) choose(first, false);
