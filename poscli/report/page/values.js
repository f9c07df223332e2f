// Numbers under the reader's choices. Every function returns a value: {v, low, high, word, why, missing}.
//
// v, low, high: the number and its 95 % interval; `why` says why there is no interval; `word` says, where the page is
// re-based to an encoding, whether this one is better, worse or within noise; `missing` says why there is no number,
// and `bad` that this is a failure. `exact` marks numbers that have no error, such as parameters.

const WORDS = { b: "better", w: "worse", n: "within noise", "-": "" };
const STATUS = { oom: "out of memory", unsupported: "refused", nonfinite: "not finite" };
const POINT = { status: 0, failed: 1, reason: 2, loss: 3, gain: 6, perplexity: 9 };

const rebased = () => state.base !== PLAIN;
const gainProtocol = () => section().gainFrom[state.protocol];
const pointOf = (n, k, protocol = state.protocol) => section().points[protocol][n][k];

/** What a status is called; `unsupported` is what an encoding says of lengths for which it is not defined. */
const statusName = (status) => STATUS[status] || status;

/** The loss in bits per byte or cell; re-based, the difference to the base. */
function lossAt(n, k) {
  return numberAt(n, k, state.protocol, "loss");
}

/** The context gain in bits per byte or cell, under the protocol whose gain goes with the chosen one. */
function gainAt(n, k) {
  return gainProtocol() === null ? { missing: "not measured" } : numberAt(n, k, gainProtocol(), "gain");
}

/** Perplexity per token; it has no re-based form, because differences are those of losses. */
function perplexityAt(n, k) {
  return absoluteAt(n, k, state.protocol, "perplexity");
}

/** The accuracy of a task with right answers; re-based, the difference to the base. */
function accuracyAt(n, k) {
  return numberAt(n, k, state.protocol, "accuracy");
}

function numberAt(n, k, protocol, kind) {
  const own = absoluteAt(n, k, protocol, kind);
  if (!rebased() || own.missing) return own;
  if (n === state.base) return { v: 0, exact: true, word: "the base" };
  const base = absoluteAt(state.base, k, protocol, kind);
  if (base.missing) return { missing: `${encodings()[state.base].name} has no result here` };
  const pairs = kind === "accuracy" ? section().answered.pairs : section().pairs[protocol][kind];
  if (pairs === null) return { missing: `not compared: the results of single ${section().items} are missing` };
  const found = pairOf(pairs, n, state.base, k);
  if (found === null) return { missing: "not compared: no seed or text in common" };
  const letter = pairs.words[state.base][n * (last() + 1) + k];
  return { ...withWhy(found, few()), word: letter === "t" ? few() : WORDS[letter] || "not compared" };
}

function absoluteAt(n, k, protocol, kind) {
  const point = pointOf(n, k, protocol);
  if (point === null) return { missing: "not evaluated" };
  const numbers = kind === "accuracy" ? section().answered.points[n][k] : point.slice(POINT[kind], POINT[kind] + 3);
  if (numbers === null || numbers[0] === null) {
    const failed = point[POINT.status] !== "ok";
    const reason = point[POINT.reason] || "no number";
    return { missing: failed ? statusName(point[POINT.status]) : "not measured", reason, bad: failed };
  }
  const found = withWhy(numbers, few());
  return point[POINT.failed] ? { ...found, note: `${point[POINT.failed]} of the seeds failed: ${point[POINT.reason]}` } : found;
}

/** The difference of encoding i to encoding j; pairs are stored for j < i. */
function pairOf(pairs, i, j, k) {
  const [high, low, sign] = i > j ? [i, j, 1] : [j, i, -1];
  const at = (((high * (high - 1)) / 2 + low) * (last() + 1) + k) * 3;
  const found = pairs.numbers.slice(at, at + 3);
  if (found[0] === null) return null;
  const [v, one, two] = found.map((value) => (value === null ? null : (sign * value) / 1e5));
  return sign > 0 ? [v, one, two] : [v, two, one];
}

const few = () => `too few ${section().items}`;

/** Mean and Student's 95 % interval of the values of several seeds. */
function student(values) {
  const count = values.length;
  const mean = values.reduce((sum, value) => sum + value, 0) / count;
  if (count < DATA.fewestSeeds) return { v: mean, low: null, high: null, why: "too few seeds" };
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  const reach = section().student[count - 2] * Math.sqrt(squares / (count - 1) / count);
  return { v: mean, low: mean - reach, high: mean + reach };
}

/** A mean over seeds; re-based, the mean difference between runs of equal seeds. `merit` is -1 if less is better. */
function seedwise(lists, n, merit) {
  const own = lists[n];
  const known = own.filter((value) => value !== null);
  if (!known.length) return { missing: "not measured" };
  if (!rebased()) return student(known);
  if (n === state.base) return { v: 0, exact: true, word: "the base" };
  const pairs = own.map((value, seed) => [value, lists[state.base][seed]]).filter(([a, b]) => a !== null && b !== null);
  if (!pairs.length) return { missing: "no seed in common" };
  const found = student(pairs.map(([a, b]) => a - b));
  return { ...found, word: wordOf(found, merit) };
}

