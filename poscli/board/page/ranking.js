// The ranking: a table in which the ranks that each encoding may have are a bar, and those without a rank apart.

const BAR = { width: 130, height: 10 };

/** The ranks that an encoding may have as text and as a bar between the first and the last rank of all. */
function rankCell(n) {
  const own = encodings()[n];
  const { width, height } = BAR;
  const step = width / Math.max(1, ranked().length);
  const bar = draw("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  bar.append(draw("line", { class: "track", x1: 0, x2: width, y1: height / 2, y2: height / 2 }));
  bar.append(draw("rect", { x: (own.first - 1) * step, y: 1, height: height - 2, width: Math.max(2, (own.last - own.first + 1) * step), fill: colorOf(n) }));
  return make("td", {}, make("div", { class: "ranks" }, make("span", {}, own.ranks), bar));
}

function linkColumn() {
  return {
    head: "Encoding",
    key: (n) => encodings()[n].name,
    cell: (n) => {
      const own = encodings()[n];
      return make("th", { scope: "row" }, own.page ? make("a", { href: own.page }, own.name) : own.name);
    },
  };
}

/** A column of values; `note` is what a reader sees who rests on its head. */
function column(head, value, write, { note, down = false, shade = () => 0 } = {}) {
  return {
    head, note, down,
    key: (n) => keyOf(value(n)),
    cell: (n) => valueCell(value(n), write, value(n).missing ? 0 : shade(value(n))),
  };
}

const note = (start) => section().legend.find((line) => line.startsWith(start));

/** The columns of numbers, which both tables have. */
function numberColumns() {
  const own = (n) => encodings()[n];
  const known = everyEncoding().some((n) => own(n).training[0] !== null);
  const costs = [
    column("Training", (n) => exactly(own(n).training[0]), times, { note: note("training") }),
    column("Reading", (n) => exactly(own(n).reading[0]), times, { note: note("training") }),
  ];
  const end = longest();
  return [
    column(`Regret ${end}`, (n) => valueOf(own(n).regret), two, { note: note("regret"), shade: (value) => Math.max(-1, Math.min(1, 1 - value.v)) }),
    column("Bits at L", (n) => valueOf(own(n).loss), bits, { note: note("bits") }),
    column(`Gain ${end}`, (n) => valueOf(own(n).gains.at(-1)), signed, { note: note("gain"), down: true }),
    column("Used", (n) => exactly(own(n).used[0]), percent, { note: note("used"), down: true }),
    column("Safe", (n) => exactly(own(n).safe), multiple, { note: note("safe"), down: true }),
    column("Harmful", (n) => exactly(own(n).harmful, own(n).safe === null ? "not known" : "not shown"), multiple, { note: note("safe"), down: true }),
    column("Control", (n) => valueOf(own(n).control), signed, { note: note("control"), down: true }),
    ...Object.entries(section().tasks).flatMap(([task, far]) => [0, -1].map((at) =>
      column(`${task} ${at ? far : "1x"}`, (n) => exactly(own(n).tasks[task]?.accuracy.at(at) ?? null), two, { note: note(`${task}:`), down: true }))),
    ...(known ? costs : []),
    column("Seeds", (n) => exactly(own(n).seeds), String, { down: true }),
  ];
}

function rankingPart() {
  if (!ranked().length) return null;
  const title = "Who is ranked where?";
  const rank = { head: "Rank", note: note("rank"), key: (n) => n, cell: rankCell };
  const body = shownRanked().length ? table("ranking", title, [rank, linkColumn(), ...numberColumns()], 0, false, shownRanked) : make("p", {}, "No encoding with a rank passes the filters.");
  const caption = `The bar is the ranks from 1 to ${ranked().length} that an encoding may have, in the colour of its family. Rows are in the order of the regret at ${longest()}, mean over ${listed(section().texts, 9)}; where bars overlap, the order of two encodings need not be known: compare them head to head below. Costs are those over none. Brackets: 95 % intervals.`;
  const part = make("section", { id: "ranking" }, make("h2", {}, title), make("p", { class: "caption" }, caption), body);
  return { title, part, finish: () => {} };
}

/** The encodings without a rank: why, and what is known of them. */
function othersPart() {
  if (!everyEncoding().some((n) => !isRanked(n))) return null;
  const title = "Without a rank";
  const why = { head: "Why", key: (n) => encodings()[n].status, cell: (n) => make("td", { class: "acts" }, make("span", {}, encodings()[n].status), make("span", { class: "why" }, encodings()[n].why)) };
  const body = shownOthers().length ? table("others", title, [linkColumn(), why, ...numberColumns()], 2, false, shownOthers) : make("p", {}, "No encoding without a rank passes the filters.");
  const part = make("section", { id: "others" }, make("h2", {}, title), make("p", { class: "caption" }, "They take part in no comparison, and nobody is ranked above or below them."), body);
  return { title, part, finish: () => {} };
}
