// The parts of the page below the answer: each returns its elements, or null where the results have nothing for it.

/** The charts of one measure: all encodings at the left, then one small chart per family with the rest in grey. */
function familyCharts(id, title, caption, chart) {
  const all = everyEncoding();
  const has = (n) => chart.points(n).some((point) => point !== null);
  const strong = all.filter((n) => (all.length <= 10 || encodings()[n].strong || n === state.base) && has(n));
  const families = section().families.map((family) => ({ ...family, members: all.filter((n) => encodings()[n].family === family.key && has(n)) })).filter((family) => family.members.length);
  if (!families.length) return null;
  const boxes = [];
  const figure = (heading, members, height, wide) => {
    const box = make("div", { class: "chart" });
    boxes.push(() => lineChart(box, { ...chart, title: `${title} ${heading}`, members, height }));
    return make("figure", { class: wide ? "wide" : "" }, make("figcaption", {}, make("h3", {}, heading)), box);
  };
  const heading = all.length <= 10 ? "All encodings" : "The best, the worst, and the rest in grey";
  const figures = [figure(heading, strong, innerWidth > 860 ? 462 : 290, true), ...families.map((family) => figure(family.title.split(":")[0], family.members, Math.max(222, 62 + 12 * family.members.length), false))];
  return partOf(id, title, caption, [make("div", { class: "multiples" }, ...figures)], () => boxes.forEach((finish) => finish()));
}

const lengthAxis = () => ({ values: section().lengths, names: section().ratios, train: section().trainLength, label: "window, multiples of the training length L" });
const against = () => (rebased() ? ` minus that of ${encodings()[state.base].name}` : "");
const protocolName = (n) => section().protocols[n].name;

/** How intervals are made, for the captions. */
const basis = () => `Bands and brackets: 95 % intervals over ${section().fewSeeds ? `${section().items} only` : `seeds and ${section().items}`}.`;

/** How intervals of bins are made; of most, numbers are known per seed only. */
const overSeeds = (bins) => (bins[0].intervals.length && !rebased() ? basis() : section().fewSeeds ? "Too few seeds for intervals." : "Bands: 95 % intervals over seeds (Student's t).");

function pointsOf(values, at) {
  return values.map((value, k) => (value.missing ? null : { x: at(k), v: value.v, low: value.low, high: value.high }));
}

/** The accuracies of a guess, and from which a task counts as solved. */
function levelsOf() {
  const { chance, solved } = section().answered;
  return rebased() ? [] : [{ at: solved, text: "solved", below: true }, ...(chance === null ? [] : [{ at: chance, text: "chance" }])];
}

function accuracyPart() {
  const levels = levelsOf();
  const what = rebased() ? `Accuracy${against()}: above zero is better` : "Accuracy, the share of the tokens of the answers that the model ranks first: higher is better";
  return familyCharts("accuracy", "How long may a window be, so that what was asked for is still found?", `${what}. ${basis()}`, {
    points: (n) => pointsOf(section().lengths.map((_, k) => accuracyAt(n, k)), (k) => section().lengths[k]),
    kind: "linear", tick: rebased() ? signedTick : tickText, zero: rebased(), levels, x: lengthAxis(),
  });
}

/** Accuracy in the longest window by depth or gap, with numbers per seed. */
function placePart() {
  const { place } = section().answered;
  if (place === null) return null;
  const { bins, depth } = place;
  const at = (bin) => (depth ? (bin.from + bin.to + 1) / 2 : bin.to + 1);
  const inside = (value) => (value === null || rebased() ? value : Math.min(1, Math.max(0, value)));
  const cut = (value) => (value.missing ? value : { ...value, low: inside(value.low), high: inside(value.high) });
  const seeds = overSeeds(bins);
  const levels = levelsOf();
  const names = bins.map((bin) => (depth ? `${bin.from} to ${bin.to + 1} %` : counted(bin.to + 1)));
  return familyCharts("place", place.title, `Accuracy in windows of ${counted(place.length)} tokens${against()}. ${seeds}`, {
    points: (n) => pointsOf(bins.map((bin) => cut(binValue(bin, n, 1))), (k) => at(bins[k])).filter((point) => point !== null),
    kind: "linear", tick: rebased() ? signedTick : tickText, zero: rebased(), levels,
    x: { values: bins.map(at), names, train: depth ? NaN : section().trainLength, label: place.label, even: depth },
  });
}

