// Tables: sortable columns, cells with a number and its interval, hatched cells where a run failed.

const sorting = {}; // by the name of a table: {column, down}

/**
 * A table of all encodings, or of `members()`. `columns`: {head, note, cell(n) -> td, key(n) -> number, text or null, row: it names the row}.
 * `start` is the column by which it is sorted at first, `down` whether that is with the largest first.
 */
function table(name, caption, columns, start, down = false, members = everyEncoding) {
  const sort = (sorting[name] = sorting[name] && sorting[name].column < columns.length ? sorting[name] : { column: start, down });
  const body = make("tbody");
  const heads = columns.map((column, at) => headCell(column, at, sort, (focus) => {
    fillBody(body, columns, sort, members());
    heads.forEach((head, n) => head.setAttribute("aria-sort", n === sort.column ? (sort.down ? "descending" : "ascending") : "none"));
    say(`Sorted by ${columns[sort.column].head}, ${sort.down ? "descending" : "ascending"}`);
    focus();
    light();
  }));
  fillBody(body, columns, sort, members());
  const whole = make("table", { "data-table": name }, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...heads)), body);
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, whole);
}

function headCell(column, at, sort, sorted) {
  const button = make("button", { type: "button" }, column.head);
  const direction = at === sort.column ? (sort.down ? "descending" : "ascending") : "none";
  const cell = make("th", { scope: "col", "aria-sort": direction, title: column.note }, column.key ? button : column.head);
  if (!column.key) cell.removeAttribute("aria-sort");
  button.addEventListener("click", () => {
    sort.down = sort.column === at ? !sort.down : Boolean(column.down);
    sort.column = at;
    sorted(() => button.focus());
  });
  return cell;
}

/** Rows in the order of a column; those without a value there come last, whatever the direction. */
function fillBody(body, columns, sort, members) {
  const { key } = columns[sort.column];
  const known = members.filter((n) => key(n) !== null);
  const unknown = members.filter((n) => key(n) === null);
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
  known.sort((a, b) => (sort.down ? -1 : 1) * compare(key(a), key(b)) || a - b);
  body.replaceChildren(...[...known, ...unknown].map((n) => row(n, columns)));
}

function row(n, columns) {
  const line = make("tr", { "data-enc": n }, ...columns.map((column) => column.cell(n)));
  line.addEventListener("pointerenter", unlessTouched(() => heat(n)));
  line.addEventListener("pointerleave", unlessTouched(() => heat(null)));
  line.addEventListener("focusin", () => heat(n));
  line.addEventListener("focusout", () => heat(null));
  return line;
}

/** The column that names the rows. Its buttons pin an encoding. */
function nameColumn() {
  return {
    head: "Encoding",
    key: (n) => encodings()[n].name,
    cell: (n) => {
      const button = make("button", { type: "button", class: "name", "aria-pressed": state.pinned === n ? "true" : "false" }, encodings()[n].name);
      button.addEventListener("click", () => pin(n));
      return make("th", { scope: "row" }, button);
    },
  };
}

/** A cell with a value: number, interval and word; hatched where a run failed. `share` (-1 to 1) shades it. */
function valueCell(value, write, share = 0) {
  if (value.missing) {
    const cell = make("td", { class: value.bad ? "number failed" : "number none", title: value.reason || value.missing });
    cell.append(make("span", { class: "why" }, value.missing));
    return cell;
  }
  const cell = make("td", { class: "number", title: value.note });
  if (share) cell.style.setProperty("--share", `${Math.round(Math.min(1, Math.abs(share)) * 42)}%`);
  if (share) cell.classList.add(share > 0 ? "good" : "harm");
  cell.append(make("span", { class: "v" }, write(value.v) + (value.note ? "*" : "")));
  const ends = interval(value, write);
  if (ends || value.said) cell.append(make("span", { class: "i" }, ends || value.said));
  if (value.word) cell.append(make("span", { class: `word ${value.word.replaceAll(" ", "-")}` }, value.word));
  return cell;
}

const keyOf = (value) => (value.missing ? null : value.v);

/** A column per length of a measure. `shade(value, k)` is between -1 (bad) and 1 (good). */
function lengthColumns(measure, write, shade, down) {
  return section().ratios.map((ratio, k) => ({
    head: ratio,
    note: `${section().lengths[k]} tokens`,
    key: (n) => keyOf(measure(n, k)),
    down,
    cell: (n) => {
      const value = measure(n, k);
      return valueCell(value, write, value.missing ? 0 : shade(value, k));
    },
  }));
}

/** How far a loss is above the best one at its length, or how far a difference is from zero, as a shade. */
function shadeOfLoss() {
  const best = section().lengths.map((_, k) => Math.min(...everyEncoding().map((n) => keyOf(lossAt(n, k))).filter((v) => v !== null)));
  const bend = (value) => Math.log1p(Math.abs(value) / 0.02) / Math.log1p(3 / 0.02);
  return (value, k) => (rebased() ? -Math.sign(value.v) * bend(value.v) : -bend(value.v - best[k]));
}

const shadeOfGain = (value) => Math.sign(value.v) * (Math.log1p(Math.abs(value.v) / 0.005) / Math.log1p(3 / 0.005));

function copyButton(n) {
  const { command, name } = encodings()[n];
  if (!command) return make("td", {}, make("span", { class: "why" }, "not recorded"));
  const button = make("button", { type: "button", class: "copy", "aria-label": `Copy the command that reproduces ${name}`, title: command }, "Copy");
  button.addEventListener("click", async () => {
    const done = await copied(command);
    button.textContent = done ? "Copied" : "Not copied";
    say(done ? `Copied the command for ${name}` : "The browser refused to copy");
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  });
  return make("td", {}, button);
}

/** Put a text on the clipboard; browsers without its interface, or that refuse it, get the older way. */
async function copied(text) {
  const direct = navigator.clipboard && (await navigator.clipboard.writeText(text).then(() => true, () => false));
  if (direct) return true;
  const before = document.activeElement;
  const area = make("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  before?.focus();
  return done;
}
