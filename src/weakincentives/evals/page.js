// Shows experiments: verdicts, scores, and a table of cases whose runs open in a dialog.

const {title, facts, notes, left_out, scores, variants, cases, runs, comparisons} = data("index");
const [HEAD, TAIL] = data("frame");
const ROWS_AT_ONCE = 200;
const SANDBOX = "allow-scripts allow-popups allow-popups-to-escape-sandbox"; // for links
const LARGEST_DIFF = 4e6; // pairs of words or lines
const OUTCOMES = {
  answered: "answered",
  failed: "failed",
  provider: "provider failure",
  unrun: "not run",
};
const isWrong = (run) => run[4].some((score) => score && score[0] === false);
const hasError = (run) => run[4].some((score) => typeof score === "string" && score);
const some = (test) => (number) => byCase[number].flat().some((run) => test(runs[run]));
const ended = (outcome) => [OUTCOMES[outcome], some((run) => run[3] === outcome)];
const changes = (number, kind) => cases[number][kind === "worse" ? 3 : 4].length;
const FILTERS = {
  all: ["all cases", () => true],
  worse: ["worse", (number) => changes(number, "worse")],
  better: ["better", (number) => changes(number, "better")],
  wrong: ["a score is false", some(isWrong)],
  failed: ended("failed"),
  provider: ended("provider"),
  unrun: ended("unrun"),
  error: ["score error", some(hasError)],
};
const SORTS = {
  order: ["as in the dataset", () => 0],
  worse: ["worse first", (one) => changes(one, "better") - 1e6 * changes(one, "worse")],
  better: ["better first", (one) => changes(one, "worse") - 1e6 * changes(one, "better")],
};

const byCase = cases.map(() => variants.map(() => []));
runs.forEach(([variant, number], run) => byCase[number][variant].push(run));
const nameOf = ([variant, , repeat]) => `${variants[variant].name}, repeat ${repeat + 1}`;

/** A score as a word, or as a sign; a text instead of a value and its reason is an error. */
function wordOf(score, [yes, no, none] = ["true", "false", "not applicable"]) {
  if (typeof score === "string") return score ? "error" : "";
  const [value] = score;
  if (typeof value === "number") return String(Number(value.toPrecision(4)));
  return typeof value === "string" ? value : value === null ? none : value ? yes : no;
}

function runButton(run) {
  const [, , , outcome, values] = runs[run];
  const isAnswered = outcome === "answered";
  const signs = values.map((score) => wordOf(score, "✓✗–")).filter(Boolean).join(" ");
  const said = scores.map((name, index) => `${name}: ${wordOf(values[index]) || "no score"}`);
  const label = [nameOf(runs[run]), OUTCOMES[outcome], ...(signs ? said : [])].join("; ");
  const isOdd = !isAnswered || hasError(runs[run]);
  const kind = isWrong(runs[run]) ? "bad" : isOdd ? "odd" : signs.includes("✓") ? "good" : "";
  const text = isAnswered ? signs || "answered" : [OUTCOMES[outcome], signs].join(" ");
  const open = () => showRun(run);
  const attributes = {class: `chip ${kind}`, title: label, "aria-label": label, onclick: open};
  return make("button", attributes, text);
}

// ------------------------------------------------------------ verdicts and scores

/** A mark for a value and its interval on a scale from `low` to `high`. */
function intervalMark(value, interval, low, high, kind = "") {
  const inside = (number) => Math.min(high, Math.max(low, number));
  const place = (number) => `${(100 * (inside(number) - low)) / (high - low)}%`;
  const mark = make("span", {class: `interval ${kind}`, "aria-hidden": "true"});
  const add = (className, from, to) => {
    const part = make("i", {class: className});
    part.style.left = place(from);
    if (to !== undefined) part.style.width = `calc(${place(to)} - ${place(from)})`;
    mark.append(part);
  };
  if (low < 0 && high > 0) add("zero", 0);
  if (interval) add("range", ...interval);
  add("dot", value);
  return mark;
}

