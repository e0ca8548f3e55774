// Shows the runs whose data is in script tags. Texts are added only as text nodes, never as HTML.

const {runs, comparison} = data("index");
const ROWS = 6; // for calls that run concurrently
const CHUNK = 200; // turns or evaluations that are added together when scrolled near
const WINDOW = 400; // bars shown in the timeline
const NARROW = "(max-width: 1000px)"; // the same as in report.css
const MARKS = {full: "●", summary: "◐", closed: "○", hidden: "·"};
const DECISIONS = {approve: "approved", deny: "denied", replace: "other arguments"};
const ENDS = {
  limit: "Stopped by a limit",
  failed: "Failed",
  cancelled: "Cancelled",
  suspended: "Waiting for approval",
  cut: "The log ends before this evaluation does",
};
const STATES = {full: "full", summary: "summarized", closed: "closed", hidden: "hidden"};

// ------------------------------------------------------------ turns

const turns = new Map(); // turns on the page, by key: {run, number, entry, details}
const key = (run, number) => `${run}-${number}`;
let chosen = null;

const shows = new Map(); // by "t" or "e" and key: adds the turn or evaluation to the page
const observer = new IntersectionObserver(
  (entries) => {
    for (const {isIntersecting, target} of entries) if (isIntersecting) target.show();
  },
  {rootMargin: "1000px"},
);

/** Views of many turns or evaluations: the first chunk immediately, others when scrolled near. */
function chunked(kind, run, numbers, view) {
  const chunks = [];
  for (let start = 0; start < numbers.length; start += CHUNK) {
    const part = numbers.slice(start, start + CHUNK);
    const chunk = make("div");
    chunk.show = () => {
      observer.unobserve(chunk);
      if (!chunk.children.length) chunk.append(...part.map((number) => view(run, number)));
      chunk.style.minHeight = "";
    };
    for (const number of part) shows.set(kind + key(run, number), chunk.show);
    if (!start) chunk.show();
    else {
      chunk.style.minHeight = `${40 * part.length}px`;
      observer.observe(chunk);
    }
    chunks.push(chunk);
  }
  return chunks;
}

/** A resumed run starts with the calls of an earlier request, in a turn without a number. */
function nameOf(entry) {
  return entry.number ? `Turn ${entry.number}` : "Turn before the first request";
}

function turnRow(run, number) {
  const entry = runs[run].turns[number];
  const calls = entry.calls.map((name) => make("span", {class: "chip"}, name));
  const cached = entry.cached ? ` (${count(entry.cached)} cached)` : "";
  const numbers = [
    entry.number ? `${count(entry.input)} in${cached}` : "",
    entry.number ? `${count(entry.output)} out` : "",
    seconds(entry.seconds + entry.call_seconds),
    entry.number ? dollars(entry.cost) : "",
  ]
    .filter(Boolean)
    .join(" · ");
  const summary = make(
    "summary",
    {title: entry.line},
    make("b", {}, nameOf(entry)),
    calls,
    entry.failed ? make("span", {class: "chip bad"}, `${entry.failed} failed`) : null,
    entry.error ? make("span", {class: "chip bad"}, "error") : null,
    entry.rejected ? make("span", {class: "chip bad"}, "rejected") : null,
    entry.decisions.map((decision) =>
      make(
        "span",
        {class: decision === "deny" ? "chip bad" : "chip good"},
        DECISIONS[decision] || decision,
      ),
    ),
    make("span", {class: "quiet", title: "input and output tokens, time, cost"}, numbers),
  );
  const details = make("details", {class: "turn"}, summary);
  const turn = {run, number, entry, details};
  turns.set(key(run, number), turn);
  details.addEventListener("toggle", () => {
    if (details.open) fill(turn);
  });
  summary.addEventListener("click", () => choose(turn, false));
  summary.addEventListener("focus", () => {
    if (chosen !== turn) choose(turn, false);
  });
  return details;
}

/** The view, or a note if the record was not written by `wink`, so that the page still works. */
function safely(view) {
  try {
    return view();
  } catch (error) {
    const words = `This record was not written by wink: ${error.message}`;
    return make("p", {class: "quiet"}, words);
  }
}

