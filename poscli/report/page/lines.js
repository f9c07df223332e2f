// Charts of lines: one line per encoding over a logarithmic axis of lengths, with bands for intervals.

const SMALLEST = 0.01; // differences below are drawn on a linear part of the signed axis
const NEAR = 10; // times SMALLEST, up to which a signed axis is linear throughout
const WIDE = 2.5; // largest over smallest value from which an axis is logarithmic
const charts = []; // of the page as it is drawn now: {highlight(n or null)}

/** A scale from values to pixels: {at, ticks, name}. `kind` is log (linear for values that are close), linear or signed
 * (logarithmic on both sides of zero; linear for small values). `name` says what is not linear, for the axis. */
function scale(kind, values, from, to) {
  const known = values.filter((value) => value !== null && Number.isFinite(value) && ((kind !== "log" && kind !== "octaves") || value > 0));
  let low = Math.min(...known);
  let high = Math.max(...known);
  if (kind === "log" && high < WIDE * low) kind = "linear";
  if (kind === "signed") [low, high] = [Math.min(low, -SMALLEST), Math.max(high, SMALLEST)];
  if (kind === "signed" && Math.max(-low, high) <= NEAR * SMALLEST) kind = "linear";
  const bend = {
    log: Math.log,
    octaves: Math.log,
    linear: (value) => value,
    signed: (value) => Math.sign(value) * Math.log1p(Math.abs(value) / SMALLEST),
  }[kind];
  let [start, end] = [bend(low), bend(high)];
  const room = (end - start) * 0.06 || 0.5;
  [start, end] = [start - room, end + room];
  // Ends of intervals that the axis does not reach, such as zero on a logarithmic one, are drawn at its end.
  const bent = (value) => ((kind === "log" || kind === "octaves") && value <= 0 ? start : Math.min(end, Math.max(start, bend(value))));
  const at = (value) => from + ((bent(value) - start) / (end - start)) * (to - from);
  const inside = (value) => bend(value) >= start && bend(value) <= end;
  const sparse = (ticks) => thinned(ticks.filter(inside), at);
  const ticks = sparse(ticksOf(kind, low, high));
  const name = { log: "logarithmic scale", octaves: "logarithmic scale", linear: "", signed: `logarithmic beyond \u00b1${SMALLEST}` }[kind];
  return { at, name, ticks: ticks.length > 1 ? ticks : sparse(ticksOf("linear", low, high)) }; // of values that are close
}

function ticksOf(kind, low, high) {
  if (kind === "signed") return [0, ...[0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30].flatMap((value) => [value, -value])];
  if (kind === "linear") {
    const step = niceStep((high - low) / 4);
    return Array.from({ length: 12 }, (_, n) => (Math.floor(low / step) + n) * step).map((value) => Number(value.toPrecision(12)));
  }
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high) + 1; power += 1)
    found.push(...[1, 2, 5].map((digit) => digit * 10 ** power), ...(high < 6 * low ? [1.2, 1.5, 2.5, 3, 4, 7].map((d) => d * 10 ** power) : []));
  return [...new Set(found)];
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  return [1, 2, 2.5, 5, 10].map((digit) => digit * power).find((step) => step >= rough * 0.99) || power;
}

/** Ticks at least 18 pixels apart; zero and round numbers first. */
function thinned(ticks, at) {
  const kept = [];
  const rank = (value) => (value === 0 ? 0 : Math.abs(Math.log10(Math.abs(value)) % 1) < 1e-6 ? 1 : 2);
  for (const tick of [...ticks].sort((a, b) => rank(a) - rank(b) || Math.abs(a) - Math.abs(b)))
    if (kept.every((other) => Math.abs(at(other) - at(tick)) >= 18)) kept.push(tick);
  return kept.sort((a, b) => a - b);
}

/** The attribute `d` of a line through points, broken where one is missing. */
function pathOf(points, x, y) {
  let pen = "M";
  return points.map((point) => {
    if (point === null) {
      pen = "M";
      return "";
    }
    const step = `${pen}${x(point.x).toFixed(1)} ${y(point.v).toFixed(1)}`;
    pen = "L";
    return step;
  }).join("");
}

/** The attribute `d` of the band between the ends of the intervals; empty without intervals. */
function bandOf(points, x, y) {
  const stretches = [[]]; // a point without an interval parts them
  for (const point of points) {
    if (point !== null && point.low !== null && point.low !== undefined) stretches.at(-1).push(point);
    else stretches.push([]);
  }
  return stretches.filter((stretch) => stretch.length > 1).map((stretch) => {
    const up = stretch.map((point) => `${x(point.x).toFixed(1)} ${y(point.high).toFixed(1)}`);
    const down = stretch.toReversed().map((point) => `${x(point.x).toFixed(1)} ${y(point.low).toFixed(1)}`);
    return `M${up.join("L")}L${down.join("L")}Z`;
  }).join("");
}

/**
 * Draw a chart of lines into a box. `chart`: {title, label, kind, points(n), members, x: {values, names, train},
 * write, height, zero, levels: [{at, text, below}]}. Members are in colour with a label at the end; all other encodings are grey.
 */
