// Where the order depends on the text, beside how far back the text repeats itself; and what there is to win on each.

const MOVERS = 6;
let opened = false; // whether the reader has unfolded the table of all texts

/** How many places an encoding moves between the texts. */
function movesOf(n) {
  const places = Object.values(encodings()[n].places);
  return Math.max(...places) - Math.min(...places);
}

const movers = () => shownRanked().filter((n) => movesOf(n) > 0).sort((a, b) => movesOf(b) - movesOf(a) || a - b).slice(0, MOVERS);

function textsPart() {
  const { texts, profiles } = section();
  if (texts.length < 2 || ranked().length < 2) return null;
  const title = "Where does the order depend on the text?";
  const moving = movers();
  const said = moving.slice(0, 3).map((n) => {
    const places = Object.entries(encodings()[n].places).sort((a, b) => a[1] - b[1]);
    return `${encodings()[n].name} (place ${places[0][1]} on ${places[0][0]}, ${places.at(-1)[1]} on ${places.at(-1)[0]})`;
  });
  const caption = `The order of the regret at ${longest()} on each text by itself, the best at the top. It is that of the estimates: many neighbours cannot be told apart, and the table has the intervals.${said.length ? ` Most of all move ${listed(said)}.` : ""}`;
  const boxes = [];
  const known = texts.filter((text) => profiles[text]);
  const profileFigures = known.map((text) => {
    const box = make("div", { class: "chart" });
    boxes.push(() => profileChart(box, text));
    const { exponent } = profiles[text];
    const falls = exponent === null ? "" : `, falls as d^${MINUS}a with a = ${spoken(valueOf(exponent), two)}`;
    return make("figure", {}, make("figcaption", {}, make("h3", {}, `How far back ${text} repeats itself`), make("p", {}, `p(d), the density of the tokens that could be copied${falls}.`)), box);
  });
  const chart = make("div", { class: "chart" });
  boxes.push(() => placesChart(chart, moving));
  const columns = [linkColumn(), ...texts.map((text) => textColumn(text)), { head: "Moves", note: "places between the best and the worst text", key: movesOf, down: true, cell: (n) => make("td", {}, String(movesOf(n))) }];
  const rows = shownRanked().length ? [make("details", { open: opened }, make("summary", {}, "Regret and place of every encoding on every text"), table("texts", "Regret and place on every text", columns, columns.length - 1, true, shownRanked))] : [];
  rows.forEach((each) => each.addEventListener("toggle", () => { opened = each.open; }));
  const part = make("section", { id: "texts" }, make("h2", {}, title), make("p", { class: "caption" }, caption), profileFigures.length ? make("div", { class: "multiples profile" }, ...profileFigures) : null, chart, ...rows);
  return { title, part, finish: () => boxes.forEach((finish) => finish()) };
}

function textColumn(text) {
  const value = (n) => valueOf(encodings()[n].texts[text].regret);
  return {
    head: text,
    key: (n) => keyOf(value(n)),
    cell: (n) => {
      const cell = valueCell(value(n), two);
      cell.append(make("span", { class: "word" }, `place ${encodings()[n].places[text]}`));
      return cell;
    },
  };
}