function comparisonView({head, scores: found}) {
  const rows = found.map(({verdict, words, text, difference, interval}) => {
    const most = 1.1 * Math.max(1e-9, ...[difference || 0, ...(interval || [])].map(Math.abs));
    const hasMark = typeof difference === "number";
    return make(
      "li",
      {},
      make("b", {class: `verdict ${verdict}`}, words),
      hasMark ? intervalMark(difference, interval, -most, most, verdict) : null,
      make("small", {}, text),
    );
  });
  return make(
    "section",
    {class: "panel verdicts", "aria-label": "comparison"},
    make("small", {}, head),
    make("ul", {}, rows),
  );
}

function scoreView(score) {
  if (!score) return make("td", {}, "–");
  const {text, mean, interval, bounds, lower} = score;
  return make(
    "td",
    {},
    bounds ? intervalMark(mean, interval, Math.min(...bounds), Math.max(...bounds)) : null,
    text,
    lower ? make("small", {}, " (lower is better)") : null,
  );
}

const head = (...content) => make("th", {scope: "col"}, ...content);
const row = (name, cells) => make("tr", {}, make("th", {scope: "row"}, name), cells);
const table = (kind, heads, rows) =>
  make("table", {class: kind}, make("thead", {}, make("tr", {}, heads)), rows);
const columnHeads = (first, note = "") => [
  head(first, make("small", {}, note)),
  ...variants.map(({name, settings}) => head(name, make("small", {}, settings.join(", ")))),
];
const scoreRow = (name, index) =>
  row(name, variants.map((variant) => scoreView(variant.scores[index])));
const summaries = make(
  "section",
  {class: "panel scroll", "aria-label": "scores"},
  table("scores", columnHeads("Score"), make("tbody", {}, scores.map(scoreRow))),
);

// ------------------------------------------------------------ the table of cases

const select = (label, options) =>
  make(
    "select",
    {"aria-label": label, onchange: () => fillTable()},
    Object.entries(options).map(([value, [name]]) => make("option", {value}, name)),
  );
const hasChanges = cases.some((one) => one[3].length || one[4].length);
const filter = select("Outcome", FILTERS);
const sort = select("Order", SORTS);
const search = make("input", {
  type: "search",
  placeholder: "Case, reason or error",
  "aria-label": "Filter by text",
  oninput: () => fillTable(),
});
const shown = make("output", {class: "quiet"});
const body = make("tbody", {class: "cases"});
const more = make("button", {class: "more", onclick: () => addRows()}, "Show more cases");
let rest = [];

const textsOf = (number) =>
  JSON.stringify([cases[number], byCase[number].flat().map((run) => runs[run].slice(3))])
    .toLowerCase();

function fillTable() {
  const test = FILTERS[filter.value][1];
  const words = JSON.stringify(search.value.toLowerCase()).slice(1, -1);
  const found = [...cases.keys()].filter(
    (number) => test(number) && (!words || textsOf(number).includes(words)),
  );
  const rank = SORTS[sort.value][1];
  rest = found.sort((one, other) => rank(one) - rank(other) || one - other);
  shown.textContent = `${count(found.length)} of ${plural(cases.length, "case")}`;
  body.replaceChildren();
  addRows();
}

function addRows() {
  body.append(...rest.splice(0, ROWS_AT_ONCE).map(caseRow));
  more.hidden = !rest.length;
}

function caseRow(number) {
  const [id, cluster, source, worse, better] = cases[number];
  const change = (kind, names, word) =>
    names.length ? [" ", make("span", {class: `chip ${kind}`, title: names.join(", ")}, word)] : [];
  const changes = [...change("bad", worse, "worse"), ...change("good", better, "better")];
  const title = make("b", {title: source || null}, id);
  const cells = byCase[number].map((list) =>
    make("td", {}, list.flatMap((run) => [runButton(run), " "])),
  );
  return row([title, make("small", {}, ` ${cluster}`), ...changes], cells);
}