function lineChart(box, chart) {
  const width = Math.max(240, box.clientWidth || 320);
  const height = chart.height;
  const names = chart.members.map((n) => encodings()[n].name);
  const longest = Math.min(LONGEST, Math.max(0, ...names.map((name) => name.length)));
  const margin = { left: 44, right: Math.min(width * 0.55, 18 + longest * 6.9), top: 20, bottom: 34 };
  const all = everyEncoding().map((n) => chart.points(n));
  const flat = all.flat().filter((point) => point !== null);
  const picture = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chart.title });
  box.replaceChildren(picture);
  if (!flat.length) {
    box.replaceChildren(make("p", { class: "why" }, "No encoding has a number here."));
    return;
  }
  const right = width - margin.right;
  const shown = chart.members.length <= 10 ? chart.members.flatMap((n) => all[n]).filter((point) => point !== null && point.low != null) : [];
  const values = [...flat.map((point) => point.v), ...shown.flatMap((point) => [point.low, point.high]), ...(chart.zero ? [0] : []), ...(chart.levels || []).map((level) => level.at)];
  const y = scale(chart.kind, values, height - margin.bottom, margin.top);
  const x = scale(chart.x.even ? "linear" : "octaves", [...chart.x.values, ...flat.map((point) => point.x)], margin.left, right).at;
  axes(picture, chart, { x, y, width, right, height, margin });
  const others = everyEncoding().filter((n) => !chart.members.includes(n));
  picture.append(draw("path", { class: "rest", d: others.map((n) => pathOf(all[n], x, y.at)).join("") }));
  const lines = new Map();
  for (const n of chart.members) lines.set(n, coloured(picture, n, all[n], x, y.at, chart.members.length <= 6));
  endLabels(picture, chart, all, { x, y: y.at, right, top: margin.top, bottom: height - margin.bottom });
  const top = draw("g", { class: "top" });
  picture.append(top);
  charts.push({
    highlight: (n) => {
      picture.classList.toggle("dim", n !== null);
      for (const [other, line] of lines) line.classList.toggle("on", other === n);
      top.replaceChildren(...(n === null ? [] : hotLine(n, all[n], x, y.at, chart)));
    },
  });
  nearest(picture, all, x, y.at);
}

function axes(picture, chart, { x, y, right, height, margin }) {
  const bottom = height - margin.bottom;
  const names = tickNames(y.ticks, chart.tick);
  for (const [n, tick] of y.ticks.entries()) {
    const level = y.at(tick);
    const zero = tick === 0 && chart.zero;
    picture.append(draw("line", { class: zero ? "zero" : "grid", x1: margin.left, x2: right, y1: level, y2: level }));
    picture.append(draw("text", { class: "tick", x: margin.left - 6, y: level + 4, "text-anchor": "end" }, names[n]));
  }
  for (const level of chart.levels || []) {
    const at = y.at(level.at);
    picture.append(draw("line", { class: "level", x1: margin.left, x2: right, y1: at, y2: at }));
    picture.append(draw("text", { class: "tick", x: margin.left + 4, y: at + (level.below ? 12 : -3) }, `${level.text}, ${tickText(level.at)}`));
  }
  if (y.name) picture.append(draw("text", { class: "axis scale", x: margin.left, y: margin.top - 8 }, y.name));
  let free = -Infinity;
  chart.x.values.forEach((value, n) => {
    const half = 3.2 * chart.x.names[n].length;
    if (x(value) - half < free) return;
    free = x(value) + half + 10;
    picture.append(draw("text", { class: "tick", x: x(value), y: bottom + 15, "text-anchor": "middle" }, chart.x.names[n]));
  });
  const train = x(chart.x.train);
  if (train >= margin.left && train <= right)
    picture.append(draw("line", { class: "train", x1: train, x2: train, y1: margin.top, y2: bottom }));
  picture.append(draw("text", { class: "axis", x: margin.left, y: height - 3 }, chart.x.label));
}

function coloured(picture, n, points, x, y, banded) {
  const line = draw("g", { class: "line", "data-enc": n });
  if (banded) line.append(draw("path", { class: "band", fill: colorOf(n), d: bandOf(points, x, y) }));
  line.append(draw("path", { class: "stroke", stroke: colorOf(n), "stroke-dasharray": dashOf(n), d: pathOf(points, x, y) }));
  for (const point of points.length <= 8 ? points : [])
    if (point !== null) line.append(pointMark(n, x(point.x), y(point.v), 2.6, { fill: colorOf(n) }));
  picture.append(line);
  return line;
}

/** The line of the encoding under the pointer, above all others, with the interval and its name. */
function hotLine(n, points, x, y, chart) {
  const end = [...points].reverse().find((point) => point !== null);
  if (!end) return [];
  const parts = [
    draw("path", { class: "band", fill: colorOf(n), d: bandOf(points, x, y) }),
    draw("path", { class: "stroke", stroke: colorOf(n), "stroke-dasharray": dashOf(n), d: pathOf(points, x, y) }),
  ];
  if (!chart.members.includes(n))
    parts.push(draw("text", { class: "end", x: x(end.x) + 6, y: y(end.v) + 4, fill: colorOf(n) }, clipped(encodings()[n].name)));
  return parts;
}

