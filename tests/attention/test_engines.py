"""The choice of an engine, what engines refuse, what is said of them, and the memory that they need."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import fields, replace

import pytest
import torch
from lines import plain_table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from toys import COMPOSITES, ENDS, EVERYWHERE, HEADS, NARROW, TOYS, WIDTH, draw, make, shape, wide

from poscli.attention import ENGINES, BlockSizes, Engine, Place, Reused, attend, choose, engines_for, native, selfcheck
from poscli.attention.biases import biases
from poscli.encodings import Encoding, names
from poscli.equation import Positions
from poscli.equation.blanks import of_tier
from poscli.specs import build, parse
from poscli.system.errors import UsageError

Snapshot = Callable[..., None]


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
    return plain_table([key, ", ".join(values)] for key, values in found.items())


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
    rows += [[ENGINES["triton"].refuses(make("t5"), replace(PLACES[what], width=64))] for what in list(PLACES)[3:]]
    rows += [[n, ENGINES["flex"].refuses(make("alibi"), Place("cuda", width=n))] for n in (15, 16)]
    own = Engine("mine", ENGINES["sdpa"].run, lambda *_: "", "one of a test")
    rows.append([choose(make("rope"), own).name])
    monkeypatch.setenv(selfcheck.SWITCH, "0")
    rows.append([ENGINES["triton"].refuses(make("alibi"), Place("cuda"))])
    monkeypatch.delenv(selfcheck.SWITCH)
    monkeypatch.setattr(selfcheck, "find_spec", lambda _: None)
    rows.append([ENGINES["triton"].refuses(make("alibi"), Place("cuda"))])
    snapshot(plain_table(rows))


def test_positions_are_even_only_if_each_of_them_is() -> None:
    line = torch.arange(16, dtype=torch.float64)
    assert Positions.spaced(line / 3).step == pytest.approx(1 / 3)
    for token, off in ((7, 1e-3), (1, -1e-3), (14, 1e-2)):
        moved = line.clone()
        moved[token] += off
        assert Positions.spaced(moved).step is None


def test_the_narrow_specs_fill_every_blank_and_run_on_every_engine() -> None:
    """A new blank, or a new engine, needs a spec in `toys.NARROW`."""

    def reached(specs: list[str]) -> set[str]:
        layers = [encoding for spec in specs for encoding in build(parse(spec), shape(), seed=0)]
        chosen = {
            (choose(e, place=Place(gradient=gradient)).name, gradient) for e in layers for gradient in (True, False)
        }
        return set().union(chosen, *(encoding.blanks for encoding in layers))

    assert set(NARROW) <= set(EVERYWHERE)
    assert reached(NARROW) == reached(EVERYWHERE)


@pytest.mark.parametrize(
    ("spec", "blank", "kept", "times"),
    [
        ("t5", "distance_bias", True, 1), ("t5", "distance_bias", False, 2),
        ("shaw", "relative_keys", True, 1), ("fox", "potential", False, 2), ("fox+sink-logit", "potential", False, 2),
    ],
)  # fmt: skip
@torch.no_grad()
def test_two_calls_ask_an_encoding_no_more_often_than_they_must(
    spec: str, blank: str, kept: bool, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long enough a text that keys without weight are looked for, in tiles or by the kernels."""
    encoding, asked = make(spec), []
    of = getattr(encoding, blank)
    monkeypatch.setattr(encoding, blank, lambda x: asked.append(x) or of(x))
    q, k, v = (draw(1, HEADS, 128, 8, seed=n) for n in range(3))
    features, at = encoding.features(draw(1, 128, WIDTH, seed=3)), encoding.locate(128, torch.device("cpu"))
    for engine in engines_for(encoding, Place(gradient=False)):
        if engine.name in ("native", "tiles"):
            asked.clear()
            reused = Reused(by_distance={} if kept else None)
            for _ in range(2):
                attend(engine, encoding, q, k, v, at, features, BlockSizes(tile_queries=64, tile_keys=32), reused)
            assert len(asked) == times, engine.name


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor in numbers; a view counts as the memory behind it."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, Tensor):
                self.numbers = max(self.numbers, x.untyped_storage().nbytes() // x.element_size())
        return out


def largest(engine: Engine, encoding: Encoding, tokens: int, sizes: BlockSizes) -> int:
    """The numbers of the largest tensor of one call of attention."""
    q, k, v = (draw(1, 1, tokens, 8, seed=n) for n in range(3))
    x = draw(1, tokens, 8, seed=3)
    with torch.no_grad(), Largest() as watch:  # inference mode would hide the parts of composite operators
        features = encoding.features(x)
        positions = encoding.locate(tokens, torch.device("cpu"))
        assert attend(engine, encoding, q, k, v, positions, features, sizes).isfinite().all()
    return watch.numbers


@pytest.mark.parametrize("spec", wide([*names(), "rope+window(9)", "rope+shaw(clip=4, values=false)", *TOYS]))
def test_no_engine_makes_a_matrix_of_all_pairs(spec: str) -> None:
    """Functions of the distance hold O(L) numbers, and terms per pair a block of at most `block_entries`."""
    at = shape(8192 if ENDS & set(spec.split("+")) else 512, heads=1, width=8)
    encoding = make(spec, at)
    engine = choose(encoding).engine
    per_pair = {blank for tier in ("row", "relative", "pair") for blank in of_tier(encoding.blanks, tier)}
    per_pair |= {"temperature"} & encoding.blanks if biases(encoding) else set()
    per_pair |= {"sinks"} & encoding.blanks  # the visible distances differ from query to query
    uneven = "distance_bias" in encoding.blanks and encoding.locate(9, torch.device("cpu")).step is None
    tokens, entries = (4096, 2**20) if per_pair or uneven else (8192, 2**20)
    sizes = BlockSizes(block_entries=entries)
    vector = 8 * tokens * 8  # a few vectors of width D per token
    block = max(entries, 16 * tokens * 32) if per_pair or uneven else 0  # 16 rows of 32 hidden numbers, at the least
    assert largest(engine, encoding, tokens, sizes) <= max(vector, block)
    assert max(vector, block) <= tokens**2 / 4


def test_the_meter_sees_a_matrix_of_all_pairs() -> None:
    assert largest(ENGINES["reference"], make("none", shape(heads=1, width=8)), 512, BlockSizes()) >= 512**2
