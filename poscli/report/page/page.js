// The page itself: the pickers, the answer, the parts, and the links between everything that shows one encoding.

/** Draw everything under the reader's choices. */
function show() {
  charts.length = 0;
  showAnswer();
  paretoChart();
  const parts = (section().answered ? PARTS_OF_TASK : PARTS).map((part) => part()).filter((part) => part !== null);
  const body = byId("body");
  body.style.minHeight = `${body.offsetHeight}px`; // charts begin empty: the page would be too short for where the reader is
  body.replaceChildren(...parts.map((part) => part.part));
  for (const part of parts) part.finish?.();
  body.style.minHeight = "";
  const links = [...parts.map((part) => [part.part.id, part.title]), ["made", "How this was made"]];
  byId("nav").replaceChildren(...links.map(([id, title]) => make("a", { href: `#${id}` }, title)));
  light();
}

/** The answer under the protocol; re-based, which encodings are better, worse and within noise. */
function showAnswer() {
  const answer = section().answers[state.protocol];
  const parts = rebased() ? comparedSentence() : answer.sentence;
  byId("where").textContent = `${section().title}, protocol ${protocolName(state.protocol)}`;
  byId("sentence").replaceChildren(...parts.map(([text, strong]) => (strong ? make("strong", {}, text) : text)));
  byId("answer-facts").replaceChildren(...definitions(rebased() ? comparedFacts() : answer.facts));
}

/** Every other encoding at the longest length by the word that it gets against the base, the best first. */
function byWord() {
  const found = {};
  const others = everyEncoding().filter((n) => n !== state.base).map((n) => ({ n, value: quality().at(n, last()) }));
  others.sort((a, b) => quality().sign * ((a.value.v ?? 0) - (b.value.v ?? 0)));
  for (const other of others) (found[other.value.missing ? "not compared" : other.value.word] ||= []).push(other);
  return found;
}

function comparedSentence() {
  const groups = byWord();
  const count = (word) => (groups[word] || []).length;
  const best = (groups.better || [])[0];
  const verb = (word) => (count(word) === 1 ? "is" : "are");
  const base = named(encodings()[state.base].name);
  const told = [[`At ${section().ratios[last()]}, ${count("better")} ${verb("better")} better than `, false], [base, true]];
  told.push([`, ${count("worse")} ${verb("worse")} worse, ${count("within noise")} ${verb("within noise")} within noise of it`, false]);
  if (count(few())) told.push([`, and for ${count(few())} there are ${few()} to tell`, false]);
  if (best) told.push(["; the best is ", false], [named(encodings()[best.n].name), true], [`, better than ${base} by ${amountOf(best.value)}`, false]);
  return [...told, [".", false]];
}

/** How much better than the base a value is, without a sign: differences of losses are negative where they are better. */
function amountOf(value) {
  const plain = (number) => signed(Math.abs(number)).replace("+", "");
  const ends = value.low === null ? interval(value, signed) : `[${[value.low, value.high].map((end) => -quality().sign * end).sort((a, b) => a - b).map((end) => (end < 0 ? signed(end) : plain(end))).join(", ")}]`;
  return `${plain(value.v)}${quality().unit()} ${ends}`;
}

function comparedFacts() {
  const names = (found) => listed(found.map((other) => encodings()[other.n].name), 8);
  const facts = Object.entries(byWord()).map(([word, found]) => [word[0].toUpperCase() + word.slice(1), `${names(found)}.`]);
  return [...facts, ["What do the words mean?", `Better and worse: the difference is significant (p < 0.05 in a paired permutation test, after Holm's correction for all comparisons with this base). Within noise: it is not. Too few ${section().items}: so few were scored that no difference could be significant among so many comparisons. Differences are taken between runs of equal seeds on the same ${section().items}, so one encoding can be better than another although the intervals of the two overlap. Times and numbers by position are tested otherwise: there, better and worse mean that the 95 % interval of the difference over seeds excludes zero.`]];
}

// Linking

/** Keep an encoding shown after a click, until the next one. */
function pin(n) {
  state.pinned = state.pinned === n ? null : n;
  for (const button of document.querySelectorAll("button.name")) {
    const own = Number(button.closest("[data-enc]").dataset.enc);
    button.setAttribute("aria-pressed", own === state.pinned ? "true" : "false");
  }
  light();
}

function light() {
  const n = state.hot ?? state.pinned;
  if (n === null) return lightUp(null);
  const own = encodings()[n];
  const formulas = own.parts.flatMap(([name, formula, paper]) => [make("p", { class: "formula" }, own.parts.length > 1 ? `${name}: ${formula}` : formula), paper && make("p", { class: "paper" }, paper)]);
  const end = section().ratios[last()];
  const shown = quality();
  const facts = [
    [`${shown.name} at ${end}`, spoken(shown.at(n, last()), rebased() ? signed : shown.write)],
    section().answered ? [shown.reachName, spoken(effectiveOf(n), multiple)] : [`gain at ${end}`, spoken(gainAt(n, last()), signed)],
    ["verdict", own.reason ? `${statusName(own.verdict)}: ${own.reason}` : own.verdict],
  ];
  return lightUp(n, own.acts, facts, ...formulas.filter(Boolean));
}

// Pickers

function fillPickers() {
  const options = encodings().map((each, n) => make("option", { value: n }, each.name));
  byId("base").replaceChildren(make("option", { value: PLAIN }, "nothing (plain numbers)"), ...options);
  byId("base").value = String(state.base);
  byId("protocol").replaceChildren(...section().protocols.map((each, n) => make("option", { value: n }, each.name)));
  byId("protocol").value = String(state.protocol);
  byId("protocol").parentElement.hidden = section().protocols.length < 2;
}

function openSection(n) {
  Object.assign(state, { section: n, base: PLAIN, protocol: DATA.sections[n].main, hot: null, pinned: null, cost: 0 });
  for (const name of Object.keys(sorting)) delete sorting[name]; // columns of another section have other numbers
  byId("made-facts").replaceChildren(...definitions(section().facts));
  const closing = byId("notes").lastElementChild;
  byId("notes").replaceChildren(...section().notes.map((note) => make("li", {}, note)), closing);
  fillPickers();
  show();
}

function start() {
  onPick("section", openSection);
  onPick("base", (n) => { state.base = n; show(); say(rebased() ? `Every number is now relative to ${encodings()[n].name}` : "Plain numbers"); });
  onPick("protocol", (n) => { state.protocol = n; show(); say(`Protocol ${protocolName(n)}`); });
  offerThemes();
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && state.pinned !== null) pin(state.pinned); });
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("controls").hidden = byId("nav").hidden = false;
  openSection(0);
  onWidth(show);
  document.documentElement.dataset.ready = "true";
}

start();
