// The board itself: the table that is shown, the reader's filters, and the links between all that shows one encoding.

const RANKED = "ranked";
const ANY = "";
const KINDS = [["trained", "as trained"], ["read", "read as another"]];
const SEES = { token: "single tokens", distance: "a number per distance", relative: "a vector per distance", pair: "pairs of tokens", row: "whole rows of scores" };

/** Whether an encoding passes the reader's filters. */
function passes(n) {
  const own = encodings()[n];
  const chosen = (id) => byId(id).value;
  const kind = own.readAs ? "read" : "trained";
  return (
    own.name.toLowerCase().includes(chosen("search").trim().toLowerCase()) &&
    [ANY, own.family].includes(chosen("family")) &&
    [ANY, own.tier].includes(chosen("tier")) &&
    (chosen("kernel") === ANY || own.kernels.includes(chosen("kernel"))) &&
    [ANY, kind].includes(chosen("kind")) &&
    (own.free || byId("free").disabled || !byId("free").checked)
  );
}

const isRanked = (n) => encodings()[n].status === RANKED;
const ranked = () => everyEncoding().filter(isRanked);
const shownRanked = () => ranked().filter(passes);
const shownOthers = () => everyEncoding().filter((n) => !isRanked(n) && passes(n));
const longest = () => section().ratios[last()];

/** A triple of the standings as a value. */
function valueOf(triple, missing = "not known") {
  return !triple || triple[0] === null ? { missing } : withWhy(triple, "too few seeds");
}

const exactly = (v, missing = "not known") => (v === null || v === undefined ? { missing } : { v, exact: true });
const two = (value) => fixed(value, 2);
const percent = (value) => `${fixed(100 * value, 0)} %`;

/** Draw everything of the table that is shown. */
function show() {
  charts.length = 0;
  byId("free").disabled = !encodings().some((each) => each.free);  // without `none` nobody knows who adds parameters
  document.querySelectorAll(".answers").forEach((each) => { each.hidden = Number(each.dataset.section) !== state.section; });
  const parts = [rankingPart(), othersPart(), pairPart(), textsPart(), ceilingsPart()].filter((part) => part !== null);
  byId("body").replaceChildren(...parts.map((part) => part.part));
  for (const part of parts) part.finish();
  scatter();
  byId("notes").replaceChildren(...section().legend.map((line) => make("li", {}, line)));
  const links = [...parts.map((part) => [part.part.id, part.title]), ...(byId("papers") ? [["papers", "What others measured"]] : []), ["made", "What the columns mean"]];
  byId("nav").replaceChildren(...links.map(([id, title]) => make("a", { href: `#${id}` }, title)));
  const count = shownRanked().length;
  byId("count").textContent = `${count} of ${ranked().length} with a rank`;
  light();
}

function light() {
  const n = state.hot;
  if (n === null) return lightUp(null);
  const own = encodings()[n];
  const facts = [
    ["rank", own.ranks ? `${own.ranks} of ${ranked().length}` : `${own.status}: ${own.why}`],
    [`regret ${longest()}`, spoken(valueOf(own.regret), two)],
    ["bits at L", spoken(valueOf(own.loss), bits)],
    [`gain ${longest()}`, spoken(valueOf(own.gains.at(-1)), signed)],
    ["training", own.training[0] === null ? "not known" : `${times(own.training[0])} a step of none`],
    ["seeds", String(own.seeds)],
  ];
  return lightUp(n, section().families.find((family) => family.key === own.family).title, facts);
}

// Pickers

function fillPicker(id, all, choices) {
  byId(id).replaceChildren(make("option", { value: ANY }, all), ...choices.map(([value, text]) => make("option", { value }, text)));
}

function openTable(n) {
  Object.assign(state, { section: n, hot: null });
  for (const name of Object.keys(sorting)) delete sorting[name];
  fillPicker("family", "all families", section().families.map(({ key, title }) => [key, title.split(":")[0]]));
  fillPicker("tier", "all tiers", section().tiers.map((tier) => [tier, SEES[tier] ? `${tier}: ${SEES[tier]}` : tier]));
  fillPicker("kernel", "anything", section().kernels.map((kernel) => [kernel, kernel]));
  fillPicker("kind", "all", KINDS);
  openPair();
  show();
}

function filtered() {
  show();
  say(byId("count").textContent);
}

function start() {
  onPick("section", openTable);
  const filters = byId("filters");
  filters.addEventListener("input", filtered);
  filters.addEventListener("reset", () => setTimeout(filtered));
  filters.addEventListener("submit", (event) => event.preventDefault());
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  for (const id of ["controls", "filters", "nav"]) byId(id).hidden = false;
  offerThemes();
  openTable(0);
  onWidth(show);
  document.documentElement.dataset.ready = "true";
}

start();
