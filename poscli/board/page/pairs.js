// Head to head: two encodings that the reader chooses, on every text, and whether one is shown to be better.

const chosen = [0, 1];

/** At first the best encoding and the one that follows it. */
function openPair() {
  const start = ranked().length > 1 ? ranked() : everyEncoding();
  [chosen[0], chosen[1]] = [start[0] ?? 0, start[1] ?? start[0] ?? 0];
}

/** The regret of encoding i less that of j, with the interval of this pair alone; null if they were not compared. */
function differenceOf(i, j) {
  const [high, low, sign] = i > j ? [i, j, 1] : [j, i, -1];
  const found = i === j ? null : section().pairs[(high * (high - 1)) / 2 + low];
  if (!found || high >= ranked().length) return null;
  const [v, ...ends] = found.map((value) => (sign * value) / 1e5);
  return [v, ...ends.sort((a, b) => a - b)];
}

const beats = (i, j) => section().better[i].includes(j);

/** What is shown of two encodings, as a sentence. */
function verdictOf(i, j) {
  const [one, other] = [i, j].map((n) => named(encodings()[n].name));
  if (i === j) return "Choose two encodings.";
  if (!isRanked(i) || !isRanked(j)) return `${isRanked(i) ? other : one} has no rank, so that the two are not compared.`;
  const found = differenceOf(i, j);
  const by = found === null ? "" : ` The regret of ${one} at ${longest()} minus that of ${other} is ${signed(found[0])}, with a 95 % interval of this pair alone of ${signed(found[1])} to ${signed(found[2])}.`;
  if (beats(i, j)) return `It is shown that ${one} is better than ${other}.${by}`;
  if (beats(j, i)) return `It is shown that ${other} is better than ${one}.${by}`;
  return `It is not shown that one of ${one} and ${other} is better, allowing for all pairs at once.${by}`;
}

function pairPart() {
  if (everyEncoding().length < 2) return null;
  const title = "Head to head";
  const verdict = make("p", { class: "verdict" });
  const numbers = make("div", {});
  const update = () => {
    verdict.textContent = verdictOf(...chosen);
    numbers.replaceChildren(pairTable());
  };
  const picker = (side, text) => {
    const options = everyEncoding().map((n) => make("option", { value: n }, encodings()[n].name));
    const select = make("select", { id: `head-${side}` }, ...options);
    select.value = String(chosen[side]);
    select.addEventListener("change", () => {
      chosen[side] = Number(select.value);
      update();
      say(verdict.textContent);
    });
    return make("label", {}, text, select);
  };
  update();
  const part = make("section", { id: "pair" }, make("h2", {}, title), make("div", { class: "heads" }, picker(0, "One"), picker(1, "Other")), verdict, numbers);
  return { title, part, finish: () => {} };
}

/** Losses of both at every length, and regrets, text by text; the lower one of two is bold. */
function pairTable() {
  const caption = `Bits per byte by window, and regret at ${longest()}, of both, the lower one bold; brackets: 95 % intervals`;
  const heads = ["Text", "Encoding", ...section().ratios, `Regret ${longest()}`, "Seeds"].map((head) => make("th", { scope: "col" }, head));
  const lines = section().texts.flatMap((text) => chosen.map((n, side) => {
    const own = encodings()[n];
    const other = encodings()[chosen[1 - side]];
    const [mine, its] = [own.texts[text], other.texts[text]];
    const lower = (value, against) => !value.missing && !against.missing && value.v < against.v;
    const cell = (value, against, write) => {
      const made = valueCell(value, write);
      if (lower(value, against)) made.querySelector(".v").classList.add("lower");
      return made;
    };
    const losses = section().ratios.map((_, k) => cell(valueOf(mine?.losses[k]), valueOf(its?.losses[k]), bits));
    const first = side === 0 ? [make("th", { scope: "rowgroup", rowspan: 2 }, text)] : [];
    return make("tr", {}, ...first, make("td", {}, own.name), ...losses, cell(valueOf(mine?.regret), valueOf(its?.regret), two), make("td", {}, String(own.seeds)));
  }));
  const groups = section().texts.map((_, at) => make("tbody", {}, ...lines.slice(2 * at, 2 * at + 2)));
  const whole = make("table", { class: "pair", "data-table": "pair" }, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...heads)), ...groups);
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, whole);
}
