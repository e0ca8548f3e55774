// The views of one turn, shown by `report.js`: approvals, section tree, changes and times.

// A preview's line that names a change; a diff line that removes this text looks the same.
const CHANGE = /^- (create|change|remove) (state|file|directory|resource) /;

/** The preview of a call that needed approval, and the decision. */
function decisionView(step) {
  const denied = step.decision === "deny";
  const facts = [seconds(step.seconds || 0), step.reason].filter(Boolean).join(" · ");
  return make(
    "section",
    {class: denied ? "call failed" : "call", "aria-label": `decision on ${step.name}`},
    make(
      "div",
      {class: "name"},
      make("b", {}, "Approval"),
      ` of ${step.name} by its ${step.approval} `,
      make(
        "span",
        {class: denied ? "chip bad" : "chip good"},
        DECISIONS[step.decision] || step.decision,
      ),
      " ",
      make("small", {}, facts),
    ),
    step.preview ? diffView(step.preview) : null,
  );
}

function treeView(turn) {
  const rows = runs[turn.run].trees[turn.entry.tree];
  const size = (row) => (row.visibility === "hidden" ? 0 : row.size + row.tool_size);
  const total = rows.reduce((all, row) => all + size(row), 0) || 1;
  const largest = Math.max(1, ...rows.map(size));
  return rows.map((row) => {
    const depth = row.path.split(".").length - 1;
    const {cost, input} = turn.entry;
    const tokens = Math.ceil(size(row) / 4);
    const price =
      cost === null || !input ? "" : ` · ~$${(cost * Math.min(1, tokens / input)).toFixed(5)}`;
    const bar = make("span", {class: "size"});
    bar.style.width = `${(100 * size(row)) / largest}%`;
    const item = make(
      "li",
      {class: row.visibility},
      make(
        "div",
        {class: "name"},
        make("span", {class: "mark", "aria-hidden": "true"}, MARKS[row.visibility] || "?"),
        make("b", {}, row.path.split(".").pop()),
        make("small", {}, STATES[row.visibility] || row.visibility),
      ),
      size(row)
        ? make(
            "small",
            {title: `${Math.round((100 * size(row)) / total)} % of the prompt`},
            `${count(size(row))} characters · ~${plural(tokens, "token")}${price}`,
          )
        : null,
      row.opened_by ? make("small", {}, `opened by ${row.opened_by}`) : null,
      size(row) ? bar : null,
    );
    item.style.paddingLeft = `${14 * depth}px`;
    return item;
  });
}

/** A unified diff, or a call's preview that contains diffs. */
function diffView(text) {
  const pre = make("pre", {class: "diff"});
  const kinds = {"+": "added", "-": "removed"};
  const lines = text.slice(0, 10 * LONGEST).split("\n");
  const isHead = (index) => /^--- /.test(lines[index]) && /^\+\+\+ /.test(lines[index + 1]);
  lines.forEach((line, index) => {
    const isPlace = isHead(index) || isHead(index - 1) || /^@@ /.test(line) || CHANGE.test(line);
    const kind = isPlace ? "place" : kinds[line[0]] || "same";
    pre.append(make("span", {class: kind}, line || " "));
  });
  return pre;
}

function differenceView(difference) {
  const side = (name, sign, kind) => {
    const text = name in difference ? `${sign} ${pretty(difference[name])}` : "";
    return (
      text &&
      make("span", {class: kind}, text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text)
    );
  };
  return [
    make(
      "div",
      {class: "path"},
      difference.path.map((key) => (typeof key === "number" ? `[${key}]` : key)).join(" › "),
    ),
    make("pre", {}, side("before", "-", "removed"), side("after", "+", "added")),
  ];
}

function changeViews(steps) {
  return steps
    .filter((step) => Object.keys(step.changes || {}).length)
    .map((step) => safely(() => changeView(step)));
}

function changeView({name, success, changes: {state, files, ...others}}) {
  return make(
    "div",
    {class: "change"},
    make("h3", {}, name, success ? null : make("span", {class: "chip bad"}, "rolled back")),
    Object.entries(state || {}).flatMap(([type, differences]) => [
      make("p", {class: "quiet"}, type),
      ...differences.slice(0, 200).flatMap(differenceView),
    ]),
    Object.entries(files || {}).flatMap(([path, diff]) => [
      make("p", {class: "quiet"}, path),
      diffView(diff),
    ]),
    Object.entries(others).flatMap(([kind, values]) => [
      make("p", {class: "quiet"}, kind),
      block(pretty(values)),
    ]),
  );
}

/** The changes of a turn's calls, for printing and for windows without a side column. */
function inlineChanges(steps) {
  const changed = changeViews(steps);
  return changed.length
    ? make(
        "section",
        {class: "inline", "aria-label": "changes in this turn"},
        make("h2", {}, "Changes in this turn"),
        changed,
      )
    : null;
}

function timeViews(body) {
  const parts = [
    ...body.requests.map((request) => [
      request.model || request.adapter || "request",
      request.seconds,
      "",
    ]),
    ...body.steps
      .filter((step) => step.event === "ToolInvoked")
      .map((step) => [step.name, step.seconds || 0, "tool"]),
  ];
  const longest = Math.max(...parts.map((part) => part[1]), 0.0001);
  return make(
    "div",
    {class: "times"},
    parts.flatMap(([name, time, kind]) => {
      const bar = make("i", {class: kind});
      bar.style.width = `${(100 * time) / longest}%`;
      return [make("span", {}, name), bar, make("span", {}, seconds(time))];
    }),
  );
}
