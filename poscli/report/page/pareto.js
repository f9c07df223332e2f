// Quality at the longest length against cost, with the Pareto front; and the rankings under all protocols.

/** The costs that can be on the horizontal axis: those measured per seed, then parameters. */
function costs() {
  const measured = section().costs.map((cost) => ({ title: cost.title, note: cost.key === "seconds" ? section().timing : "", of: (n) => costOf(cost, n), write: rebased() ? times : seconds }));
  const write = (value, more = 0) => (rebased() && value > 0 ? "+" : "") + counted(value, more);
  return [...measured, { title: "parameters", of: parametersOf, write, linear: true }];
}

/** Do something as if nothing was compared. */
function plainly(act) {
  const base = state.base;
  state.base = PLAIN;
  try {
    return act();
  } finally {
    state.base = base;
  }
}

const withCost = (cost) => everyEncoding().map((n) => ({ n, x: cost.of(n), y: quality().at(n, last()) })).filter((p) => !p.x.missing && !p.y.missing);

/** Every encoding with a cost and a quality at the longest length, and whether it is on the front. */
function costPoints(cost) {
  const front = plainly(() => frontOf(withCost(cost)));
  return withCost(cost).map((point) => ({ ...point, front: front.has(point.n) }));
}

/** The encodings of which none is better both in cost and in quality. */
function frontOf(found) {
  const worse = (a, b) => quality().sign * (a.y.v - b.y.v);
  const better = (a, b) => a.x.v <= b.x.v && worse(a, b) <= 0 && (a.x.v < b.x.v || worse(a, b) < 0);
  return new Set(found.filter((point) => canWin(point.n) && !found.some((other) => canWin(other.n) && better(other, point))).map((point) => point.n));
}

/** Whether an encoding can be the best: it did not fail, and, of a task with right answers, it beats a guess. */
function canWin(n) {
  if (!encodings()[n].can_win || !section().answered) return encodings()[n].can_win;
  const end = absoluteAt(n, last(), state.protocol, "accuracy");
  return !end.missing && (end.low ?? end.v) > (section().answered.chance ?? 0);
}

function paretoChart() {
  const known = costs();
  const cost = known[Math.min(state.cost, known.length - 1)];
  const found = costPoints(cost);
  byId("pareto-figure").hidden = !found.length;
  if (!found.length) return;
  const end = section().ratios[last()];
  const missing = everyEncoding().filter((n) => !found.some((point) => point.n === n)).map((n) => encodings()[n].name);
  const front = found.filter((point) => point.front).sort((a, b) => a.x.v - b.x.v);
  byId("pareto-caption").textContent =
    `${capital(quality().name)} at ${end} against ${cost.title}${rebased() ? `, relative to ${encodings()[state.base].name}` : ""}; better is ${quality().better} and to the left. ` +
    frontSentence(front, found) +
    (missing.length ? ` Not shown, because the cost or the ${quality().name} is not known: ${listed(missing, 4)}.` : "") +
    (cost.note ? ` ${cost.note}` : "");
  byId("pareto-choice").replaceChildren(...known.map((each, n) => choiceButton(each.title, n === known.indexOf(cost), () => {
    state.cost = n;
    show();
    byId("pareto-choice").children[n].focus();
  })));
  drawPareto(byId("pareto"), cost, found, front, end);
}

/** Which of the encodings that are shown are on the front; re-based, those that are on it may not be comparable. */
function frontSentence(front, found) {
  if (front.length) return `On the Pareto front, where nothing is better in both: ${listed(front.map((point) => encodings()[point.n].name), 6)}.`;
  if (found.some((point) => canWin(point.n))) return "None of those that can be compared is on the Pareto front.";
  return "No encoding is on the Pareto front, because each of them failed or learned too little.";
}

