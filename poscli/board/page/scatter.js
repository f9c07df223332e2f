// Quality at L against regret at the longest windows; the area of a mark is the cost of training.

const UNKNOWN_COST = 1;
const MOST_NAMED = 16;
const FEW_RANKED = 3; // below which their places say nothing about where the others lie

/** The encodings that have both numbers, the better ones last, so that they are drawn above the others. */
function scatterPoints() {
  const known = everyEncoding().filter((n) => encodings()[n].regret[0] !== null && encodings()[n].loss[0] !== null);
  return known.map((n) => ({ n, x: encodings()[n].loss[0], y: encodings()[n].regret, inside: passes(n) })).reverse();
}

/** Those to draw: of those without a rank, only such as lie where the others do, so that none squeezes them. */
function nearRanked(found) {
  const base = found.filter((point) => isRanked(point.n));
  if (base.length < FEW_RANKED) return found;
  const within = (of) => {
    const values = base.map(of);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const room = 0.15 * (high - low);
    return (point) => of(point) >= low - room && of(point) <= high + room;
  };
  const [x, y] = [within((point) => point.x), within((point) => point.y[0])];
  return found.filter((point) => isRanked(point.n) || (x(point) && y(point)));
}

/** In pixels; the area is in proportion to the cost of a training step over none. */
const reachOf = (n) => 4.2 * Math.sqrt(encodings()[n].training[0] ?? UNKNOWN_COST);

function scatter() {
  const all = scatterPoints();
  const found = nearRanked(all);
  byId("scatter-figure").hidden = !found.length;
  if (!found.length) return;
  const end = longest();
  const box = byId("scatter");
  const width = Math.max(260, box.clientWidth || 320);
  const height = Math.round(Math.min(520, Math.max(320, width * 0.78)));
  const margin = { left: 52, right: 16, top: 36, bottom: 38 };
  const right = width - margin.right;
  const values = found.map((point) => point.y[0]);
  const y = scale(Math.min(...values) > 0 ? "log" : "linear", [...values, 1], height - margin.bottom, margin.top);
  const x = scale("log", found.map((point) => point.x), margin.left, right);
  const label = `Bits at L against regret at ${end}`;
  const picture = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${label}; arrow keys go from mark to mark` });
  const names = tickNames(x.ticks, tickText);
  const chart = { x: { values: x.ticks, names, label: `bits per byte at L${x.name && `, ${x.name}`}`, train: NaN }, tick: tickText };
  axes(picture, chart, { x: x.at, y, width, right, height, margin });
  picture.append(draw("line", { class: "level", x1: margin.left, x2: right, y1: y.at(1), y2: y.at(1) }));
  picture.append(draw("text", { class: "tick", x: right, y: y.at(1) - 4, "text-anchor": "end" }, "as good as the best cut to L"));
  picture.append(draw("text", { class: "axis", x: margin.left, y: 12 }, `regret at ${end}`));
  const marks = new Map(found.map((point) => [point.n, scatterMark(point, x.at, y.at)]));
  picture.append(...marks.values());
  box.replaceChildren(picture);
  const unnamed = scatterLabels(picture, found.filter((point) => point.inside), x.at, y.at, width);
  walkable(found, marks);
  const top = draw("g", { class: "top" });
  picture.append(top);
  charts.push({
    highlight: (n) => {
      const point = found.find((each) => each.n === n);
      top.replaceChildren(...(point ? hotMark(point, x.at, y.at, width) : []));
    },
  });
  nearest(picture, everyEncoding().map((n) => found.filter((point) => point.n === n && point.inside).map((point) => ({ x: point.x, v: point.y[0] }))), x.at, y.at);
  const away = all.filter((point) => !found.includes(point)).map((point) => encodings()[point.n].name);
  const costs = found.some((point) => encodings()[point.n].training[0] !== null) ? " The area of a mark is the cost of a training step." : "";
  const hollow = found.some((point) => !isRanked(point.n)) ? " Hollow: without a rank." : "";
  const kinds = found.some((point) => encodings()[point.n].readAs) ? " Squares on their corner: models that are read as another encoding." : "";
  byId("scatter-caption").textContent = `Better is down and to the left.${costs}${kinds}${hollow}${away.length ? ` Not shown, far off: ${listed(away)}.` : ""}${unnamed ? ` ${unnamed} of ${found.length} have no name here: point at a mark, or go to it with the keyboard.` : ""}`;
  byId("families").replaceChildren(...section().families.map((family) => {
    const swatch = make("span", { class: "swatch" });
    swatch.style.background = colorOf(everyEncoding().find((n) => encodings()[n].family === family.key));
    return make("span", {}, swatch, family.title.split(":")[0]);
  }));
}

function scatterMark(point, x, y) {
  const own = encodings()[point.n];
  const color = colorOf(point.n);
  const said = `${own.name}: ${bits(point.x)} bits at L, regret ${spoken(valueOf(point.y), two)}, ${own.ranks ? `rank ${own.ranks}` : own.status}`;
  const link = draw("a", { class: point.inside ? "mark" : "mark out", "data-enc": point.n, href: own.page || null, role: own.page ? null : "img", tabindex: -1, "aria-label": said });
  link.append(pointMark(point.n, x(point.x), y(point.y[0]), reachOf(point.n), { fill: isRanked(point.n) ? color : "var(--paper)", stroke: isRanked(point.n) ? "var(--paper)" : color }));
  link.addEventListener("focus", () => heat(point.n));
  link.addEventListener("blur", () => heat(null));
  return link;
}

/** One stop of the tab key for all marks, which the arrow keys walk through from the left to the right. */
function walkable(found, marks) {
  const order = found.filter((point) => point.inside).sort((a, b) => a.x - b.x).map((point) => marks.get(point.n));
  if (order.length) order[0].setAttribute("tabindex", 0);
  order.forEach((mark, at) => mark.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const next = step && order[at + step];
    if (!next) return;
    event.preventDefault();
    mark.setAttribute("tabindex", -1);
    next.setAttribute("tabindex", 0);
    next.focus();
  }));
}

/** The mark under the pointer above all others, with its interval and its name. */
function hotMark(point, x, y, width) {
  const color = colorOf(point.n);
  const [v, low, high] = point.y;
  const whisker = low === null ? [] : [draw("line", { class: "whisker", stroke: color, x1: x(point.x), x2: x(point.x), y1: y(low), y2: y(high) })];
  return [...whisker, pointMark(point.n, x(point.x), y(v), reachOf(point.n) + 1.5, { fill: color, stroke: "var(--ink)" }), scatterLabel(point, x, y, width, {})];
}

function scatterLabel(point, x, y, width, { left = false, below = false }) {
  const name = clipped(encodings()[point.n].name);
  const [px, py, off] = [x(point.x), y(point.y[0]), OUTLINE * reachOf(point.n) + 3];
  const side = left || px + off + name.length * 6.4 > width;
  return draw("text", { class: "end", x: px + (side ? -off : off), y: py + (below ? 13 : -3), "text-anchor": side ? "end" : "start", fill: colorOf(point.n) }, name);
}

/** Names beside the marks as far as there is room, those of the best ranks first; returns how many marks have none. */
function scatterLabels(picture, found, x, y, width) {
  const marks = [...found].sort((a, b) => a.n - b.n).map((point) => ({ at: [x(point.x), y(point.y[0])], reach: OUTLINE * reachOf(point.n), label: (place) => scatterLabel(point, x, y, width, place) }));
  return placeNames(picture, marks, width, { most: MOST_NAMED });
}