function lossPart() {
  const compared = rebased();
  const inBits = compared || !section().perplexities;
  const measure = inBits ? lossAt : perplexityAt;
  const title = compared ? "Is it better or worse, by length?" : "Which still predict well beyond the training length?";
  const plain = inBits ? `Loss, ${section().bits}: lower is better` : `Perplexity per ${section().unit}: lower is better`;
  const what = compared ? `Loss${against()}, ${section().bits}: below zero is better` : plain;
  return familyCharts("loss", title, `${what}. Protocol ${protocolName(state.protocol)}. ${basis()}`, {
    points: (n) => pointsOf(section().lengths.map((_, k) => measure(n, k)), (k) => section().lengths[k]),
    kind: compared ? "signed" : "log", tick: compared ? signedTick : tickText, zero: compared, x: lengthAxis(),
  });
}

function gainPart() {
  if (gainProtocol() === null) return null;
  const what = rebased() ? `Context gain${against()}, ${section().bits}: above zero gains more` : `${capital(section().bits)} won by reading the whole window instead of its last L tokens: above zero helps, below zero harms`;
  return familyCharts("gain", "Does longer context help, or harm?", `${what}. Protocol ${protocolName(gainProtocol())}. ${basis()}`, {
    points: (n) => pointsOf(section().lengths.map((_, k) => gainAt(n, k)), (k) => section().lengths[k]),
    kind: "signed", tick: signedTick, zero: true, x: lengthAxis(),
  });
}

/** A chart over bins of positions or distances, with numbers per seed. */
function binsPart(id, title, caption, bins, merit, kind) {
  if (!bins.length) return null;
  const middle = (bin) => Math.sqrt(Math.max(1, bin.from) * bin.to);
  const edges = section().lengths.filter((length) => length >= bins[0].from && length <= bins[bins.length - 1].to);
  const below = Array.from({ length: 12 }, (_, n) => section().trainLength / 2 ** (n + 1)).filter((value) => value >= bins[0].from && Number.isInteger(value)).reverse();
  const values = [...below, ...edges];
  if (values.length < 2) values.push(...bins.map(middle));
  const seeds = overSeeds(bins);
  return familyCharts(id, title, `${caption} ${seeds}`, {
    points: (n) => pointsOf(bins.map((bin) => binValue(bin, n, merit)), (k) => middle(bins[k])).filter((point) => point !== null),
    kind: rebased() ? "signed" : kind, tick: rebased() || kind === "signed" ? signedTick : tickText, zero: rebased() || kind === "signed",
    x: { values, names: values.map((value) => counted(value)), train: section().trainLength, label: id === "recall" ? "distance back, tokens" : "position in the window" },
  });
}

const positionPart = () => binsPart("position", "Where in a long window does prediction get worse?", `Loss by position in the longest window${against()}, ${section().bits}: lower is better.`, section().position, -1, "log");
const recallPart = () => binsPart("recall", "Is text from beyond the training length recalled?", `Gain of the whole window over its last L tokens${against()}, on tokens that could be copied, bits per token: above zero is recalled.`, section().recall, 1, "signed");

function lossTable() {
  return table("loss", `Loss by length${against()}, ${section().bits} (${protocolName(state.protocol)})`, [nameColumn(), ...lengthColumns(lossAt, rebased() ? signed : bits, shadeOfLoss(), false)], last() + 1);
}

function gainTable() {
  const safe = reachColumn(`the largest multiple of L up to which a window is proven safe: its interval excludes a harm of 0.01 ${section().bits}`);
  return table("gain", `Context gain by length${against()}, ${section().bits} (${protocolName(gainProtocol())}), and the safe length`, [nameColumn(), ...lengthColumns(gainAt, signed, shadeOfGain, true), safe], last() + 1, true);
}

/** How good an accuracy is, as a shade: from chance to all right; re-based, how far it is from the base. */
function shadeOfShare(value) {
  const chance = section().answered?.chance ?? 0;
  return rebased() ? Math.sign(value.v) * Math.min(1, 2 * Math.abs(value.v)) : (value.v - chance) / (1 - chance);
}

function accuracyTable() {
  const effective = reachColumn("the largest multiple of L up to which 90 % of the answers are right at every length");
  return table("accuracy", `Accuracy by length${against()}, and the effective length`, [nameColumn(), ...lengthColumns(accuracyAt, rebased() ? signed : share, shadeOfShare, true), effective], last() + 1, true);
}

