// A small AG-UI front end. All external content becomes text nodes, never HTML.
"use strict";

const byId = (id) => document.getElementById(id);
const log = byId("log"), list = byId("messages"), box = byId("text"), notice = byId("notice");
const LONGEST = 20000; // the most characters shown of a tool's arguments or answer
const waiting = new Map(); // the buttons of calls that are pending approval, by call id
const shown = new Map(); // the elements of messages and calls, by id
let source, replayed = false, running = false;
let output, article; // a typed answer so far, and the element of the answer that is being written

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.dir = "auto";
  made.append(document.createTextNode(visible(text)));
  return made;
}

// Control and format characters are shown by their code, except for those that join emoji and letters.
function visible(text) {
  return text.replace(/(?![\t\n\u200c\u200d])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu,
    (sign) => `⟨U+${sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

function shortened(text) {
  const rest = text.length - LONGEST;
  return rest > 0 ? `${text.slice(0, LONGEST)}\n… and ${rest.toLocaleString()} more characters` : text;
}

function add(id, made) {
  if (shown.has(id)) return;
  shown.set(id, made);
  list.append(made);
}

// A call is one line for the customer, if STEPS has words for it, and a box with its JSON among the details.
function addCall(id, name, args) {
  if (shown.has(id)) return;
  const call = element("div", "call");
  Object.assign(call, { args: "", words: STEPS[name], state: element("span", "state", "running") });
  call.append(call.step = element("p", "step"), call.box = element("details", "detail"));
  const summary = element("summary", "");
  summary.append(element("span", "tool", name), call.about = element("span", "about"), call.state);
  call.box.append(summary, call.input = element("pre", "input"));
  add(id, call);
  extendCall(id, args);
}

function setState(call, words) {
  call.state.firstChild.data = words;
  call.classList.toggle("failed", words === "failed");
}

function extendCall(id, delta) {
  const call = shown.get(id);
  call.args += delta;
  call.input.firstChild.data = visible(shortened(call.args));
  try {
    const values = JSON.parse(call.args);
    const simple = Object.values(values).filter((value) => typeof value !== "object");
    call.about.firstChild.data = visible(simple.join(", ").slice(0, 80));
    call.step.firstChild.data = visible(call.words?.(values).slice(0, 80) ?? "");
  } catch { /* incomplete so far, or invalid: the details have the whole text */ }
}

function addResult(callId, content, failed) {
  const call = shown.get(callId);
  if (!call || call.output) return;
  call.output = element("pre", "output", shortened(typeof content === "string" ? content : JSON.stringify(content)));
  call.box.append(call.output);
  setState(call, failed ? "failed" : "done");
  waiting.get(callId)?.replaceWith(outcome(failed));
  waiting.delete(callId);
}

function outcome(failed) {
  return element("p", failed ? "outcome failed" : "outcome", failed ? "Not done." : "Done.");
}

// A call that needs the user's approval: a question with two buttons until the user answers.
function addApproval(id, { call_id: callId, tool_call_id: toolCallId, preview, digest }) {
  const card = element("section", "approval");
  const call = shown.get(toolCallId);
  const question = call?.step.textContent || "Allow this step";
  const diff = element("pre", "detail");
  for (const line of preview.split("\n").slice(1)) { // the first line repeats the question
    const isPlace = CHANGE.test(line);
    const kind = isPlace ? "place" : { "+": "added", "-": "removed" }[line[0]] ?? "";
    diff.append(element("span", kind, `${isPlace ? line.slice(2) : line}\n`));
  }
  const reason = element("input", "");
  reason.placeholder = "Reason (optional)";
  reason.setAttribute("aria-label", "Reason for a denial");
  const buttons = element("div", "buttons");
  for (const [words, approve] of [["Approve", true], ["Deny", false]]) {
    const button = element("button", approve ? "yes" : "", words);
    button.type = "button";
    button.onclick = () => post("decide", { callId, digest, approve, reason: reason.value });
    buttons.append(button);
  }
  buttons.append(reason);
  card.append(element("p", "question", `${question}?`), diff, buttons);
  waiting.get(toolCallId)?.remove(); // an earlier question, about different effects
  if (call?.output) buttons.replaceWith(outcome(call.classList.contains("failed")));
  else waiting.set(toolCallId, buttons);
  if (call && !call.output) setState(call, "needs your approval");
  call?.classList.add("asked"); // the card replaces its line
  add(id, card);
}

// A line in a preview that names a change, above its diff.
const CHANGE = /^- (create|change|remove) (state|file|directory|resource) /;
// The descriptions of calls for customers; other calls appear only in the details.
const STEPS = {
  find_teas: ({ words }) => `Looked for teas: ${words}`,
  order_tea: ({ tea, grams }) => `Order ${grams ?? 100} g of ${tea}`,
};
const ACTIVITIES = {
  tools_added: (content) => `New tools: ${content.names.join(", ")}`,
  tools_removed: (content) => `Removed tools: ${content.names.join(", ")}`,
  restarted: (content) => `Started again with ${content.section_keys.join(", ")} open`,
  answer_rejected: (content) => `Answered again: ${content.reason}`,
  compacted: () => "Earlier messages were shortened",
};

// The sources of the answer above; the URL of a source that is not on the web is empty.
function addSources(id, { citations, message_id: messageId }) {
  const signs = [...(shown.get(messageId)?.textContent ?? "")]; // positions count code points
  const sources = element("section", "sources", "Sources");
  for (const { url, title, source, start, end } of citations) {
    const isLink = /^https?:\/\//i.test(url);
    const made = element(isLink ? "a" : "span", "source", title || url || source);
    if (isLink) Object.assign(made, { href: url, rel: "noopener noreferrer", target: "_blank" });
    if (start !== null) made.append(element("small", "passage", ` · “${signs.slice(start, end).join("").slice(0, 200)}”`));
    sources.append(made);
  }
  add(id, sources);
}

function addThought(id, text = "") {
  const thought = element("details", "thought");
  thought.append(element("summary", "", "Thinking"), element("pre", "", text));
  add(id, thought);
}

// A typed answer keeps the layout that it had while it arrived.
function addAnswer(id, text) {
  let typed = null;
  try {
    typed = JSON.parse(text);
  } catch {} // an answer in words
  if (typeof typed === "object" && typed) add(id, element("article", "assistant typed", JSON.stringify(typed, null, 2)));
  else add(id, element("article", "assistant", text));
}

function addMessage(message) {
  switch (message.role) {
    case "user": {
      const parts = typeof message.content === "string" ? [message.content] : message.content.map((part) => part.text ?? "");
      add(message.id, element("article", "user", parts.join("\n\n")));
      break;
    }
    case "assistant":
      if (message.content) addAnswer(message.id, message.content);
      for (const call of message.toolCalls ?? []) addCall(call.id, call.function.name, call.function.arguments);
      break;
    case "reasoning":
      if (message.content && !shown.has(message.id)) addThought(message.id, message.content);
      break;
    case "tool":
      addResult(message.toolCallId, message.content, message.error !== undefined);
      break;
    case "activity": {
      if (message.activityType === "approval_requested" && !shown.has(message.id)) addApproval(message.id, message.content);
      if (message.activityType === "citations" && !shown.has(message.id)) addSources(message.id, message.content);
      const words = ACTIVITIES[message.activityType];
      if (words) add(message.id, element("p", "activity detail", words(message.content)));
    }
  }
}

// Removes elements that a snapshot lacks (activities only if it has any), and keeps the others unchanged.
function showAll(messages) {
  const hasActivities = messages.some((message) => message.role === "activity");
  const ids = new Set(messages.filter(({ role, content }) => !["assistant", "reasoning"].includes(role) || content).map(({ id }) => id));
  for (const message of messages) for (const call of message.toolCalls ?? []) ids.add(call.id);
  for (const [id, made] of shown) {
    if (ids.has(id) || (/^(activity|approval|sources)/.test(made.className) && !hasActivities)) continue;
    made.remove();
    shown.delete(id);
  }
  messages.forEach(addMessage);
}

// Applies an operation of a JSON patch, and returns the document.
function patched(document, { op, path, value }) {
  if (!path) return value;
  const keys = path.slice(1).split("/").map((key) => key.replaceAll("~1", "/").replaceAll("~0", "~"));
  const last = keys.pop(), target = keys.reduce((part, key) => part[key], document);
  if (Array.isArray(target) && op === "add") target.splice(Number(last), 0, value);
  // an assignment to the key __proto__ would not create a property
  else Object.defineProperty(target, last, { value, configurable: true, enumerable: true, writable: true });
  return document;
}

// A typed answer is shown as far as it has arrived, instead of its text.
function showOutput(operations) {
  output = operations.reduce(patched, output);
  if (!article || output == null) return;
  article.classList.add("typed");
  article.firstChild.data = visible(JSON.stringify(output, null, 2));
}

function write(text) {
  if (!article.classList.contains("typed")) article.firstChild.appendData(visible(text));
}

function setRunning(value, status = "ready", reason = "") {
  running = value;
  byId("stop").hidden = !value;
  byId("send").hidden = value;
  log.setAttribute("aria-busy", String(value));
  const words = { stopped: "Stopped.", failed: reason || "The answer failed." }[status];
  notice.hidden = value || !words;
  notice.firstElementChild.textContent = visible(words ?? "");
}

const HANDLERS = {
  RUN_STARTED: () => { article = output = undefined; setRunning(replayed); },
  RUN_FINISHED: (event) => {
    if (replayed) setRunning(false, event.outcome?.type === "cancelled" ? "stopped" : "ready");
    replayed = true; // the first run of the stream is the chat so far
  },
  RUN_ERROR: (event) => setRunning(false, "failed", event.message),
  MESSAGES_SNAPSHOT: (event) => showAll(event.messages),
  STATE_SNAPSHOT: (event) => setRunning(false, event.snapshot.status),
  STATE_DELTA: (event) => showOutput(event.delta),
  TEXT_MESSAGE_START: (event) => add(event.messageId, article = element("article", "assistant writing")),
  TEXT_MESSAGE_CONTENT: (event) => write(event.delta),
  TEXT_MESSAGE_END: (event) => shown.get(event.messageId).classList.remove("writing"),
  REASONING_MESSAGE_START: (event) => addThought(event.messageId),
  REASONING_MESSAGE_CONTENT: (event) => shown.get(event.messageId).lastChild.firstChild.appendData(visible(event.delta)),
  TOOL_CALL_START: (event) => addCall(event.toolCallId, event.toolCallName, ""),
  TOOL_CALL_ARGS: (event) => extendCall(event.toolCallId, event.delta),
  TOOL_CALL_RESULT: (event) => addResult(event.toolCallId, event.content, event.metadata !== undefined),
  ACTIVITY_SNAPSHOT: (event) => addMessage({ ...event, role: "activity", id: event.messageId }),
};

function connect() {
  source = new EventSource("events");
  source.onopen = () => {
    replayed = false;
    list.replaceChildren();
    shown.clear();
    waiting.clear();
    byId("connection").textContent = "";
  };
  source.onerror = () => { byId("connection").textContent = "Connecting…"; };
  source.onmessage = (line) => {
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    const event = JSON.parse(line.data);
    HANDLERS[event.type]?.(event);
    byId("empty").hidden = list.childElementCount > 0;
    if (atEnd) log.scrollTop = log.scrollHeight;
  };
}

async function post(path, body) {
  byId("error").textContent = "";
  try {
    const headers = { "content-type": "application/json" };
    const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
    if (response.ok) response.body?.cancel(); // every tab gets the events through its own stream
    else byId("error").textContent = (await response.json()).error;
    return response.ok;
  } catch {
    byId("error").textContent = "The server does not answer. Your message is still here.";
    return false;
  }
}

async function send(text) {
  if (!text.trim() || byId("send").disabled) return;
  byId("send").disabled = true;
  const message = { id: crypto.randomUUID(), role: "user", content: text };
  const sent = await post("agent", { threadId: "chat", runId: crypto.randomUUID(), messages: [message] });
  byId("send").disabled = false;
  if (sent && box.value === text) box.value = ""; // otherwise it stays in the box
  fit();
}

function fit() {
  box.style.height = "auto";
  box.style.height = `${Math.min(box.scrollHeight + 2, 200)}px`;
}

byId("details").onclick = ({ currentTarget: button }) => {
  const isOn = document.body.classList.toggle("detailed");
  button.setAttribute("aria-pressed", String(isOn));
};
byId("composer").onsubmit = (event) => { event.preventDefault(); send(box.value); };
byId("stop").onclick = () => post("stop").then(() => box.focus());
byId("go-on").onclick = () => post("go-on").then(() => box.focus());
for (const example of document.querySelectorAll(".example")) example.onclick = () => send(example.textContent);
box.oninput = fit;
box.onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(box.value); }
};
document.onkeydown = (event) => { if (event.key === "Escape" && running) post("stop"); };
connect();