function fill(turn) {
  if (turn.details.children.length > 1) return;
  turn.details.append(safely(() => turnView(turn)));
}

function turnView(turn) {
  const body = data(`t${turn.run}-${turn.number}`);
  const {rejected} = turn.entry;
  const {reasoning, citations} = body.requests.at(-1) || {};
  return make(
    "div",
    {class: rejected ? "body rejected" : "body"},
    body.requests.map((request) => block(requestLine(request), "quiet said")),
    reasoning ? folded("Reasoning", () => block(reasoning)) : null,
    body.text ? jsonBlock(body.text, "said model") : null,
    (citations || []).map((citation) => sourceView(citation, body.text)),
    body.steps.map((step) => safely(() => stepView(turn.run, step))),
    inlineChanges(body.steps),
  );
}

/** A source, with a link if its URL is an HTTP or HTTPS URL, and the passage that cites it. */
function sourceView({url, title, source, start, end}, text) {
  const name = title || url || source || "source";
  const isLink = ["http", "https"].includes((url || "").split(":")[0].toLowerCase());
  const link = {href: url, rel: "noopener noreferrer", target: "_blank", title: url};
  // Positions count code points, but JavaScript counts UTF-16 code units.
  const passage = Number.isInteger(start) ? [...text].slice(start, end).join("") : "";
  return make(
    "p",
    {class: "source"},
    isLink ? make("a", link, name) : name,
    passage ? make("small", {}, ` · “${passage.slice(0, 200)}”`) : null,
  );
}

/** The model of a request and any unusual end; the row above shows the numbers. */
function requestLine({line, model, adapter, error, finish}) {
  const name = model || adapter;
  if (error) return [line, name].filter(Boolean).join(" · ");
  const isUsual = finish === "stop" || finish === "tool_calls";
  return [name, isUsual ? "" : finish].filter(Boolean).join(" · ");
}

function openAll() {
  for (const turn of turns.values()) {
    // opening a turn adds its nested turns
    turn.details.open = true;
    fill(turn);
  }
}

function stepView(run, step) {
  const inner = (step.evaluations || []).map((number) =>
    make("div", {class: "inner"}, evaluationView(run, number)),
  );
  if (step.event === "ApprovalDecided") return decisionView(step);
  if (step.event !== "ToolInvoked") {
    const previews = step.previews.map((preview) =>
      make("section", {class: "call", "aria-label": "pending call"}, diffView(preview)),
    );
    const line = step.event === "PromptExecuted" ? step.line.split(":")[0] : step.line.trim();
    return make("div", {}, block(line, "quiet said"), previews, inner);
  }
  const chip = make(
    "span",
    {class: step.success ? "chip good" : "chip bad"},
    step.success ? "ok" : "failed",
  );
  const labels = [step.replayed ? "answer repeated" : "", seconds(step.seconds || 0)]
    .filter(Boolean)
    .join(" · ");
  return make(
    "section",
    {class: step.success ? "call" : "call failed", "aria-label": `call of ${step.name}`},
    make(
      "div",
      {class: "name"},
      make("b", {}, step.name),
      " ",
      chip,
      " ",
      make("small", {}, labels),
    ),
    jsonBlock(step.arguments || pretty(step.params)),
    inner,
    make("div", {class: "label"}, "result"),
    jsonBlock(step.content),
    mediaView(step.media),
  );
}

/** The pictures on the page, and facts about other media. */
function mediaView(media) {
  if (!media.length) return null;
  return make(
    "div",
    {class: "media"},
    media.map(({name, mime, size, digest, url}) => {
      const picture = digest && document.getElementById(`m-${digest}`);
      const facts = [name || url, mime, size ? `${count(size)} bytes` : ""]
        .filter(Boolean)
        .join(" · ");
      return make(
        "figure",
        {},
        picture
          ? make("img", {src: JSON.parse(picture.textContent), alt: name || "picture"})
          : null,
        make("figcaption", {class: "quiet"}, facts),
      );
    }),
  );
}

function folded(title, view) {
  const details = make("details", {}, make("summary", {class: "quiet"}, title));
  details.addEventListener("toggle", () => {
    if (details.children.length === 1) details.append(view());
  });
  return details;
}

