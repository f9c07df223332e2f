// What a reader sees of report.html, as lines of text: `outline(geometry)`. For test_snapshots_page.py.
//
// Every line begins with the part that it belongs to. Coordinates have one decimal. Nothing depends on a font: texts in
// charts are as wide as they have letters, and times of waiting are kept in `timers`, which the tests run.

const timers = [];
window.setTimeout = (act, wait) => timers.push([act, wait]);
window.clearTimeout = (number) => { if (timers[number - 1]) timers[number - 1] = null; };
const DRIVER = 1e6; // milliseconds; longer ones are those of the driver
window.runTimers = () => timers.splice(0).filter((timer) => timer !== null && timer[1] < DRIVER).map(([act, wait]) => { act(); return wait; });

SVGGraphicsElement.prototype.getBBox = function getBBox() {
  const width = 6.4 * this.textContent.length;
  const before = { start: 0, middle: width / 2, end: width }[this.getAttribute("text-anchor") ?? "start"];
  return { x: Number(this.getAttribute("x")) - before, y: Number(this.getAttribute("y")) - 11, width, height: 14 };
};

const decimal = (text) => text.replace(/-?\d*\.?\d+(e-?\d+)?/g, (number) => Number(number).toFixed(1).replace("-0.0", "0.0"));

window.outline = (geometry) => {
  const lines = [];
  const wanted = { none: [], wide: [".wide svg", "#pareto svg", "#protocols svg"], all: ["#loss svg", "#gain svg", ".wide svg", "#pareto svg", "#protocols svg"] }[geometry];
  const attributes = (element, skipped = []) =>
    [...element.attributes].filter(({ name }) => !["class", "id", "viewBox", "vector-effect", "data-table", "content", "style", ...skipped].includes(name))
      .map(({ name, value }) => (value === "" ? name : `${name}=${value}`)).join(" ");
  const styles = (element) => (element.getAttribute("style") ?? "").replaceAll(/\s/g, "");
  const whole = geometry === "all";
  const called = (element) => [element.tagName.toLowerCase(), ...element.classList].join(".");
  const say = (part, ...words) => lines.push([part, ...words.filter((word) => word !== "")].join(" "));

  function walk(element, part) {
    const tag = element.tagName.toLowerCase();
    if (["script", "style", "noscript"].includes(tag) || !(element.checkVisibility() || element.id === "said")) return;
    if (tag === "svg") return wanted.some((one) => element.matches(one)) ? drawing(element, part) : undefined;
    if (tag === "table") return grid(element, `rows-${element.dataset.table}`);
    if (tag === "select") return say(part, `select#${element.id}:`, element.selectedOptions[0]?.text ?? "nothing", "of", [...element.options].map((one) => one.text).join(" / "));
    if (["made-facts", "made"].includes(element.id) && !whole) return undefined;
    const own = element.id || part;
    if (tag === "div" && element.firstElementChild?.tagName === "DT") return say(own, [...element.children].map((each) => each.textContent).join(" "));
    const texts = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    const known = [attributes(element), styles(element)].filter(Boolean).join(" ");
    if (texts.length || (!element.children.length && (element.textContent || known))) say(own, `${called(element)}${known && ` (${known})`}:`, words(element));
    else if (known) say(own, `${called(element)} (${known})`);
    if (!texts.length || tag === "label") for (const child of element.children) walk(child, own);
  }

  const words = (element) => [...element.childNodes].map((node) => (node.nodeType === Node.TEXT_NODE ? node.data : node.tagName === "STRONG" ? `*${node.textContent}*` : node.tagName === "SELECT" ? "" : node.textContent)).join("").trim();

  /** A table: its caption, its heads with the order, and a line for each row. */
  function grid(table, part) {
    say(part, "caption:", table.caption?.textContent ?? "");
    say(part, "heads:", [...table.tHead.rows[0].cells].map((cell) => [cell.textContent, { ascending: "^", descending: "v" }[cell.ariaSort] ?? "", cell.title && `(${cell.title})`].join("")).join(" | "));
    for (const row of table.tBodies[0].rows) say(part, row.dataset.enc ?? "", row.className, [...row.cells].map(cellText).join(" | "));
  }

  function cellText(cell) {
    const inner = [...cell.children].filter((child) => whole || child.className !== "formula").map((child) => child.textContent + (child.className && !["v", "i", "name", "copy", "formula", "why"].includes(child.className) ? `{${child.className}}` : "") + (child.getAttribute("aria-pressed") === "true" ? "!" : "") + (whole && child.title ? ` "${child.title}" ${attributes(child, ["title"])}` : ""));
    const kind = [...cell.classList].filter((name) => name !== "number").join(".");
    return [inner.join(" ") || cell.textContent, kind && `<${kind}>`, styles(cell), cell.title && (whole || kind || cell.className) && `"${cell.title}"`].filter(Boolean).join(" ");
  }

  /** A chart: the elements that differ in their places only on a line, in their order. */
  function drawing(svg, part) {
    const number = [...document.querySelectorAll(`#${part} svg`)].indexOf(svg);
    say(`${part}${number}`, `svg${[...svg.classList].map((name) => `.${name}`).join("")} ${attributes(svg)}`);
    const found = new Map();
    for (const element of svg.children) collect(element, "", found);
    for (const [kind, each] of found) say(`${part}${number}`, `${kind}:`, each.join(" | "));
  }

  const PLACES = ["cx", "cy", "r", "x", "y", "x1", "x2", "y1", "y2", "d", "transform"];

  function collect(element, before, found) {
    const kind = before + called(element) + (element.dataset.enc ? ` ${element.dataset.enc}` : "");
    if (element.tagName === "g") {
      for (const child of element.children) collect(child, `${kind} `, found);
      return;
    }
    const plain = ["text", "title"].includes(element.tagName) ? element.textContent : "";
    const outlined = element.hasAttribute("transform") ? ["d"] : []; // the outline of a mark is the same at each of its points
    const places = PLACES.filter((name) => element.hasAttribute(name) && !outlined.includes(name)).map((name) => decimal(element.getAttribute(name))).join(",");
    const rest = attributes(element, ["data-enc", ...PLACES.filter((name) => !outlined.includes(name))]);
    const key = kind + (rest && ` (${rest})`);
    found.set(key, [...(found.get(key) ?? []), [plain, places].filter(Boolean).join(" ")]);
  }

  walk(document.body, "page");
  return lines;
};