/** The column of the length up to which an encoding can be used. */
function reachColumn(note) {
  const { reach, reachName } = quality();
  return { head: reachName, note, key: (n) => keyOf(reach(n)), down: true, cell: (n) => reachCell(reach(n)) };
}

/** A table of each measure that a task added, other than the accuracy that ranks it. */
function taskTables() {
  const measures = Object.entries(section().tasks).filter(([name]) => !(section().answered && name === "accuracy"));
  return measures.map(([name, protocols]) => {
    const lists = protocols[protocolName(state.protocol)] || protocols[Object.keys(protocols)[0]];
    const measure = (n, k) => seedwise(lists[k], n, 1);
    return table(`task-${name}`, `${name} by length${against()}`, [nameColumn(), ...lengthColumns(measure, rebased() ? signed : bits, shadeOfShare, true)], last() + 1);
  });
}

function heatPart() {
  const gain = gainProtocol() === null ? [] : [gainTable()];
  const tables = section().answered ? [accuracyTable(), ...taskTables()] : [lossTable(), ...gain, ...taskTables()];
  const plain = section().answered ? "the darker, the more answers are right" : "the darker, the further from the best at this length; gains in blue, harm in orange";
  const caption = `Shade: ${rebased() ? "blue is better, orange worse" : plain}. Hatched: refused, out of memory or diverged.`;
  return partOf("heat", "By length, in numbers", caption, [make("div", { class: "heats" }, ...tables)]);
}

/** A length with a bar as long as its octaves. */
function reachCell(value) {
  const cell = valueCell(value, multiple);
  if (value.missing || rebased()) return cell;
  const most = Math.log2(section().lengths[last()] / section().trainLength);
  cell.classList.add("bar");
  cell.style.setProperty("--length", `${most ? (100 * Math.log2(value.v)) / most : 0}%`);
  return cell;
}

/** What the best model wins that was trained at a longer length, what each encoding wins of that, and what it pays. */
function usePart() {
  const { use, ceilings } = section();
  if (use === null) return null;
  const percent = (v) => `${fixed(100 * v, 0)} %`;
  const column = (ceiling, what, numbers, write, shadeOf, down) => {
    const value = (n) => (numbers[n][0] === null ? { missing: "-", reason: "not known" } : withWhy(numbers[n], few()));
    const cell = (n) => valueCell(value(n), write, value(n).missing ? 0 : shadeOf(value(n)));
    return { head: `${what} ${section().ratios[section().lengths.indexOf(ceiling.length)]}`, note: `${ceiling.length} tokens`, key: (n) => keyOf(value(n)), down, cell };
  };
  const columns = ceilings.flatMap((each) => [
    column(each, "gain", each.gains, signed, shadeOfGain, true),
    column(each, "used", each.used, percent, (value) => value.v, true),
    ...(each.prices.some(([v]) => v !== null) ? [column(each, "price", each.prices, signed, (value) => -shadeOfGain(value), false)] : []),
  ]);
  const legend = make("ul", { class: "caption" }, ...use.legend.map((line) => make("li", {}, line)));
  const plainly = rebased() ? " These numbers are relative to no encoding." : "";
  const numbers = table("use", "Gain, the share of the ceiling that it is, and the price of training short", [nameColumn(), ...columns], 1, true);
  return partOf("use", use.title, use.answer + plainly, [numbers, legend]);
}

function attributionPart() {
  const changes = section().attribution;
  if (!changes.length) return null;
  const value = (change, n) => (change.why[n] ? { missing: change.why[n].split(":")[0], reason: change.why[n], bad: change.why[n].startsWith("fault") } : seedwise(change.values, n, -1));
  const columns = changes.map((change) => ({ head: change.title, key: (n) => keyOf(value(change, n)), cell: (n) => {
    const own = value(change, n);
    return valueCell(own, signed, own.missing ? 0 : -shadeOfGain(own));
  } }));
  const caption = `Harm${against()}, bits per token above the loss with the last L tokens alone: of the whole window, and of one change of these tokens at a time. Intervals over seeds.`;
  const legend = make("ul", { class: "caption" }, ...section().changes.map((line) => make("li", {}, line)));
  const numbers = table("why", "Harm of a long window, and of one change at a time", [nameColumn(), ...columns], 1);
  return partOf("why", "Why do they break?", caption, [numbers, legend]);
}