function evaluationView(run, number) {
  const entry = runs[run].evaluations[number];
  const body = (name) => () => block(data(`e${run}-${number}`)[name]);
  const [name, ...facts] = entry.line.split(": ");
  return make(
    "article",
    {class: "evaluation"},
    make(
      "div",
      {class: "lead"},
      make("h3", {}, name),
      make("small", {}, [facts.join(": "), entry.at].filter(Boolean).join(" · ")),
      entry.end ? [" ", make("span", {class: "chip bad"}, ENDS[entry.end] || entry.end)] : null,
    ),
    folded("Prompt", body("text")),
    entry.changes ? folded("Changed sections", body("changes")) : null,
    entry.message
      ? make("div", {class: "message"}, make("small", {}, "User"), make("br"), entry.message)
      : null,
    entry.message.length > 2000 ? folded("Full message", body("message")) : null,
    mediaView(entry.media),
    entry.steps.map((line) => make("p", {class: "quiet"}, line)),
    chunked("t", run, entry.turns, turnRow),
    entry.unfinished.map((inner) => make("div", {class: "inner"}, evaluationView(run, inner))),
  );
}

// ------------------------------------------------------------ choosing

/** Opens the parent turns, so that the turn is on the page; returns the turn. */
function reach(run, number) {
  const outer = runs[run].evaluations[runs[run].turns[number].evaluation].turn;
  if (outer !== null) {
    const around = reach(run, outer);
    around.details.open = true;
    fill(around);
  }
  shows.get(`e${key(run, runs[run].turns[number].evaluation)}`)?.();
  shows.get(`t${key(run, number)}`)();
  return turns.get(key(run, number));
}

/** Marks or unmarks the row and the bar of a turn as chosen. */
function mark(turn, isChosen) {
  const bar = barOf(turn, isChosen);
  if (bar) bar.tabIndex = isChosen ? 0 : -1;
  for (const element of [turn.details, bar]) {
    if (isChosen) element.setAttribute("aria-current", "true");
    else element?.removeAttribute("aria-current");
  }
}

/** Chooses a turn: shows its section tree, changes and times. */
function choose(turn, focus = true) {
  if (chosen) mark(chosen, false);
  mark(turn, true);
  chosen = turn;
  const body = data(`t${turn.run}-${turn.number}`);
  const name = nameOf(turn.entry).replace("Turn", "turn");
  const where = runs.length > 1 ? `${name} of ${runs[turn.run].name}` : name;
  const isOpen = tree.firstChild ? tree.firstChild.open : !matchMedia(NARROW).matches;
  tree.replaceChildren(
    make(
      "details",
      {open: isOpen ? "" : null},
      make("summary", {}, make("h2", {}, `Sections at ${where}`)),
      safely(() => make("ul", {class: "tree"}, treeView(turn))),
    ),
  );
  const changed = changeViews(body.steps);
  changes.replaceChildren(
    make("h2", {}, `Changes in ${where}`),
    ...(changed.length
      ? changed
      : [make("p", {class: "quiet"}, "The log shows no changes by its calls.")]),
    make("h2", {}, "Time"),
    safely(() => timeViews(body)),
  );
  const bar = barOf(turn),
    strip = bar.parentElement;
  strip.scrollLeft = bar.offsetLeft - strip.offsetLeft - strip.clientWidth / 2;
  if (!focus) return;
  const summary = turn.details.firstChild;
  summary.scrollIntoView({block: "nearest"});
  summary.focus({preventScroll: true});
}

function move(step) {
  if (!chosen) return;
  let run = chosen.run,
    number = chosen.number + step;
  if (number < 0 && run) number = runs[--run].turns.length - 1;
  else if (number === runs[run].turns.length && runs[run + 1]?.turns.length)
    [run, number] = [run + 1, 0];
  if (runs[run].turns[number]) choose(reach(run, number));
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const here = document.activeElement;
  const roams = here === document.body || here.matches(".turn > summary, .bars button");
  const steps = {
    j: 1,
    k: -1,
    ...(roams ? {ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1} : {}),
  };
  if (event.key in steps) {
    event.preventDefault();
    move(steps[event.key]);
  } else if (event.key === "Enter" && here === document.body && chosen)
    chosen.details.open = !chosen.details.open;
});
addEventListener("beforeprint", () => {
  if (turns.size <= 300) openAll();
});