/** Click the head of a column of a table: the order that heads and rows then have, what has the focus, and what is said. */
window.sortBy = (name, number) => {
  const find = () => document.querySelector(`table[data-table='${name}']`);
  const button = find().querySelectorAll("thead button")[number];
  if (!button) return null;
  button.click();
  const sorted = [...find().tHead.rows[0].cells].map((cell) => cell.ariaSort ?? "-").join(" ");
  const order = [...find().tBodies[0].rows].map((row) => row.dataset.enc).join(" ");
  return [sorted, order, document.activeElement.textContent, document.getElementById("said").textContent].join(" | ");
};

/** Click a button that copies, in a browser that grants, refuses or lacks (null) the clipboard, and does the older way or not. */
window.copyWith = (granted, older, done) => {
  const wrote = [];
  Object.defineProperty(navigator, "clipboard", { configurable: true, value: granted === null ? undefined : { writeText: (text) => { wrote.push(`new ${text}`); return granted ? Promise.resolve() : Promise.reject(new Error("no")); } } });
  document.execCommand = (command) => { wrote.push(`${command} ${document.querySelector("textarea").value}`); return older; };
  const button = document.querySelectorAll("button.copy")[2];
  button.click();
  requestAnimationFrame(() => requestAnimationFrame(() => {
    const shown = [button.textContent, document.getElementById("said").textContent];
    const waits = runTimers();
    done([...wrote, ...shown, waits.join(" "), button.textContent, document.querySelectorAll("textarea").length].join(" | "));
  }));
};

/** Where an encoding stands out: its rows, its lines in charts and what is drawn above them, pressed buttons, the card. */
window.lit = () => {
  const where = (element) => element.closest("[data-table]")?.dataset.table ?? element.closest("[id]").id;
  const list = (selector, text) => [...document.querySelectorAll(selector)].map(text).join(" | ");
  const card = document.getElementById("card");
  return [
    `rows: ${list("tr.on", (row) => `${where(row)} ${row.dataset.enc}`)}`,
    `dim: ${list("svg", (svg) => (svg.classList.contains("dim") ? where(svg) : "-"))}`,
    `lines: ${list("g.on", (line) => `${where(line)} ${line.getAttribute("class")} ${line.dataset.enc}`)}`,
    `above: ${list(".top", (top) => [...top.children].map((one) => one.textContent || one.getAttribute("class")).join(" "))}`,
    `drawn: ${list("#pareto .top *, #loss figure:nth-child(-n+2) .top *", (one) => [...["d", "x", "y"].map((name) => decimal(one.getAttribute(name) ?? "")), one.getAttribute("fill"), one.getAttribute("stroke")].filter(Boolean).join(" "))}`,
    `pressed: ${list("button.name[aria-pressed=true]", (button) => `${where(button)} ${button.textContent}`)}`,
    `card: ${card.hidden ? "-" : [...card.querySelectorAll("h2, p, dl div")].map((one) => [...one.childNodes].map((part) => part.textContent).join(" ")).join(" | ")}`,
    `colour: ${card.hidden ? "-" : card.querySelector(".swatch").style.background}`,
  ];
};