const LONGEST = 24; // characters of a name in a chart; no registered encoding has a longer one
/** A long name: the encoding of `MODEL as ENCODING` alone, and without its middle, because specs differ at both ends. */
function clipped(name, most = LONGEST) {
  const short = name.length > most ? name.replace(/^.*? as /, "") : name;
  return short.length > most ? `${short.slice(0, most - 1 - (most >> 1))}\u2026${short.slice(-(most >> 1))}` : short;
}

/** Names at the ends of the coloured lines, moved apart so that none covers another. */
function endLabels(picture, chart, all, { x, y, right, top, bottom }) {
  const longest = Math.max(...all.flat().filter((point) => point !== null).map((point) => point.x));
  const ends = chart.members
    .map((n) => ({ n, end: [...all[n]].reverse().find((point) => point !== null) }))
    .filter((label) => label.end)
    .map((label) => ({ ...label, y: y(label.end.v) }))
    .sort((a, b) => a.y - b.y);
  spread(ends, 12, top + 4, bottom);
  for (const label of ends) {
    const early = label.end.x < longest;
    const text = clipped(encodings()[label.n].name) + (early ? " \u00d7" : "");
    if (Math.abs(label.y - y(label.end.v)) > 5 || early)
      picture.append(draw("path", { class: early ? "leader early" : "leader", stroke: early ? null : colorOf(label.n), d: `M${x(label.end.x) + 3} ${y(label.end.v)}L${right + 4} ${label.y}` }));
    picture.append(draw("text", { class: "end", "data-enc": label.n, x: right + 7, y: label.y + 4, fill: colorOf(label.n) }, text));
  }
}

/** Move sorted labels apart to this distance, or less for want of room, as little as possible (in squares). */
function spread(labels, wanted, top, bottom) {
  const gap = Math.min(wanted, (bottom - top) / Math.max(1, labels.length - 1));
  // Less `gap` for each label before it, places need only be in order; those that are not share their mean.
  const pools = [];
  for (const [n, label] of labels.entries()) {
    const pool = { sum: label.y - n * gap, count: 1 };
    while (pools.length && pools.at(-1).sum / pools.at(-1).count > pool.sum / pool.count) {
      const before = pools.pop();
      pool.sum += before.sum;
      pool.count += before.count;
    }
    pools.push(pool);
  }
  const last = bottom - (labels.length - 1) * gap;
  const places = pools.flatMap(({ sum, count }) => Array(count).fill(Math.min(last, Math.max(top, sum / count))));
  for (const [n, label] of labels.entries()) label.y = places[n] + n * gap;
}

/** Make the encoding nearest to the pointer, or to a tap, the one that the page shows. */
function nearest(picture, all, x, y) {
  const spots = all.flatMap((points, n) => points.filter((point) => point !== null).map((point) => [n, x(point.x), y(point.v)]));
  const point = (event) => {
    const place = picture.getBoundingClientRect();
    const [px, py] = [event.clientX - place.left, event.clientY - place.top];
    let [best, distance] = [null, 28 ** 2];
    for (const [n, sx, sy] of spots) {
      const far = (sx - px) ** 2 + (sy - py) ** 2;
      if (far < distance) [best, distance] = [n, far];
    }
    heat(best);
  };
  picture.addEventListener("pointermove", unlessTouched(point));
  picture.addEventListener("click", point);
  picture.addEventListener("pointerleave", unlessTouched(() => heat(null)));
}

const PLACES = [{}, { below: true }, { left: true }, { left: true, below: true }];
const OUTLINE = 1.3; // the outline of a mark reaches up to so many times as far as its radius

/**
 * Names beside marks as far as there is room, in the order of the marks, for at most `most` of them: between the marks, else `over` them if that is allowed.
 * A mark has its place `at`, how far it reaches, and its label in one of PLACES, or null. Returns how many have no name.
 */
function placeNames(picture, marks, width, { most = Infinity, over = false }) {
  const texts = [...picture.querySelectorAll("text")].map((text) => text.getBBox());
  const covered = marks.map(({ at: [x, y], reach }) => ({ x: x - reach, y: y - reach, width: 2 * reach, height: 2 * reach }));
  const fits = (label, taken) => {
    picture.append(label);
    const room = label.getBBox();
    const free = room.x >= 0 && room.x + room.width <= width && !taken.some((other) => meet(room, other));
    if (free) texts.push(room);
    else label.remove();
    return free;
  };
  let named = 0;
  for (const { label } of marks) {
    if (named >= most) break;
    const between = label !== null && PLACES.some((place) => fits(label(place), [...texts, ...covered]));
    if (between || (over && label !== null && PLACES.some((place) => fits(label(place), texts)))) named += 1;
  }
  return marks.length - named;
}