// ------------------------------------------------------------ the page

const highest = runs
  .flatMap((run) => run.turns)
  .reduce((most, turn) => Math.max(most, turn.input + turn.output), 1);
const strips = runs.map((run) => ({
  first: 0,
  note: make("small"),
  bars: make("div", {class: "bars"}),
  spans: make("div", {class: "spans"}),
}));

/** The bar of a turn; if it is not on the page, draws that part of the timeline first. */
function barOf(turn, draw = true) {
  const strip = strips[turn.run];
  const isThere = () =>
    turn.number >= strip.first && turn.number < strip.first + strip.bars.children.length;
  if (!isThere() && draw) drawBars(turn.run, Math.max(0, turn.number - WINDOW / 2));
  return isThere() ? strip.bars.children[turn.number - strip.first] : null;
}

function drawBars(number, first) {
  const run = runs[number],
    strip = strips[number],
    last = Math.min(first + WINDOW, run.turns.length);
  strip.first = first;
  drawSpans(number, first, last);
  strip.note.textContent = [
    runs.length > 1 ? run.name : "",
    last - first < run.turns.length
      ? `requests ${count(first + 1)} to ${count(last)} of ${count(run.turns.length)}`
      : "",
  ]
    .filter(Boolean)
    .join(": ");
  strip.bars.replaceChildren(
    ...run.turns.slice(first, last).map((entry, index) => {
      const parts = {output: entry.output, fresh: entry.input - entry.cached, cached: entry.cached};
      const tokens = `${count(parts.fresh)} new, ${count(parts.cached)} cached`;
      const label = `${nameOf(entry)}: ${tokens}, ${count(parts.output)} output tokens`;
      const nested = run.evaluations[entry.evaluation].turn !== null;
      const bar = make("button", {
        class: nested ? "nested" : "",
        tabindex: "-1",
        title: label,
        "aria-label": label,
        onclick: () => choose(reach(number, first + index)),
      });
      if (entry.error && !entry.input) parts.error = highest;
      for (const [name, tokens] of Object.entries(parts)) {
        const part = make("i", {class: name});
        part.style.height = `${(92 * tokens) / highest}%`;
        if (tokens) bar.append(part);
      }
      return bar;
    }),
  );
}

/** The time spans of requests and calls on one scale; overlapping calls use different rows. */
function drawSpans(number, first, last) {
  const {turns: all} = runs[number];
  const spans = all
    .slice(first, last)
    .flatMap((entry, index) => entry.spans.map((span) => [first + index, ...span]));
  const start = spans.reduce((least, [, , , from]) => Math.min(least, from), Infinity);
  const end = spans.reduce((most, [, , , from, time]) => Math.max(most, from + time), start);
  const whole = end - start;
  if (!(whole > 0)) return;
  const ends = []; // of the rows; a span is placed in the first free row
  const lanes = make("div", {class: "lanes"});
  for (const [turn, kind, name, from, time] of spans.sort((one, other) => one[3] - other[3])) {
    const free = ends.findIndex((until) => until <= from);
    const row = free < 0 ? ends.length : free;
    if (row >= ROWS) continue;
    ends[row] = from + time;
    const bar = make("i", {
      class: kind === "tool" ? "tool" : "",
      title: `${nameOf(all[turn])}: ${name}, ${seconds(time)}`,
      onclick: () => choose(reach(number, turn)),
    });
    bar.style.left = `${(100 * (from - start)) / whole}%`;
    bar.style.width = `${(100 * time) / whole}%`;
    bar.style.top = `${9 * row}px`;
    lanes.append(bar);
  }
  lanes.style.height = `${9 * Math.min(ends.length, ROWS)}px`;
  const scale = [0, 0.25, 0.5, 0.75, 1].map((part) => make("span", {}, seconds(part * whole)));
  strips[number].spans.replaceChildren(lanes, make("div", {class: "scale"}, scale));
}