/** One column per text, a line per encoding; those that move most are in colour, with their names at the ends. */
function placesChart(box, moving) {
  const { texts } = section();
  const width = Math.max(280, Math.min(1160, box.clientWidth || 320));
  const height = Math.max(150, Math.min(460, 60 + 14 * ranked().length));
  const side = Math.min(190, width * 0.34);
  const [top, bottom] = [30, height - 10];
  const x = (at) => side + (at * (width - 2 * side)) / (texts.length - 1);
  const y = (place) => top + ((place - 1) / Math.max(1, ranked().length - 1)) * (bottom - top);
  const picture = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Places on ${listed(texts, 9)}; the same are in the table below` });
  const line = (n) => `M${texts.map((text, at) => `${x(at).toFixed(1)} ${y(encodings()[n].places[text]).toFixed(1)}`).join("L")}`;
  texts.forEach((text, at) => picture.append(draw("text", { class: "head", x: x(at), y: width < 560 && at % 2 ? 24 : 12, "text-anchor": "middle" }, text), draw("line", { class: "grid", x1: x(at), x2: x(at), y1: top, y2: bottom })));
  picture.append(draw("path", { class: "rest", d: shownRanked().filter((n) => !moving.includes(n)).map(line).join("") }));
  moving.forEach((n, k) => picture.append(draw("path", { class: "moving", stroke: `var(--c${k})`, d: line(n) })));
  for (const [at, anchor, shift] of [[0, "end", -8], [texts.length - 1, "start", 8]]) {
    const labels = moving.map((n, k) => ({ n, k, at: y(encodings()[n].places[texts[at]]) })).map((label) => ({ ...label, y: label.at })).sort((a, b) => a.y - b.y);
    spread(labels, 13, top, bottom);
    for (const { n, k, y: level } of labels) picture.append(draw("text", { class: "end", x: x(at) + shift, y: level + 4, "text-anchor": anchor, fill: `var(--c${k})` }, `${encodings()[n].places[texts[at]]} ${clipped(encodings()[n].name, width < 560 ? 14 : 24)}`));
  }
  const hot = draw("path", { class: "moving", d: "" });
  picture.append(hot);
  box.replaceChildren(picture);
  charts.push({ highlight: (n) => {
    hot.setAttribute("d", n !== null && isRanked(n) ? line(n) : "");
    hot.setAttribute("stroke", "var(--ink)");
  } });
}

/** The density of what could be copied by its distance, both on logarithmic scales. */
function profileChart(box, text) {
  const { octaves, density } = section().profiles[text];
  const points = octaves.map(([from, to], n) => ({ x: Math.sqrt(from * to), v: density[n] })).filter((point) => point.v > 0);
  if (points.length < 2) return;
  const width = Math.max(240, box.clientWidth || 300);
  const [height, margin] = [170, { left: 60, right: 14, top: 14, bottom: 34 }];
  const y = scale("octaves", points.map((point) => point.v), height - margin.bottom, margin.top);
  const x = scale("octaves", points.map((point) => point.x), margin.left, width - margin.right);
  const picture = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `p(d) of ${text}` });
  const chart = { x: { values: x.ticks, names: tickNames(x.ticks, tickText), label: "distance d, tokens", train: NaN }, tick: (value, more = 0) => value.toExponential(more).replace("-", MINUS) };
  axes(picture, chart, { x: x.at, y: { ...y, name: "" }, width, right: width - margin.right, height, margin });
  picture.append(draw("path", { class: "stroke", stroke: "var(--ink)", d: pathOf(points, x.at, y.at) }));
  box.replaceChildren(picture);
}

/** What a longer context is worth on each text, who says so, and what the text does to the top group. */
function ceilingsPart() {
  const { ceilings, without, profiles, length, lengths } = section();
  if (!ceilings.length) return null;
  const title = "What is there to win?";
  const top = ranked().filter((n) => encodings()[n].first === 1);
  const names = (found) => (found.length ? listed(found.map((n) => encodings()[n].name), 12) : "nobody");
  const changes = (text) => {
    if (!without[text]) return "";
    const joins = without[text].filter((n) => !top.includes(n));
    const leaves = top.filter((n) => !without[text].includes(n));
    return joins.length || leaves.length ? `${without[text].length}: ${names(joins)} would join, ${names(leaves)} would leave` : `${without[text].length}, the same`;
  };
  const byCounting = ceilings.some((each) => profiles[each.text]);
  const heads = ["Text", `Best cut to L = ${length}`, `Best trained on ${counted(lengths.at(-1))} tokens`, "To win", ...(byCounting ? ["Won by an n-gram"] : []), ...(Object.keys(without).length ? ["Top group without the text"] : [])];
  const loss = (value, who) => make("td", {}, make("span", { class: "v" }, bits(value)), make("span", { class: "i" }, who));
  const lines = ceilings.map((each) => make("tr", {}, make("th", { scope: "row" }, each.text), loss(each.cut, each.cut_of), loss(each.long, each.long_of), make("td", {}, bits(each.cut - each.long)), ...(byCounting ? [valueCell(valueOf(profiles[each.text]?.won), signed)] : []), ...(Object.keys(without).length ? [make("td", {}, changes(each.text))] : [])));
  const caption = `Bits per byte on every text; the regret is 1 at the first number and 0 at the second one.${top.length ? ` The top group, than which nobody is shown to be better, has ${top.length} of ${ranked().length}.` : ""}${byCounting ? ` Won by an n-gram: what one with a cache of the window wins by ${longest()}.` : ""}`;
  const whole = make("table", { "data-table": "ceilings" }, make("caption", { class: "unseen" }, title), make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))), make("tbody", {}, ...lines));
  const part = make("section", { id: "ceilings" }, make("h2", {}, title), make("p", { class: "caption" }, caption), make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, whole));
  return { title, part, finish: () => {} };
}