function drawPareto(box, cost, found, front, end) {
  const width = Math.max(260, box.clientWidth || 320);
  const height = Math.round(Math.min(430, Math.max(280, width * 0.62)));
  const margin = { left: 52, right: 16, top: 36, bottom: 38 };
  const picture = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${capital(quality().name)} at ${end} against ${cost.title}` });
  const ends = (p) => [p.v, p.low ?? p.v, p.high ?? p.v];
  const losses = found.flatMap((point) => ends(point.y));
  const big = rebased() && Math.max(...losses.map(Math.abs)) > 1;
  const y = scale(!rebased() ? quality().scale : big ? "signed" : "linear", losses, height - margin.bottom, margin.top);
  // Costs with an interval below zero (Student's, few seeds) are cut at the axis.
  const prices = found.flatMap((point) => ends(point.x)).filter((value) => cost.linear || value > 0);
  const right = width - margin.right;
  const x = scale(cost.linear ? "linear" : "octaves", prices, margin.left, right);
  const unit = quality().unit() && `,${quality().unit()}`;
  const label = `${quality().name} at ${end}${rebased() ? " minus that of the base" : ""}${unit}`;
  const chart = { x: { values: x.ticks, names: tickNames(x.ticks, cost.write), label: cost.title + (x.name && `, ${x.name}`), train: NaN }, tick: rebased() ? signedTick : tickText, zero: rebased() };
  axes(picture, chart, { x: x.at, y, width, right, height, margin });
  picture.append(draw("text", { class: "axis", x: margin.left, y: 12 }, label));
  const step = front.map((point, n) => (n ? `H${x.at(point.x.v)}V${y.at(point.y.v)}` : `M${x.at(point.x.v)} ${y.at(point.y.v)}`)).join("");
  picture.append(draw("path", { class: "front", d: step }));
  const marks = new Map();
  for (const point of [...front, ...found.filter((each) => !each.front)].reverse()) marks.set(point.n, mark(picture, point, x.at, y.at, cost, [margin.left, right]));
  box.replaceChildren(picture);
  const unnamed = paretoLabels(picture, found, x.at, y.at, width);
  if (unnamed) byId("pareto-caption").textContent += ` Without a name, for want of room: ${unnamed} of ${found.length}; point at a mark to see it.`;
  const top = draw("g", { class: "top" });
  picture.append(top);
  charts.push({
    highlight: (n) => {
      picture.classList.toggle("dim", n !== null);
      for (const [other, each] of marks) each.classList.toggle("on", other === n);
      const point = found.find((each) => each.n === n);
      top.replaceChildren(...(point ? [paretoLabel(point, x.at(point.x.v), y.at(point.y.v), width)] : []));
    },
  });
  const spots = everyEncoding().map((n) => found.filter((point) => point.n === n).map((point) => ({ x: point.x.v, v: point.y.v })));
  nearest(picture, spots, x.at, y.at);
}

function mark(picture, point, x, y, cost, [left, right]) {
  const [px, py] = [x(point.x.v), y(point.y.v)];
  const inside = (value) => Math.min(right, Math.max(left, value));
  const group = draw("g", { class: point.front ? "mark best" : "mark", "data-enc": point.n });
  const color = inColour(point) ? colorOf(point.n) : "var(--faint)";
  if (point.y.low != null) group.append(draw("line", { stroke: color, x1: px, x2: px, y1: y(point.y.low), y2: y(point.y.high) }));
  if (point.x.low != null) {
    const low = cost.linear || point.x.low > 0 ? inside(x(point.x.low)) : left;
    group.append(draw("line", { stroke: color, x1: low, x2: inside(x(point.x.high)), y1: py, y2: py }));
  }
  group.append(pointMark(point.n, px, py, radius(point), { fill: point.front ? color : "var(--paper)", stroke: color }));
  group.append(draw("title", {}, `${encodings()[point.n].name}: ${quality().name} ${spoken(point.y, rebased() ? signed : quality().write)}${quality().unit()}; ${spoken(point.x, cost.write)}`));
  picture.append(group);
  return group;
}

/** The name of an encoding beside its point: to the right if there is room, else to the left; above it, or below. */
function paretoLabel(point, px, py, width, { left = false, below = false } = {}) {
  const name = clipped(encodings()[point.n].name);
  const side = left || px + 10 + name.length * 6.4 > width;
  return draw("text", { class: "end", "data-enc": point.n, x: px + (side ? -9 : 9), y: py + (below ? 15 : -6), "text-anchor": side ? "end" : "start", fill: inColour(point) ? colorOf(point.n) : "var(--quiet)" }, name);
}

/** Of a mark, in pixels. */
const radius = (point) => (point.front ? 6 : 4);

const inColour = (point) => point.front || encodings()[point.n].strong || point.n === state.base;

/**
 * Names beside the points, as far as there is room: if possible between the marks, else over them; first those on the front and in colour.
 * Returns how many have none.
 */
function paretoLabels(picture, found, x, y, width) {
  const rank = (point) => (point.n === state.base ? 0 : point.front ? 1 : encodings()[point.n].strong ? 2 : 3);
  const few = found.length <= 12;
  const names = (point) => (place) => paretoLabel(point, x(point.x.v), y(point.y.v), width, place);
  const marks = [...found].sort((a, b) => rank(a) - rank(b)).map((point) => ({ at: [x(point.x.v), y(point.y.v)], reach: OUTLINE * radius(point), label: rank(point) === 3 && !few ? null : names(point) }));
  return placeNames(picture, marks, width, { over: true });
}

/** One column per protocol, encodings in the order of their rank, joined by lines. */
function rankChart(box) {
  const orders = section().protocols.map((_, protocol) => ranking(protocol));
  const most = Math.max(...orders.map((order) => order.length));
  const width = Math.max(280, Math.min(760, box.clientWidth || 320));
  const [top, step] = [42, 17];
  const height = top + most * step + 8;
  const longest = Math.min(LONGEST, Math.max(...encodings().map((each) => each.name.length)));
  const side = Math.min(width * 0.4, 16 + longest * 6.9);
  const picture = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Rank of every encoding under every protocol" });
  const x = (protocol) => side + (protocol * (width - 2 * side)) / (orders.length - 1);
  const y = (protocol, n) => top + (orders[protocol].indexOf(n) + 0.5) * step;
  section().protocols.forEach((protocol, n) => {
    const anchor = n === 0 ? "start" : n === orders.length - 1 ? "end" : "middle";
    const at = n === 0 ? x(n) - 4 : n === orders.length - 1 ? x(n) + 4 : x(n);
    picture.append(draw("text", { class: n === state.protocol ? "head chosen" : "head", x: at, y: width < 560 && n % 2 ? 30 : 14, "text-anchor": anchor }, protocol.name));
  });
  const lines = new Map();
  for (const n of new Set(orders.flat())) lines.set(n, rankLine(picture, orders, n, x, y));
  box.replaceChildren(picture);
  charts.push({
    highlight: (n) => {
      picture.classList.toggle("dim", n !== null);
      for (const [other, line] of lines) line.classList.toggle("on", other === n);
    },
  });
}

function rankLine(picture, orders, n, x, y) {
  const moved = orders.some((order) => order.includes(n) && order.indexOf(n) !== orders[state.protocol].indexOf(n));
  const color = moved ? colorOf(n) : "var(--quiet)";
  const group = draw("g", { class: moved ? "rank moved" : "rank", "data-enc": n });
  const places = orders.map((order, protocol) => (order.includes(n) ? { x: x(protocol), v: y(protocol, n) } : null));
  const same = (value) => value;
  group.append(draw("path", { class: "stroke", stroke: color, d: pathOf(places, same, same) }));
  for (const place of places) if (place) group.append(draw("circle", { cx: place.x, cy: place.v, r: 3, fill: color }));
  const name = clipped(encodings()[n].name);
  const [first, final] = [places[0], places[places.length - 1]];
  if (first) group.append(draw("text", { class: "end", x: first.x - 8, y: first.v + 4, "text-anchor": "end", fill: color }, name));
  if (final) group.append(draw("text", { class: "end", x: final.x + 8, y: final.v + 4, fill: color }, name));
  group.addEventListener("pointerenter", unlessTouched(() => heat(n)));
  group.addEventListener("pointerleave", unlessTouched(() => heat(null)));
  picture.append(group);
  return group;
}