function protocolPart() {
  if (section().protocols.length < 2 || !ranking().length) return null;
  const box = make("div", { class: "chart" });
  const caption = "Rank by loss at the longest length, best at the top. In colour: encodings that change their place when the protocol does.";
  const said = section().protocols.filter((each) => each.explained).map((each) => make("div", {}, make("dt", {}, each.name), make("dd", {}, each.explained.replace(`${each.name}: `, ""))));
  const beside = make("div", { class: "beside" }, make("figure", {}, box), make("dl", { class: "made" }, ...said));
  return partOf("protocols", "Does the protocol change the ranking?", caption, [beside], () => rankChart(box));
}

/** The rank of an encoding, with the places that it has won or lost against the main protocol. */
function rankCell(n) {
  const at = ranking().indexOf(n);
  const before = ranking(section().main).indexOf(n);
  if (at < 0) return make("td", { class: "number none" }, make("span", { class: "why" }, "not ranked"));
  const moved = before < 0 ? 0 : before - at;
  const arrow = moved ? make("span", { class: moved > 0 ? "word better" : "word worse" }, `${moved > 0 ? "\u25b2" : "\u25bc"}${Math.abs(moved)} from ${protocolName(section().main)}`) : "";
  return make("td", { class: "number" }, make("span", { class: "v" }, String(at + 1)), arrow);
}

function tablePart() {
  const end = section().ratios[last()];
  const own = (n) => encodings()[n];
  const shown = quality();
  const acts = { head: "How it acts", key: (n) => own(n).acts, cell: (n) => make("td", { class: "acts" }, make("span", {}, own(n).acts), ...own(n).parts.map(([name, formula]) => make("span", { class: "formula" }, own(n).parts.length > 1 ? `${name}: ${formula}` : formula))) };
  const verdict = { head: "Extrapolates?", note: `the verdict at ${end}`, key: (n) => own(n).verdict, cell: (n) => make("td", { class: own(n).can_win ? "" : "failed", title: own(n).reason || own(n).meaning }, make("span", { class: own(n).can_win ? "" : "why" }, statusName(own(n).verdict))) };
  const extra = (n) => parametersOf(n);
  const numbers = [
    { head: "Rank", key: (n) => (ranking().indexOf(n) < 0 ? null : ranking().indexOf(n)), cell: rankCell },
    nameColumn(), acts, verdict,
    { head: "Parameters", key: (n) => keyOf(extra(n)), cell: (n) => parameterCell(n) },
    { head: capital(shown.reachName), key: (n) => keyOf(shown.reach(n)), down: true, cell: (n) => reachCell(shown.reach(n)) },
    ...[...new Set([0, last()])].map((k) => ({ head: `${capital(shown.name)} at ${section().ratios[k]}`, key: (n) => keyOf(shown.at(n, k)), down: shown.sign < 0, cell: (n) => valueCell(shown.at(n, k), rebased() ? signed : shown.write) })),
    ...(section().answered ? [] : [{ head: `Gain at ${end}`, key: (n) => keyOf(gainAt(n, last())), down: true, cell: (n) => valueCell(gainAt(n, last()), signed) }]),
    ...section().costs.map((cost) => ({ head: cost.title[0].toUpperCase() + cost.title.slice(1), key: (n) => keyOf(costOf(cost, n)), cell: (n) => valueCell(costOf(cost, n), rebased() ? times : seconds) })),
    { head: "Reproduce", cell: copyButton },
  ];
  const measured = section().answered ? "Accuracy: share of the answers" : `Loss and gain in ${section().bits}`;
  const caption = `${measured}${rebased() ? `, all numbers relative to ${own(state.base).name}` : ""}. ${basis()} Times: 95 % intervals over seeds; parameters are exact. A star: some seeds failed.${section().timing && ` ${section().timing}`}`;
  const title = "All encodings compared";
  return partOf("table", title, caption, [table("all", title, numbers, 0)]);
}

function parameterCell(n) {
  const value = parametersOf(n);
  const cell = valueCell(value, (v) => (rebased() ? (v > 0 ? "+" : "") : "") + counted(v));
  if (!rebased() && encodings()[n].extra) cell.append(make("span", { class: "i" }, `+${counted(encodings()[n].extra)}`));
  return cell;
}

const PARTS = [lossPart, gainPart, usePart, positionPart, heatPart, recallPart, attributionPart, protocolPart, tablePart];
const PARTS_OF_TASK = [accuracyPart, placePart, heatPart, tablePart]; // only the answers were trained