/** The value of a bin: with its own interval, if it has one and the page is not re-based, else over seeds. */
function binValue(bin, n, merit) {
  const own = bin.intervals[n];
  return own && own[0] !== null && !rebased() ? withWhy(own, few()) : seedwise(bin.values, n, merit);
}

/** A cost, over seeds the geometric mean; re-based, the ratio to the base. Less is better. */
function costOf(cost, n) {
  const logs = cost.values.map((line) => line.map((value) => (value === null ? null : Math.log(value))));
  const found = seedwise(logs, n, -1);
  if (found.missing) return found;
  const raised = (value) => (value === null ? null : Math.exp(value));
  const exact = found.exact ? { v: 1, low: null, high: null } : {};
  return { ...found, v: raised(found.v), low: raised(found.low ?? null), high: raised(found.high ?? null), ...exact };
}

function wordOf(found, merit) {
  if (found.low === null) return "not compared";
  if (found.low <= 0 && found.high >= 0) return "within noise";
  return found.v * merit > 0 ? "better" : "worse";
}

/** Parameters of the model; re-based, how many more they are than those of the base. */
function parametersOf(n) {
  const own = encodings()[n].parameters;
  if (!rebased()) return { v: own, exact: true };
  const more = own - encodings()[state.base].parameters;
  const word = n === state.base ? "the base" : more === 0 ? "the same" : more < 0 ? "better" : "worse";
  return { v: more, exact: true, word };
}

/** The proven safe length as a multiple of L, and in words what is proven; re-based, as a multiple of that of the base,
 * than which it is better only if the base is proven harmful there. */
function safeOf(n) {
  const own = encodings()[n];
  if (own.safe === null) return { missing: own.seeds < DATA.fewestSeeds ? "too few seeds" : own.can_win ? "no gain measured" : statusName(own.verdict) };
  if (!rebased()) return { v: own.safe, exact: true, said: own.safety };
  const base = encodings()[state.base];
  if (base.safe === null) return { missing: "the base has none" };
  const reaches = (one, other) => other.harmful !== null && one.safe >= other.harmful;
  const known = own.safety && base.safety ? "within noise" : "not compared"; // longer windows of both were measured
  const word = n === state.base ? "the base" : reaches(own, base) ? "better" : reaches(base, own) ? "worse" : known;
  return { v: own.safe / base.safe, exact: true, word };
}

/** The effective length, up to which a task is solved, as a multiple of L; re-based, of that of the base. */
function effectiveOf(n) {
  const own = encodings()[n];
  if (own.effective === null) return { missing: "not measured" };
  if (!own.effective) return { missing: "solved at no length", reason: own.effective_high ? `perhaps up to ${multiple(own.effective_high)}` : "" };
  if (!rebased()) return withWhy([own.effective, own.effective_low, own.effective_high], few());
  const base = encodings()[state.base];
  if (!base.effective) return { missing: base.effective === null ? "the base has none" : "the base solves none" };
  const known = own.effective_low !== null && base.effective_low !== null;
  const apart = known && own.effective_low > base.effective_high ? "better" : known && own.effective_high < base.effective_low ? "worse" : "within noise";
  return { v: own.effective / base.effective, exact: true, word: n === state.base ? "the base" : known ? apart : "not compared" };
}

/** What a section is ranked by: the accuracy of a task that has right answers, otherwise the loss. `sign` is -1 if more
 * is better; `reach` is the length up to which an encoding can be used. */
const QUALITY = {
  loss: { name: "loss", unit: () => ` ${section().bits}`, at: lossAt, write: bits, sign: 1, scale: "log", better: "down", reach: safeOf, reachName: "safe length" },
  accuracy: { name: "accuracy", unit: () => "", at: accuracyAt, write: share, sign: -1, scale: "linear", better: "up", reach: effectiveOf, reachName: "effective length" },
};
const quality = () => QUALITY[section().answered ? "accuracy" : "loss"];

/** Encodings in the order of their quality at the longest length under a protocol, without those that cannot be ranked. */
function ranking(protocol = state.protocol) {
  const { name, sign } = quality();
  const end = (n) => absoluteAt(n, last(), protocol, name);
  const whole = (n) => name === "accuracy" || pointOf(n, last(), protocol)[POINT.status] === "ok"; // no seed has failed
  const ranked = everyEncoding().filter((n) => encodings()[n].can_win && !end(n).missing && whole(n));
  return ranked.sort((a, b) => sign * (end(a).v - end(b).v) || a - b);
}