document.addEventListener("keydown", (event) => {
  const here = document.activeElement;
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
  if (event.key === "/" && here !== search) search.focus();
  else if (event.key.startsWith("Arrow") && here.matches(".cases button")) {
    const inRow = here.closest("tr");
    const place = [...inRow.querySelectorAll("button")].indexOf(here);
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key] || 0;
    const rows = {ArrowDown: inRow.nextElementSibling, ArrowUp: inRow.previousElementSibling};
    const target = event.key in rows ? rows[event.key] : inRow;
    target?.querySelectorAll("button")[place + step]?.focus();
  } else return;
  event.preventDefault();
});

// ------------------------------------------------------------ runs

const dialog = make("dialog", {"aria-label": "run"});

/** Two lists' items, each with whether it differs: whether the other list lacks it. */
function marked(one, other) {
  let start = 0;
  let end = 0;
  const least = Math.min(one.length, other.length);
  while (start < least && one[start] === other[start]) start += 1;
  while (end < least - start && one.at(-1 - end) === other.at(-1 - end)) end += 1;
  const [a, b] = [one, other].map((list) => list.slice(start, list.length - end));
  const kept = [one, other].map((list) => list.map((_, i) => i < start || i >= list.length - end));
  if (a.length * b.length <= LARGEST_DIFF) {
    const best = Array.from({length: a.length + 1}, () => new Uint16Array(b.length + 1));
    for (let i = a.length - 1; i >= 0; i -= 1)
      for (let j = b.length - 1; j >= 0; j -= 1)
        best[i][j] =
          a[i] === b[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
    for (let i = 0, j = 0; i < a.length && j < b.length; )
      if (a[i] === b[j]) kept[0][start + i++] = kept[1][start + j++] = true;
      else if (best[i + 1][j] >= best[i][j + 1]) i += 1;
      else j += 1;
  }
  return [one, other].map((list, side) => list.map((item, i) => [item, !kept[side][i]]));
}

const wordsOf = (text) => text.slice(0, LONGEST).match(/\s+|[^\s]+/g) || [];

function outputView(pieces) {
  const parts = pieces.map(([text, differs]) => (differs ? make("mark", {}, text) : text));
  return make("pre", {class: "said"}, parts);
}

const storedRun = (run) => (document.getElementById(`run-${run}`) ? data(`run-${run}`) : null);
const outputOf = (stored) => stored?.[`t0-${stored.index.runs[0].turns.length - 1}`]?.text || "";

/** A report's page for a frame; the ids of the second run's data get its number. */
function reportOf(chosen, stored) {
  const all = stored.map(({index}, number) => {
    return {...index.runs[0], name: nameOf(runs[chosen[number]])};
  });
  const tag = (id, value) => {
    const text = JSON.stringify(value).replaceAll("<", "\\u003c");
    return `<script type="application/json" id="${id}">${text}<\/script>\n`;
  };
  const bodies = stored.flatMap((one, number) =>
    Object.keys(one)
      .filter((id) => /^[et]0-\d+$/.test(id))
      .map((id) => tag(id.replace("0", number), one[id])),
  );
  const comparison = stored[1] ? comparedRuns(all, stored) : null;
  return HEAD + bodies.join("") + tag("index", {runs: all, comparison}) + TAIL;
}

function comparedRuns(all, stored) {
  const prompts = stored.map((one) => (one["e0-0"]?.text || "").split("\n"));
  const [a, b] = marked(...prompts);
  const lines = [...a.map((line) => ["-", ...line]), ...b.map((line) => ["+", ...line])];
  const row = (title, total) => [title, ...all.map(({turns}) => total(turns))];
  const rows = [
    row("requests", (turns) => turns.filter((turn) => turn.number).length),
    row("calls", (turns) => turns.flatMap((turn) => turn.calls).length),
    row("input tokens", (turns) => sum(turns, "input")),
    row("output tokens", (turns) => sum(turns, "output")),
    row("failed calls", (turns) => sum(turns, "failed")),
  ];
  const prompt = lines.filter(([, , differs]) => differs).map(([sign, line]) => sign + line);
  return {rows, prompt: prompt.join("\n")};
}

/** Outcome, scores and reasons of one run or two, with a mark where they differ. */
function factsTable(chosen, stored) {
  const markedRow = (name, cells) => {
    const differs = cells.length > 1 && cells[0][0] !== cells[1][0];
    const cellOf = ([text, reason]) => {
      const value = make(differs ? "mark" : "span", {}, text);
      return make("td", {}, value, reason ? block(reason, "said quiet") : "");
    };
    return row(name, cells.map(cellOf));
  };
  const scoreOf = (run, number, index) => {
    const score = runs[run][4][index];
    const known = stored[number]?.texts.reasons[scores[index]];
    const reason = typeof score === "string" ? score : score[1];
    return [wordOf(score) || "no score", known || reason];
  };
  const outcomes = chosen.map((run, number) => [
    OUTCOMES[runs[run][3]],
    stored[number]?.texts.error || runs[run][5],
  ]);
  const rows = scores.map((name, index) =>
    markedRow(name, chosen.map((run, number) => scoreOf(run, number, index))),
  );
  const heads = [head("Run"), ...chosen.map((run) => head(nameOf(runs[run])))];
  return table("facts", heads, make("tbody", {}, [markedRow("outcome", outcomes), ...rows]));
}

function showRun(run, other = null) {
  const chosen = other === null ? [run] : [run, other];
  const stored = chosen.map(storedRun);
  const [id] = cases[runs[run][1]];
  const others = byCase[runs[run][1]].flat().filter((one) => one !== run);
  const compare = make(
    "select",
    {
      "aria-label": "Compare with",
      onchange: () => showRun(run, compare.value ? Number(compare.value) : null),
    },
    make("option", {value: ""}, "compare with…"),
    others.map((one) =>
      make("option", {value: one, selected: one === other ? "" : null}, nameOf(runs[one])),
    ),
  );
  const outputs = stored.map((one) => wordsOf(outputOf(one)));
  const pieces = outputs[1] ? marked(...outputs) : [outputs[0].map((word) => [word, false])];
  const known = stored.filter(Boolean);
  const frame = make("iframe", {title: `report of ${id}`, sandbox: SANDBOX});
  if (known.length === stored.length) frame.srcdoc = reportOf(chosen, stored);
  dialog.replaceChildren(
    make(
      "header",
      {},
      make("h2", {}, id),
      others.length ? compare : null,
      make("button", {onclick: () => dialog.close(), "aria-label": "Close"}, "Close"),
    ),
    make("div", {class: "scroll"}, factsTable(chosen, stored)),
    known.length ? make("h2", {}, "Output") : null,
    known.length ? make("div", {class: "outputs"}, pieces.map(outputView)) : null,
    known.length === stored.length
      ? frame
      : make("p", {class: "quiet"}, "This page does not have the report. ", left_out),
  );
  dialog.setAttribute("aria-label", id);
  if (!dialog.open) dialog.showModal();
}

// ------------------------------------------------------------ the page

const paragraphs = (texts) =>
  texts.filter(Boolean).map((text) => make("p", {class: "quiet"}, text));
document.getElementById("head").append(...paragraphs(facts));
if (hasChanges) sort.value = "worse";
document.getElementById("main").append(
  ...comparisons.map(comparisonView),
  summaries,
  ...paragraphs([...notes, left_out]),
  make("div", {class: "tools", role: "search"}, search, filter, sort, shown),
  make("div", {class: "panel scroll"}, table("", columnHeads("Case", scores.join(", ")), body)),
  more,
  dialog,
);
fillTable();
