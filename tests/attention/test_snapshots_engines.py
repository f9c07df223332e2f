"""Which engine computes attention and why, in which blocks and tiles, and what is said when one cannot or is wrong."""

from __future__ import annotations

import copy
import ctypes
import itertools
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

import pytest
import torch
from test_native import kernels, needs_kernels
from test_snapshots_model import flags, table
from torch import Tensor
from torch.nn.functional import leaky_relu, softplus
from toys import COMPOSITES, HEADS, TOYS, WIDTH, draw, make

from poscli.attention import (
    ENGINES,
    BlockSizes,
    Engine,
    Place,
    attend,
    choose,
    engines_for,
    native,
    selfcheck,
)
from poscli.attention.place import DEFAULT_SIZES
from poscli.encodings import Encoding, names
from poscli.model.cache import LayerCache
from poscli.native import (
    QUERIES,
    Block,
    Costs,
    Factors,
    Form,
    Gates,
    Mixing,
    Part,
    Pieces,
    Relative,
    Stick,
    Term,
    Visible,
    attention,
    attention_to_part,
    identity,
    proof,
    proof_forms,
)
from poscli.native.layers import swiglu
from poscli.system.errors import UsageError

Snapshot = Callable[..., None]
CPU = torch.device("cpu")


def kinds() -> list[Encoding]:
    """An encoding for each set of blanks, and of what else decides which engine can run it."""
    found: dict[tuple[object, ...], Encoding] = {}
    for spec in (*names(), *COMPOSITES, *TOYS):
        e = make(spec)
        form = e.has_kernel_form, e.kernel_form_has_gradient
        found.setdefault((e.blanks, e.axes, e.sinks > 0, e.reach is None, *form), e)
    return list(found.values())