/** What functions of the page return, whose scripts and names are given, on these numbers and on further cases. */
window.callAll = (scripts, names, numbers) => {
  const page = new Function(`${scripts}; return {${names}};`)();
  const told = [];
  const tell = (name, ...given) => told.push(`${name}(${given.map((each) => JSON.stringify(each)).join(", ")}): ${JSON.stringify(page[name](...given))}`);
  for (const name of ["bits", "signed", "tickText", "signedTick", "times", "seconds", "multiple", "counted"])
    told.push(`${name}: ${numbers.map((value) => page[name](value)).join(" | ")}`);
  for (const name of ["bits", "signed", "times", "seconds"]) tell(name, null);
  for (const value of [119.9, 120, 599, 600, 7199, 7200]) told.push(`seconds ${value}: ${page.seconds(value)}, ${page.seconds(value, 1)}`);
  for (const names of [[], ["a"], ["a", "none"], ["a", "b", "c", "d", "e"], ["a", "b", "c", "d", "e", "f"]]) tell("listed", names);
  tell("listed", ["a", "b", "c"], 2);
  for (const name of ["none", "rope"]) tell("named", name);
  tell("capital", "loss at 4x");
  for (const name of ["a".repeat(24), "a".repeat(25)]) tell("clipped", name);
  for (const status of ["oom", "unsupported", "nonfinite", "diverged"]) tell("statusName", status);
  told.push(`tickNames: ${page.tickNames([0.81, 0.8125, 0.83], page.tickText)} / ${page.tickNames([1000.1, 1000.2], page.signedTick)}`);
  for (const step of [0, 0.07, 0.99, 1.2, 2.2, 2.4, 3, 7, 42]) tell("niceStep", step);
  const cases = [["log", 2, 3], ["log", 2, 5], ["log", 2, 5.1], ["log", 0.5, 900], ["octaves", 256, 257], ["octaves", 64, 4096], ["octaves", -1, 30], ["linear", 0, 1], ["linear", -3, 900], ["linear", 5, 5], ["signed", -0.004, 0.002], ["signed", -0.1, 0.1], ["signed", -0.11, 0.1], ["signed", -3, 20], ["signed", 0.2, 0.3]];
  for (const [kind, low, high] of cases) {
    const { at, name, ticks } = page.scale(kind, [high, null, NaN, low], 200, 20);
    told.push(`scale ${kind} ${low} to ${high}: ${name || "linear"}; ${ticks.map((tick) => `${tick} at ${at(tick).toFixed(1)}`).join(", ")}; ends ${[low, high, 1e9, -1e9, 0].map((value) => at(value).toFixed(1)).join(" ")}`);
  }
  const points = [{ x: 1, v: 2, low: 1, high: 3 }, null, { x: 2, v: 3, low: null }, { x: 3.25, v: 4, low: 3, high: 5.55 }];
  const double = (value) => 2 * value;
  for (const some of [points, points.slice(0, 3), []]) for (const name of ["pathOf", "bandOf"]) told.push(`${name} ${some.length}: ${page[name](some, double, (value) => value)}`);
  for (const [ys, gap, top, bottom] of [[[10, 11, 12, 60], 12, 4, 70], [[1, 2], 12, 4, 70], [[60, 69, 70], 12, 4, 70], [[5, 5, 5, 5], 12, 4, 30], [[], 12, 4, 70]]) {
    const labels = ys.map((y) => ({ y }));
    page.spread(labels, gap, top, bottom);
    told.push(`spread ${ys} (${gap}, ${top}, ${bottom}): ${labels.map(({ y }) => y.toFixed(2))}`);
  }
  for (const [low, high, v] of [[1, 2, 1.5], [-1, 2, 0.5], [-2, -1, -1.5], [0, 1, 0.5], [-1, 0, -0.5]])
    told.push(`wordOf ${low} ${high}: ${page.wordOf({ v, low, high }, 1)}, ${page.wordOf({ v, low, high }, -1)}`);
  tell("wordOf", { v: 1, low: null, high: null }, 1);
  for (const value of [{ v: 1, low: 0.5, high: 2 }, { v: 1, low: null, high: null, why: "few" }, { v: 1, exact: true }]) told.push(`interval: ${page.interval(value, page.signed)}`);
  for (const value of [{ missing: "refused" }, { missing: "refused", reason: "why" }, { v: 1, low: 0.5, high: 2, word: "better", note: "1 failed" }, { v: 1, exact: true }]) told.push(`spoken: ${page.spoken(value, page.signed)}`);
  tell("withWhy", [1, null, 3], "few");
  tell("withWhy", [1, 0, 3], "few");
  return told;
};
