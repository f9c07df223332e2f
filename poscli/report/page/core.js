// The data of the page, the reader's choices, and helpers that make elements. Texts are set as text, never as markup.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const MINUS = "\u2212";
const PLAIN = -1; // the value of `state.base` where nothing is compared

// section, protocol, base: numbers in the lists of DATA; hot: the encoding under the pointer or with the focus; pinned:
// the one that was clicked; cost: the horizontal axis of the chart of quality against cost.
const state = { section: 0, protocol: 0, base: PLAIN, hot: null, pinned: null, cost: 0 };

const section = () => DATA.sections[state.section];
const encodings = () => section().encodings;
const last = () => section().lengths.length - 1;
const byId = (id) => document.getElementById(id);
const everyEncoding = () => encodings().map((_, n) => n);

/** An element of HTML with properties, data attributes and children; a child that is a string becomes a text. */
function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An element of SVG. */
function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/** How a name is written inside a sentence: `none` in quotes, because "none is best" says that nothing is. */
const named = (name) => (name === "none" ? '"none"' : name);

function listed(names, most = 5) {
  const shown = names.slice(0, most).map(named);
  if (names.length > most) return `${shown.join(", ")} and ${names.length - most} more`;
  return shown.length < 2 ? shown.join("") : `${shown.slice(0, -1).join(", ")} and ${shown[shown.length - 1]}`;
}

/** A number with so many decimals as Python writes it, so that texts and tables agree: a tie goes to the even digit, and zero has no sign. */
function fixed(value, digits) {
  let text = value.toFixed(digits);
  const tie = Math.abs((value * 2 ** (digits + 1)) % 2) === 1; // only then does a binary number end with the digit 5 there
  if (tie && Number(text.at(-1)) % 2 === 1) text = (value - (Math.sign(value) * 0.5) / 10 ** digits).toFixed(digits);
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", MINUS);
}

/** A loss in bits, with three decimals. */
const bits = (value) => (value === null ? "" : fixed(value, 3));

/** A share of answers, with three decimals. */
const share = bits;

/** A difference with its sign: three decimals below 1, two from 1 on. */
function signed(value) {
  if (value === null) return "";
  if (Math.abs(value) < 5e-4) return "0.000";
  return (value > 0 ? "+" : MINUS) + fixed(Math.abs(value), Math.abs(value) < 1 ? 3 : 2);
}

/** A number on an axis, without zeros at its end, with `more` digits than three; `sign` writes a plus. */
function tickText(value, more = 0, sign = false) {
  const rounded = Number(value.toPrecision(3 + more));
  const text = Math.abs(value) >= 1e5 ? rounded.toExponential() : String(rounded);
  return (sign && value > 0 ? "+" : "") + text.replaceAll("-", MINUS);
}

const signedTick = (value, more = 0) => tickText(value, more, true);

/** The texts of ticks, with as many digits as tell all of them apart. */
function tickNames(values, write) {
  const texts = (more) => values.map((value) => write(value, more));
  let more = 0;
  while (more < 12 && new Set(texts(more)).size < values.length) more += 1;
  return texts(more);
}

const times = (value, more = 0) => (value === null ? "" : `${value.toFixed((value >= 100 ? 0 : 2) + more)}x`);

/** A time in words, as in the answer, with `more` decimals than there. */
function seconds(value, more = 0) {
  if (value === null) return "";
  const size = Math.abs(value);
  const [number, digits, unit] = size < 0.1 ? [value * 1000, 0, "ms"] : size < 120 ? [value, size < 10 ? 1 : 0, "s"] : size < 7200 ? [value / 60, size < 600 ? 1 : 0, "min"] : [value / 3600, 1, "h"];
  return `${number.toFixed(digits + more)} ${unit}`.replace("-", MINUS);
}

/** A multiple of the training length. */
const multiple = (value) => `${Number(value.toPrecision(6))}x`;

const capital = (text) => text[0].toUpperCase() + text.slice(1);

/** A whole number with commas. */
const counted = (value, more = 0) => value.toLocaleString("en-US", { maximumFractionDigits: 3 + more }).replace("-", MINUS);

/** The colour of an encoding. */
const colorOf = (n) => `var(--c${encodings()[n].color})`;
const dashOf = (n) => DATA.dashes[encodings()[n].dash] || undefined;