@pytest.fixture
def every_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a C++ compiler and Triton, whatever this one has."""
    monkeypatch.setattr(native, "why_not", lambda: "")
    monkeypatch.setattr(selfcheck, "find_spec", lambda _: True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


PLACES = {
    "training on a CPU": Place(),
    "evaluation on a CPU": Place(gradient=False),
    "bfloat16 on a CPU": Place(dtype=torch.bfloat16, gradient=False),
    "training on a GPU": Place("cuda", torch.bfloat16, 64),
    "narrow heads on a GPU": Place("cuda", torch.float32, 8, gradient=False),
    "wide heads on a GPU": Place("cuda", torch.float16, 160, gradient=False),
    "float64 on a GPU": Place("cuda", torch.float64, 64, gradient=False),
}


def grouped(pairs: Iterable[tuple[str, str]]) -> str:
    """A line for every first text, with the second texts that it stands beside."""
    found: dict[str, list[str]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return table([key, ", ".join(values)] for key, values in found.items())


@pytest.mark.usefixtures("every_engine")
def test_which_engine_is_chosen_and_why(snapshot: Snapshot) -> None:
    """In every place; the reasons follow for two of them."""
    encodings = {e.spec or e.name: e for e in kinds()}
    rows = [[name, *(choose(e, place=place).name for place in PLACES.values())] for name, e in encodings.items()]
    parts = [grouped((", ".join(engines), name) for name, *engines in rows)]
    for what in ("bfloat16 on a CPU", "training on a GPU"):
        reasons = {name: choose(e, place=PLACES[what]).reason for name, e in encodings.items()}
        parts.append(f"## {what}\n" + grouped((reason, name) for name, reason in reasons.items() if reason))
    snapshot(f"{', '.join(PLACES)}\n{''.join(parts)}")


@pytest.mark.usefixtures("every_engine")
def test_what_engines_refuse(snapshot: Snapshot) -> None:
    """What each engine says of itself and of the encodings that it cannot run, which the first lines number."""
    encodings = kinds()
    parts = [", ".join(f"{n} {e.spec or e.name}" for n, e in enumerate(encodings)) + "\n"]
    for engine in ENGINES.values():
        known = {f.name: getattr(engine, f.name) for f in fields(engine) if f.name not in ("run", "refuses", "fault")}
        parts.append(f"## {known}\n")
        for place in (Place(), Place(gradient=False), Place("cuda", width=64)):
            if place.device == "cuda" and "cuda" not in engine.devices:
                continue
            reasons = [engine.refuses(e, place) for e in encodings]
            rows = [(reason, str(n)) for n, reason in enumerate(reasons) if reason]
            if len(set(reasons)) == 1:
                rows = [(reasons[0] or "nothing", "all")]
            parts.append(f"# {place.device} {place.gradient}\n" + grouped(rows))
    snapshot("".join(parts))


@pytest.mark.usefixtures("every_engine")
def test_what_is_said_of_engines_that_were_asked_for(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[list[object]] = []
    for spec, what, engine in itertools.product(
        ("rope", "cope+fox", "sink(2)+window(5)+alibi"), list(PLACES)[1:4], [*ENGINES, "sdp"]
    ):
        encoding, place = make(spec), PLACES[what]
        try:
            found = choose(encoding, engine, place)
        except UsageError as error:
            rows.append([what, error])
        else:
            rows.append([what, found.said_of(encoding)])
    for spec, place in itertools.product(("rope", "fire"), (Place(), Place("cuda"))):
        rows.append([spec, place.device, *(engine.name for engine in engines_for(make(spec), place))])
    rows.append(["no place", *(engine.name for engine in engines_for(make("rope")))])
    rows += [[n, ENGINES["triton"].refuses(make("alibi"), Place("cuda", width=n))] for n in (15, 16, 128, 129)]
    rows += [[n, ENGINES["flex"].refuses(make("alibi"), Place("cuda", width=n))] for n in (15, 16)]
    own = Engine("mine", ENGINES["sdpa"].run, lambda *_: "", "one of a test")
    rows.append([choose(make("rope"), own).name])
    monkeypatch.setenv(selfcheck.SWITCH, "0")
    rows.append([ENGINES["triton"].refuses(make("alibi"), Place("cuda"))])
    monkeypatch.delenv(selfcheck.SWITCH)
    monkeypatch.setattr(selfcheck, "find_spec", lambda _: None)
    rows.append([ENGINES["triton"].refuses(make("alibi"), Place("cuda"))])
    snapshot(table(rows))


FEW = BlockSizes(
    block_queries=48, block_entries=20_000, training_queries=32, training_tokens=150, backward_queries=40,
    backward_entries=9000, tile_queries=64, tile_keys=40, tile_entries=6000, skip_multiple=32, weighted_queries=24,
    native_queries=4,
)  # fmt: skip


# The compiled kernels


class Watched:
    """The library, with a note of each call of a kernel of attention."""

    def __init__(self, real: ctypes.CDLL, rows: list[list[object]]) -> None:
        self.real, self.rows = real, rows

    def __getattr__(self, name: str) -> Callable[[Any], bool]:
        def kernel(call: Any) -> bool:
            x = call._obj
            sizes = [x.batch, x.heads, x.queries, x.keys, x.width, x.value_width, x.reach, x.sinks, x.terms, x.constant]
            form = [
                x.pieces.count,
                x.passed.kind,
                x.passed.width,
                x.passed.without_own,
                x.mixing.hidden,
                x.mixing.given,
            ]
            given = flags(first_key=x.first_key, factors=x.factors, a=x.a.vectors, b=x.b.vectors, c=x.c.vectors)
            asked = [index for index in range(x.terms) if x.term[index].grad]
            self.rows.append([name, *sizes, x.past, f"{x.scale:.3g}", *form, given, asked])
            return bool(getattr(self.real, name)(call))

        return kernel


@needs_kernels
def test_what_the_proof_of_compiled_kernels_tries(snapshot: Snapshot) -> None:
    rows: list[list[object]] = []
    assert proof.disagreement(Watched(kernels(), rows)) == ""  # type: ignore[arg-type]
    rows.append([f"{len(identity())} letters name the kernels that run"])
    limits = [proof.TOLERANCE, proof_forms.TOLERANCE, proof_forms.OWN_ERRORS, 2.0**-24]
    exact = torch.tensor([1.0, -4.0])
    for off, own, least in ((0.01, 0.0, 0.001), (0.01, 0.002, 0.001), (0.01, 0.0, 0.0026), (0.0101, 0.0, 0.0025)):
        said = proof_forms.difference(exact + off, exact, exact - own, least=least)
        rows.append([off, own, least, said or "rounding"])
    snapshot(table(rows) + table([limits]))


class Drawn:
    """A call of the kernels with everything drawn at random, and the formula of it, query by query and key by key.

    T queries, S keys, N distances in descending order: query t and key j meet entry T - 1 - t + j.
    """

    SIZES = (1, 5, 16, 24, 33, 40, 72)

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        pick = self.random.choice
        self.form = pick([None, None, None, *FORMS])
        self.heads = pick([1, 2, 3, 9])
        self.batch = 1 if self.heads == 9 else pick([1, 2, 3])
        # Costs that leave most far keys no weight, but not those that are long or meet large vectors.
        self.steep = self.form is Costs and pick([True, False])
        self.queries, self.past = pick([1, 31, 33, 64, 100]), 300 if self.steep else pick([0, 1, 40, 130, 300])
        self.keys, self.distances = self.queries + self.past, 2 * self.queries + self.past - 1
        self.width, self.values = pick(self.SIZES), pick(self.SIZES)
        self.reach = pick([0, 0, 2, 30, 90, 200])
        self.sinks = pick([0, 3, 70]) if self.reach and self.form is None else 0
        self.gradient = self.form is not Pieces and pick([True, True, False])
        self.constant = 0 if self.gradient or self.form else self.equal_distances()
        self.entry = self.queries - 1 - torch.arange(self.queries)[:, None] + torch.arange(self.keys)
        apart = self.past + torch.arange(self.queries)[:, None] - torch.arange(self.keys)
        far = (apart >= self.reach) & (torch.arange(self.keys) >= self.sinks) if self.reach else apart < 0
        self.hidden, self.own = (apart < 0) | far, apart == 0
        self.x: dict[str, Tensor] = {}
        self._draw_tokens()
        self._draw_terms()
        self._draw_form()
        wanted = [name for name in self.x if self.gradient and pick([True, True, False])]
        self.wanted = wanted or (["v"] if self.gradient else [])

    def equal_distances(self) -> int:
        """How many of the largest distances share a number: none, some, about as many as a tile sees, or all."""
        tile = self.queries + 128 + self.random.choice([-3, -2, -1, 0])
        return min(self.random.choice([0, 60, tile, tile, tile, self.keys]), self.keys)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def _draw_tokens(self) -> None:
        """Queries, keys and values in several layouts, and vectors by distance with what meets them."""
        for name, count, width in (
            ("q", self.queries, self.width), ("k", self.keys, self.width), ("v", self.keys, self.values)
        ):  # fmt: skip
            self.x[name] = self.in_a_layout(count, width)
        for name, count in (("a", self.queries), ("b", self.keys), ("c", 0)):
            if self.random.random() < 0.4:
                width = self.random.choice(self.SIZES[:5]) if count else self.values
                self.x[name] = self.by_distance(self.random.choice([1, self.heads]), self.distances, width, dim=1)
                if count:
                    self.x[f"met by {name}"] = self.in_a_layout(count, width) / 2

    def in_a_layout(self, count: int, width: int) -> Tensor:
        """Random numbers `[B, H, count, width]`, with the strides that projections and others leave behind."""
        lengths = torch.tensor([0.1, 1.0, 2.0])[
            torch.randint(3, (self.batch, self.heads, count, 1), generator=self.generator)
        ]
        x = lengths * self.normal(self.batch, self.heads, count, width) / width**0.25
        layouts = [x, x.transpose(1, 2).contiguous().transpose(1, 2), x.mT.contiguous().mT]
        layouts.append(torch.cat([x, x], dim=-1)[..., :width])
        return self.random.choice(layouts)

    def by_distance(self, *shape: int, dim: int) -> Tensor:
        """Random numbers, the first of which along one dimension are equal where the call says so."""
        x = self.normal(*shape) / 2
        x.narrow(dim, 0, self.constant).copy_(x.narrow(dim, 0, 1).expand_as(x.narrow(dim, 0, self.constant)))
        if dim == 3:
            x[..., : self.constant] += 3
        return x

    def _draw_terms(self) -> None:
        pick = self.random.choice
        for n in range(pick([0, 1, 2, 4]) if self.form is None else pick([0, 1])):
            kind = "table" if self.form else pick(["table", "keys", "pairs"])
            of = pick([1, self.batch]), pick([1, self.heads])
            self.x[f"{kind} {n}"] = {
                "table": lambda of=of: self.by_distance(*of, 1, self.distances, dim=3),
                "keys": lambda of=of: 2 * self.normal(*of, 1, self.keys),
                "pairs": lambda of=of: self.normal(*of, self.keys, self.queries).mT,
            }[kind]()
        alone = not (self.form or self.constant or {"a", "b", "c"} & self.x.keys())
        self.skips = alone and not (self.gradient or self.reach) and pick([True, False])
        if self.skips:  # keys more than 50 tokens back have no weight in the last head
            far = torch.arange(self.keys - 1, self.past - self.keys, -1)
            self.x["table 9"] = torch.zeros(1, self.heads, 1, self.distances)
            self.x["table 9"][:, -1] = torch.where(far > 50, -1000.0, 0.0)
        self.cuts = [0, 32, self.queries] if alone and not self.skips and self.queries > 32 else [0, self.queries]

    def _draw_form(self) -> None:
        heads, queries, keys = self.heads, self.queries, self.keys
        if self.form is Pieces:
            self.x |= {
                "u": self.normal(self.distances).abs().sort(descending=True).values, "y": self.normal(queries).abs(),
                "start": self.normal(heads), "slopes": self.normal(heads, 7), "bends": self.normal(7),
            }  # fmt: skip
        if self.form is Costs:
            width = self.random.choice([1, 4, 17])
            for name, count in (("y", queries), ("z", keys)):
                self.x[name] = self.normal(self.batch, heads, count, width)
            self.x["factor"] = self.normal(heads).abs() / 8
            if self.steep:
                self.x["factor"] = self.normal(heads).abs() / 8 + 0.75
                self.x["q"][..., 0], self.x["k"][:, :, 3, 0] = 8, 40
                for name in self.x.keys() & {"a", "b"}:
                    self.x[name] *= 150
        if self.form is Gates:
            self.x["positions"] = self.normal(self.batch, heads, queries, self.random.choice([2, 4, 40]))
        if self.form is Mixing:  # no hidden number comes near to 0
            hidden = self.random.choice([3, 32, 40])
            away = self.normal(hidden, self.distances)
            self.x |= {
                "in": self.normal(hidden, heads) / 50,
                "away": away + 3 * away.sign(),
                "out": self.normal(heads, hidden) / 20,
            }
        if self.form is Factors:
            self.x["factors"] = self.normal(heads, self.distances)

    def of_form(self, x: dict[str, Tensor]) -> Form | None:
        """The form of the call, of these tensors."""
        if self.form is None or self.form is Stick:
            return self.form and Stick(own=self.keys % 2 == 0)
        names = [
            n
            for n in ("u", "y", "z", "start", "slopes", "bends", "factor", "positions", "in", "away", "out", "factors")
            if n in x
        ]
        return self.form(*(x[name] for name in names), *([0.25] if self.form is Mixing else []))

    def by_kernels(self, x: dict[str, Tensor]) -> Tensor:
        blocks = []
        for start, stop in itertools.pairwise(self.cuts):
            seen, first = self.past + stop, None
            if self.skips:
                first = torch.zeros(self.heads, -(-self.queries // QUERIES), dtype=torch.int32)
                first[-1] = (self.past - 50 + QUERIES * torch.arange(first.shape[1])).clamp(min=0)
            terms = []
            for name, y in x.items():
                if name.startswith("table"):
                    terms.append(Term(y[..., self.queries - stop :], skewed=True))
                elif name.startswith("keys"):
                    terms.append(Term(y[..., :seen]))
                elif name.startswith("pairs"):
                    terms.append(Term(y[:, :, start:stop, :seen].flip(2)))
            blocks.append(Block(slice(start, stop), slice(0, seen), tuple(terms), first, self.constant))
        vectors = tuple(Relative(x[n], x.get(f"met by {n}")) if n in x else None for n in "abc")
        visible = Visible(reach=self.reach, sinks=self.sinks)
        qkv = (x["q"], x["k"], x["v"])
        return attention(kernels(), qkv, blocks, scale=0.7, visible=visible, vectors=vectors, form=self.of_form(x))  # type: ignore[arg-type]

    def by_formula(self, x: dict[str, Tensor]) -> Tensor:
        t, j, entry = torch.arange(self.queries)[:, None], torch.arange(self.keys), self.entry
        s = 0.7 * x["q"] @ x["k"].mT
        for name, y in x.items():
            if name.startswith("table"):
                s = s + y[:, :, 0][..., entry]
            elif name.startswith(("keys", "pairs")):
                s = s + y
        if "a" in x:
            s = s + (x["met by a"] @ x["a"].mT)[..., t, entry]
        if "b" in x:
            s = s + (x["met by b"] @ x["b"].mT)[..., j, entry]
        p = FORMULAS[self.form](self, x, s)
        out = p @ x["v"]
        if "c" not in x:
            return out
        at = entry.expand(p.shape)
        return out + p.new_zeros(*p.shape[:3], self.distances).scatter(-1, at, p) @ x["c"]

    def __str__(self) -> str:
        form = self.form and self.form.__name__
        sizes = f"{self.batch} x {self.heads} x {self.queries} of {self.keys}, {self.width}, {self.values}"
        return f"{form} {sizes} {sorted(self.x)} reach {self.reach} {self.sinks} constant {self.constant} {self.skips}"

    def seen(self, s: Tensor) -> Tensor:
        return s.masked_fill(self.hidden, -math.inf)

    def results(self, run: Callable[[dict[str, Tensor]], Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """The output, and the gradients of all that is wanted."""
        x = {name: y.to(dtype) for name, y in self.x.items()}
        with torch.set_grad_enabled(self.gradient):
            for name in self.wanted:
                x[name] = x[name].detach().requires_grad_()
            out = run(x)
            upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
            grads = torch.autograd.grad(out, [x[n] for n in self.wanted], upstream) if self.wanted else ()
        return {"the output": out.detach()} | {
            f"the gradient of {n}": g for n, g in zip(self.wanted, grads, strict=True)
        }


def after(x: Tensor) -> Tensor:
    """The sum of the entries after each one."""
    return x.flip(-1).cumsum(-1).flip(-1) - x


def weights_of_pieces(call: Drawn, x: dict[str, Tensor], s: Tensor) -> Tensor:
    u = x["u"][call.entry] * x["y"][:, None]
    bent = torch.maximum(u, x["bends"][:, None, None])
    return call.seen(s + x["start"][:, None, None] + (x["slopes"][..., None, None] * bent).sum(1)).softmax(-1)


def weights_of_costs(call: Drawn, x: dict[str, Tensor], s: Tensor) -> Tensor:
    between = after(softplus(x["y"] @ x["z"].mT).masked_fill(call.hidden, 0))
    return call.seen(s - x["factor"][:, None, None] * between).softmax(-1)


def weights_of_gates(call: Drawn, x: dict[str, Tensor], s: Tensor) -> Tensor:
    table, gate = x["positions"], call.seen(s).sigmoid()
    at = (after(gate) + gate).clamp(max=table.shape[-1] - 1)
    low, high = table.gather(-1, at.long()), table.gather(-1, at.ceil().long())
    return call.seen(s + low + at.frac() * (high - low)).softmax(-1)


def weights_of_a_stick(call: Drawn, _: dict[str, Tensor], s: Tensor) -> Tensor:
    s = call.seen(s) if call.keys % 2 == 0 else call.seen(s).masked_fill(call.own, -math.inf)
    return s.sigmoid() * (-after(softplus(s))).exp()


def weights_of_a_mixture(call: Drawn, x: dict[str, Tensor], s: Tensor) -> Tensor:
    hidden = torch.einsum("gh,bhts->bgts", x["in"], s) + x["away"][:, call.entry]
    return call.seen(s + torch.einsum("hg,bgts->bhts", x["out"], leaky_relu(hidden, 0.25))).softmax(-1)


def weights_by_factors(call: Drawn, x: dict[str, Tensor], s: Tensor) -> Tensor:
    return call.seen(s).softmax(-1) * x["factors"][:, call.entry]


FORMULAS: dict[Any, Callable[[Drawn, dict[str, Tensor], Tensor], Tensor]] = {
    None: lambda call, _, s: call.seen(s).softmax(-1),
    Pieces: weights_of_pieces,
    Costs: weights_of_costs,
    Gates: weights_of_gates,
    Stick: weights_of_a_stick,
    Mixing: weights_of_a_mixture,
    Factors: weights_by_factors,
}
FORMS = [form for form in FORMULAS if form]


@needs_kernels
@pytest.mark.parametrize("first", range(0, 300, 50))
def test_kernels_equal_the_formula_on_anything(first: int) -> None:
    for seed in range(first, first + 50):
        call = Drawn(seed)
        found = call.results(call.by_kernels, torch.float32)
        exact, rounded = (call.results(call.by_formula, dtype) for dtype in (torch.float64, torch.float32))
        for name, x in exact.items():
            error, own = (float((y[name] - x).abs().max()) for y in (found, rounded))
            # Sixteen times what rounding does to the formula itself, and 256 units of the largest number or of 1.
            limit = 16 * max(own, 2.0**-20 * max(float(x.abs().max()), 1.0))
            assert error <= limit, f"{name} of call {seed} is {error:.3g} off, and rounding is {limit:.3g}: {call}"


@needs_kernels
@torch.no_grad()
def test_attention_to_parts_of_the_keys_equals_the_formula() -> None:
    """Output and log-sum-exp where queries see the keys up to their own, the last of these, or every key."""
    for seed in range(40):
        given = random.Random(seed)
        every, (batch, heads) = seed % 3 == 0, given.choice([(1, 1), (2, 3), (1, 9)])
        queries, reach = given.choice([1, 32, 45, 90]), 0 if every else given.choice([0, 7, 140])
        keys = given.choice([1, 20, 129, 300]) + (0 if every else queries)
        width, values = given.choice([3, 16, 33]), given.choice([5, 16])
        q, k, v = (
            draw(batch, heads, count, size, seed=seed + n).to(torch.float32)
            for n, (count, size) in enumerate(((queries, width), (keys, width), (keys, values)))
        )
        term = draw(given.choice([1, batch]), given.choice([1, heads]), queries, keys, seed=seed) if seed % 2 else None
        part = Part(q, k, every=every, reach=reach, term_BHTS=None if term is None else term.flip(2))
        found = attention_to_part(kernels(), part, v, 0.4)
        apart = keys - queries + torch.arange(queries)[:, None] - torch.arange(keys)
        hidden = torch.zeros_like(apart, dtype=torch.bool) if every else (apart < 0) | (apart >= (reach or keys))
        s = 0.4 * q.double() @ k.double().mT + (0 if term is None else term.double())
        s = s.masked_fill(hidden, -math.inf)
        for one, exact in zip(found, (s.softmax(-1) @ v.double(), s.logsumexp(-1)), strict=True):
            assert float((one - exact).abs().max()) <= 2.0**-17 * max(1.0, float(exact.abs().max())), seed


@needs_kernels
@torch.no_grad()
def test_functions_in_the_kernels_are_exact_to_some_units_of_rounding() -> None:
    """Weights and gates of a single number, which are its sigmoid: no sum over keys hides an error of a few units."""
    x = torch.cat([torch.linspace(-30, 30, 2000), torch.linspace(-1, 1, 2001), torch.tensor([-80.0, 80.0])])
    one, exact = torch.ones(len(x), 1, 1, 1), x.double().sigmoid()
    block = [Block(slice(0, 1), slice(0, 1))]
    stick = attention(kernels(), (x.view(-1, 1, 1, 1), one, one), block, scale=1.0, form=Stick()).flatten()
    ends = torch.tensor([1.0, 0.0]).view(1, 1, 2, 1).expand(len(x), -1, -1, -1)
    two = [Block(slice(0, 1), slice(0, 2))]
    of_two = attention(kernels(), (x.view(-1, 1, 1, 1), ends, ends), two, scale=1.0).flatten()
    factor, nothing = torch.ones(1), torch.zeros(len(x), 1, 1, 1)
    costs = Costs(x.view(-1, 1, 1, 1), torch.ones(len(x), 1, 2, 1), factor)
    other = attention(kernels(), (nothing, ends, 1 - ends), two, scale=1.0, form=costs).flatten()
    gated = swiglu(kernels(), x, torch.ones(len(x)))
    # Near 0 their logarithms are of the order of x, which is rounded, too.
    units = 6 + 2 * x.double().abs()
    for what, found, right in (
        ("stick", stick, exact),
        ("softmax", of_two, exact),
        ("costs", other, 1 / (1 + torch.exp(-softplus(x.double(), threshold=90)))),
        ("swiglu", gated, x * exact),
    ):
        off = ((found.double() - right).abs() / right.abs().clamp(min=1e-30) / 2.0**-24 / units).max()
        assert off <= 1, f"{what} is {off:.3g} times as far off as it may be"


# Every engine on anything

PIECES = (
    ("", "rope", "toys:Carried", "toys:Wide"),
    ("", "", "ssmax", "logn(5)"),
    ("", "alibi", "t5(buckets=6, far=11)", "alibi(scale=40)", "clipped(clip=30)"),
    ("", "", "shaw(clip=4)", "shaw(clip=40, values=false)", "deberta(span=9)", "transformer-xl"),
    ("", "", "fox", "cable", "fire", "toys:Paced"),
    ("", "", "", "cope(max_pos=5)", "stick-breaking", "urpe(base=none)", "toys:Capped"),
    ("", "", "window(30)", "sink(3)+window(20)", "sink(40)+window(64)"),
    ("", "", "", "", "interpolated(3)", "toys:Squares"),
)
ON_A_GRID = ["swin-2d", "alibi-2d", "t5-2d+window(25)", "rope-2d", "swin-2d+fox", "alibi-2d+sink(3)+window(30)+ssmax"]
TOKENS = [(2, 33, 70), (1, 90, 120), (3, 20, 20), (2, 1, 50), (1, 130, 300), (2, 64, 64), (1, 9, 200)]


class Layer:
    """One call of attention under encodings drawn at random, on texts with long and short queries and keys."""

    def __init__(self, seed: int, spec: str = "") -> None:
        self.random = random.Random(seed)
        self.spec = spec or (self.random.choice(ON_A_GRID) if seed % 8 == 0 else self._drawn_spec())
        self.batch, self.queries, self.keys = self.random.choice(TOKENS)
        self.sizes = self.random.choice([FEW, FEW, DEFAULT_SIZES])
        self.columns = 7 if "2d" in self.spec else None
        self.encoding = make(self.spec)
        lengths = torch.tensor([0.1, 1.0, 2.0])
        chosen = torch.randint(3, (3, self.batch, 1, self.keys, 1), generator=torch.Generator().manual_seed(seed))
        names = ("q", "k", "v")
        self.x = {n: draw(self.batch, HEADS, self.keys, 8, seed=m) * lengths[chosen[m]] for m, n in enumerate(names)}
        self.x["q"] = self.x["q"][:, :, -self.queries :]
        if seed % 4 == 1:  # queries that dislike their own keys, which are longer than those before
            self.x["k"][:, :, : -self.queries] /= 10
            self.x["q"] += 10
            self.x["k"][:, :, -self.queries :] -= 10
        self.x["x"] = draw(self.batch, self.keys, WIDTH, seed=3)

    def _drawn_spec(self) -> str:
        while True:
            chosen = [piece for piece in map(self.random.choice, PIECES) if piece]
            try:
                make(spec := "+".join(chosen) or "none")
            except UsageError:
                continue
            return spec

    def __str__(self) -> str:
        return f"{self.spec}, {self.batch} x {self.queries} of {self.keys}, {'few' if self.sizes is FEW else 'usual'}"

    def given(self, dtype: torch.dtype) -> tuple[Encoding, dict[str, Tensor]]:
        return copy.deepcopy(self.encoding).to(dtype), {name: x.to(dtype) for name, x in self.x.items()}

    def attended(self, engine: Engine, dtype: torch.dtype = torch.float32) -> Tensor:
        """The output, without a gradient."""
        encoding, x = self.given(dtype)
        features = encoding.features(x["x"])
        at = encoding.locate(self.keys, CPU, self.columns)
        return attend(engine, encoding, x["q"], x["k"], x["v"], at, features, self.sizes)

    def trained(self, engine: Engine, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """The output, and the gradients of all that is learned or given."""
        encoding, x = self.given(dtype)
        leaves = {name: y.requires_grad_() for name, y in x.items()} | dict(encoding.named_parameters())
        features = encoding.features(x["x"])
        at = encoding.locate(self.keys, CPU, self.columns)
        out = attend(engine, encoding, x["q"], x["k"], x["v"], at, features, self.sizes)
        upstream = draw(*out.shape, seed=4).to(dtype)
        grads = torch.autograd.grad(out, list(leaves.values()), upstream, allow_unused=True)
        found = {f"the gradient of {n}": g for n, g in zip(leaves, grads, strict=True) if g is not None}
        return {"the output": out.detach()} | found

    def decoded(self, engine: Engine) -> Tensor:
        """The output of the queries where the tokens come in chunks, and a cache holds the earlier ones."""
        cache, past, found = LayerCache(), 0, []
        q = torch.cat([self.x["k"][:, :, : self.keys - self.queries], self.x["q"]], dim=2)
        while past < self.keys:
            end = min(self.keys, past + self.random.choice([1, 1, 9, 40]))
            new = [y[:, :, past:end] for y in (q, self.x["k"], self.x["v"])]
            features = None
            if "features" in self.encoding.blanks:
                features = self.encoding.features(self.x["x"][:, past:end])
            at = self.encoding.locate(end, CPU, self.columns)
            found.append(cache.attend(engine, self.encoding, new, features, at))
            past = end
        return torch.cat(found, dim=2)[:, :, -self.queries :]


def assert_near(found: Tensor, exact: Tensor, rounded: Tensor, what: str) -> None:
    """Sixteen times the error of the formula itself in float32, and 256 units of rounding, are allowed."""
    error, own = (float((y - exact).abs().max()) for y in (found, rounded))
    limit = 16 * max(own, 2.0**-20 * max(float(exact.abs().max()), 1.0))
    assert error <= limit, f"{what} is {error:.3g} off, and rounding is {limit:.3g}"


REFERENCE = ENGINES["reference"]


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_engines_equal_the_reference_in_training_on_anything(first: int) -> None:
    for layer in map(Layer, range(first, first + 20)):
        exact, rounded = layer.trained(REFERENCE, torch.float64), layer.trained(REFERENCE)
        for engine in engines_for(layer.encoding):
            found = layer.trained(engine)
            assert found.keys() == exact.keys()
            for name, x in exact.items():
                assert_near(found[name], x, rounded[name], f"{name} of {engine.name} under {layer}")


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")  # on CPU it is not compiled
@pytest.mark.parametrize("first", range(0, 60, 20))
@torch.no_grad()
def test_engines_equal_the_reference_in_evaluation_on_anything(first: int) -> None:
    place = Place(gradient=False)
    more = [Layer(first + n, "alibi(scale=40)") for n in (1, 5, 9)]  # whose far keys have a weight all the same
    more += [Layer(first + n, spec) for n, spec in enumerate(("rope+window(30)+t5", "fox+window(20)", "logn(5)"))]
    for layer in [*map(Layer, range(first, first + 20)), *more]:
        exact, rounded = layer.attended(REFERENCE, torch.float64), layer.attended(REFERENCE)
        engines = engines_for(layer.encoding, place)
        if not ENGINES["flex"].refuses(layer.encoding, place):
            engines.append(ENGINES["flex"])
        results = {engine.name: layer.attended(engine) for engine in engines}
        if not (layer.encoding.rescales or layer.encoding.axes == 2):  # then the last token changes the others
            results |= {f"{engine.name}, decoding": layer.decoded(engine) for engine in engines[:3]}
        for name, found in results.items():
            assert_near(found, exact, rounded, f"{name} under {layer}")