/** The prompt, model, date, end and answer of a run. */
function headView(run) {
  const {models, date, end, answer, prompts} = run.head;
  const facts = [models.join(", "), date && `${date} UTC`, run.name].filter(Boolean).join(" · ");
  const chip = make(
    "span",
    {class: end ? "chip bad" : "chip good"},
    end ? ENDS[end] || end : "Answered",
  );
  return [
    make("p", {class: "facts"}, prompts.length ? [chip, " "] : "", make("small", {}, facts)),
    answer
      ? make(
          "section",
          {class: "panel answer", "aria-label": "final answer"},
          make("h2", {}, "Answer"),
          jsonBlock(answer, "said"),
        )
      : null,
  ];
}

function sums(run) {
  const {turns: all} = run;
  const costs = all.map((turn) => turn.cost);
  const known = all.length && !costs.includes(null);
  const facts = [
    [plural(all.filter((turn) => turn.number).length, "request"), ""],
    [count(sum(all, "input") - sum(all, "cached")), "new input tokens"],
    [count(sum(all, "cached")), "cached"],
    [count(sum(all, "output")), "output"],
    [plural(all.reduce((total, turn) => total + turn.calls.length, 0), "call"), ""],
    [count(sum(all, "failed")), "failed"],
    [seconds(sum(all, "seconds")), "waiting for models"],
    [known ? dollars(sum(all, "cost")) : "", "cost"],
  ];
  return make(
    "dl",
    {class: "sums"},
    facts
      .filter(([value]) => value)
      .map(([value, name]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
  );
}

const legend = [
  ["fresh", "new input"],
  ["cached", "cached input"],
  ["output", "output"],
].map(([kind, name]) => make("span", {class: "quiet"}, make("i", {class: kind}), name));
legend.push(make("span", {class: "quiet"}, `tallest bar: ${plural(highest, "token")}`));
const tree = make("nav", {class: "panel side", "aria-label": "sections of the chosen turn"});
const changes = make("aside", {
  class: "panel side changes",
  "aria-label": "changes and time of the chosen turn",
});
const columns = runs.map((run, number) =>
  make(
    "section",
    {class: "panel", "aria-label": `turns of ${run.name}`},
    runs.length > 1 ? make("h2", {}, run.name) : null,
    chunked("e", number, run.top, evaluationView),
    run.notes.map((note) => make("p", {class: "quiet"}, note)),
  ),
);
const compared =
  comparison &&
  make(
    "section",
    {class: "panel timeline compared", "aria-label": "comparison"},
    make(
      "table",
      {},
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          ["", ...runs.map((run) => run.name)].map((name) => make("th", {scope: "col"}, name)),
        ),
      ),
      make(
        "tbody",
        {},
        comparison.rows.map(([name, ...values]) =>
          make(
            "tr",
            {},
            make("th", {scope: "row"}, name),
            values.map((value) =>
              make(
                "td",
                {},
                value === null ? "unknown" : value.toLocaleString("en", {maximumFractionDigits: 4}),
              ),
            ),
          ),
        ),
      ),
    ),
    comparison.prompt
      ? make("div", {}, make("h2", {}, "How the first prompts differ"), diffView(comparison.prompt))
      : make("p", {class: "quiet"}, "The first prompts are the same."),
  );

const append = (element, parts) => element.append(...parts.flat().filter(Boolean));
if (runs.length === 1)
  append(document.getElementById("head"), [...headView(runs[0]), sums(runs[0])]);
document
  .getElementById("main")
  .append(
    compared || "",
    make(
      "section",
      {class: "panel timeline", "aria-label": "tokens of each request"},
      make("span", {class: "quiet keys"}, "j and k or arrows: next, previous turn · Enter: open"),
      make("div", {class: "legend"}, legend),
      strips.flatMap((strip) => [strip.note, strip.bars, strip.spans]),
    ),
    make("div", {class: runs.length > 1 ? "columns two" : "columns"}, tree, columns, changes),
  );
runs.forEach((_, number) => drawBars(number, 0));
if (turns.size <= 12) openAll();
const first = turns.values().next().value;
if (first) choose(first, false);