// Outlines of marks, a dash for a dash, so that encodings of one colour differ where they are single points.
const OUTLINES = ["", "M-1-1H1V1H-1Z", "M0-1.3L1.3 0L0 1.3L-1.3 0Z", "M0-1.2L1.2 1H-1.2Z", "M0 1.2L1.2-1H-1.2Z", "M-1.2 0L1-1.2V1.2Z", "M1.2 0L-1-1.2V1.2Z", "M-.45-1.2H.45V-.45H1.2V.45H.45V1.2H-.45V.45H-1.2V-.45H-.45Z", "M-1-1L1 1H-1L1-1Z"];

/** The mark of an encoding at a point, about as large as a circle of this radius. */
function pointMark(n, x, y, r, attributes) {
  const outline = OUTLINES[encodings()[n].dash % OUTLINES.length];
  if (!outline) return draw("circle", { class: "point", cx: x, cy: y, r, ...attributes });
  return draw("path", { class: "point", d: outline, transform: `translate(${x} ${y}) scale(${r})`, "vector-effect": "non-scaling-stroke", ...attributes });
}

/** Tell a screen reader what has changed. */
function say(text) {
  byId("said").textContent = text;
}

/** Show an encoding everywhere because the pointer or the focus is on it; null ends that. */
function heat(n) {
  if (state.hot === n) return;
  state.hot = n;
  light();
}

/** What a pointer does by moving over something; a finger that moves scrolls the page. */
const unlessTouched = (act) => (event) => { if (event.pointerType !== "touch") act(event); };

// Values: {v, low, high, word, why, missing}, as values.js explains.

function withWhy([v, low, high], why) {
  return low === null || high === null ? { v, low: null, high: null, why } : { v, low, high };
}

/** The interval of a value in square brackets, or why it has none; exact numbers have none. */
function interval(value, write) {
  if (value.exact) return "";
  return value.low === null ? `(${value.why})` : `[${write(value.low)}, ${write(value.high)}]`;
}

/** A value in words, for titles and the card. */
function spoken(value, write) {
  if (value.missing) return value.reason ? `${value.missing}: ${value.reason}` : value.missing;
  return [write(value.v), interval(value, write), value.word && `(${value.word})`, value.note].filter(Boolean).join(" ");
}

// Elements that several parts use

const definitions = (facts) => facts.map(([question, text]) => make("div", {}, make("dt", {}, question), make("dd", {}, text)));

/** A part of the page: its heading, a caption, and what follows. `finish` draws what needs the part to be on the page. */
function partOf(id, title, caption, children, finish) {
  const part = make("section", { id }, make("h2", {}, title), make("p", { class: "caption" }, caption), ...children);
  return { title, part, finish };
}

/** Light up an encoding wherever it is shown, or none for null, and fill the card of it: what it is, and facts. */
function lightUp(n, acts, facts, ...between) {
  for (const line of document.querySelectorAll("tr[data-enc]")) line.classList.toggle("on", Number(line.dataset.enc) === n);
  for (const chart of charts) chart.highlight(n);
  const card = byId("card");
  card.hidden = n === null;
  if (n === null) return;
  const name = make("h2", {}, make("span", { class: "swatch" }), encodings()[n].name);
  name.querySelector(".swatch").style.background = colorOf(n);
  card.replaceChildren(name, make("p", { class: "acts" }, acts), ...between, make("dl", {}, ...definitions(facts)));
}

function choiceButton(text, chosen, act) {
  const button = make("button", { type: "button", "aria-pressed": chosen ? "true" : "false" }, text);
  button.addEventListener("click", act);
  return button;
}

/** Whether two boxes of drawn elements share any room. */
const meet = (a, b) => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;

function onPick(id, act) {
  byId(id).addEventListener("change", (event) => act(Number(event.target.value)));
}

function isDark() {
  return document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function nameTheme() {
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
}

/** Let the button of the page choose between light and dark, beginning with what the reader prefers. */
function offerThemes() {
  byId("theme").addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
  nameTheme();
}

/** Draw again when the window has another width, once it rests. */
function onWidth(act) {
  let [wide, waiting] = [innerWidth, 0];
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { if (innerWidth !== wide) { wide = innerWidth; act(); } }, 150);
  });
}
