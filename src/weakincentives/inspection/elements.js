"use strict";
// Elements for pages whose data is in script tags. Texts are added only as text nodes, never as HTML.

const data = (id) => JSON.parse(document.getElementById(id).textContent);
const LONGEST = 20000; // characters of a text that are shown initially

/** Creates an element with attributes and children, which are elements or texts. */
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
const seconds = (number) =>
  number < 0.1 ? `${(1000 * number).toFixed(1)} ms` : `${number.toFixed(number < 10 ? 2 : 1)} s`;
const dollars = (number) => (number === null ? "" : `$${number.toFixed(4)}`);
const sum = (items, name) => items.reduce((total, item) => total + item[name], 0);
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** A text; a long one is truncated and has a button to show all of it. */
function block(text, kind = "") {
  const pre = make("pre", {class: kind}, text.slice(0, LONGEST));
  if (text.length <= LONGEST) return pre;
  const show = () => {
    pre.textContent = text;
    more.remove();
  };
  const more = make(
    "button",
    {class: "more", onclick: show},
    `Show all ${count(text.length)} characters`,
  );
  return make("div", {}, pre, more);
}

function pretty(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

/** JSON, indented and coloured, with numbers as written; any other text is unchanged. */
function jsonBlock(text, kind = "") {
  try {
    if (!/^\s*[[{]/.test(text) || text.length > LONGEST) throw new SyntaxError();
    JSON.parse(text);
  } catch {
    return block(text, kind);
  }
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g);
  const pre = make("pre", {class: kind});
  const isWide = text.length > 60;
  let depth = 0;
  const line = () => (isWide ? `\n${"  ".repeat(depth)}` : "");
  tokens.forEach((token, index) => {
    const [before, after] = [tokens[index - 1], tokens[index + 1]];
    if (token === "{" || token === "[") {
      depth += 1;
      pre.append(token, after === "}" || after === "]" ? "" : line());
    } else if (token === "}" || token === "]") {
      depth -= 1;
      pre.append(before === "{" || before === "[" ? "" : line(), token);
    } else if (token === ",") pre.append(token, line() || " ");
    else if (token === ":") pre.append(": ");
    else {
      const kind = after === ":" ? "key" : token[0] === '"' ? "string" : "literal";
      pre.append(make("span", {class: kind}, token));
    }
  });
  return pre;
}
