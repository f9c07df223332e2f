"""Whole tables of what is known of every encoding, of which act together, and of the models around them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lines import plain_table
from torch import Tensor
from toys import COMPOSITES, HEADS, TOYS, make, model, perturbed, shape, tokens

from poscli.config.run import ModelConfig
from poscli.encodings import Encoding, names
from poscli.equation import BLANKS, Operands, Positions, Shape
from poscli.equation.composed import axes_of, entangled, scale_of
from poscli.equation.operands import columns_of, even_step, grid_shape, raster, snapped
from poscli.equation.shapes import BlankInputs, wrong_shapes
from poscli.model import transformer
from poscli.model.cache import Cache, Memory
from poscli.model.generate import generate
from poscli.model.initialise import build_model
from poscli.system.errors import UsageError

Snapshot = Callable[..., None]
CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def numbers(x: Tensor, digits: int = 4) -> str:
    """All numbers of a tensor on one line; what is zero but for rounding is 0."""
    return " ".join(f"{0.0 if abs(y) < 1e-6 else y:.{digits}g}" for y in x.detach().double().flatten().tolist())


def flags(**known: object) -> str:
    """The names of what is true."""
    return " ".join(name for name, true in known.items() if true)


def known_of(encoding: Encoding) -> list[object]:
    """What an encoding says of itself, beside its formula."""
    learned = [f"{name}{list(p.shape)}" for name, p in encoding.named_parameters()]
    return [
        encoding.spec or encoding.name,
        f"{encoding.tier} of {encoding.family}: {' '.join(blank for blank in BLANKS if blank in encoding.blanks)}",
        f"{encoding.scale:.4g}",
        flags(
            absolute=not encoding.relative,
            rescales=encoding.rescales,
            steady=encoding.keys_are_steady,
            form=encoding.has_kernel_form,
            gradient=encoding.kernel_form_has_gradient,
            grid=encoding.axes == 2,
            shared=encoding.shared,
            inert=encoding.inert_alone,
            wraps=encoding.wraps,
        ),
        " ".join(f"{name} {value}" for name, value in numbers_of(encoding).items() if value),
        " ".join(learned) or "learns nothing",
    ]


def numbers_of(encoding: Encoding) -> dict[str, object]:
    """The numbers that an encoding states."""
    stated = {"reach": encoding.reach, "sinks": encoding.sinks, "features": encoding.feature_width}
    stated["evaluations"] = encoding.evaluations
    return stated | {f"at most in {dtype}": encoding.longest(dtype) for dtype in DTYPES}


def test_every_encoding_as_it_shows_itself(snapshot: Snapshot) -> None:
    frozen = make("t5").requires_grad_(False)
    snapshot("".join(f"{encoding!r}\n" for encoding in (*map(make, names()), frozen)))


def test_what_is_known_of_every_encoding(snapshot: Snapshot) -> None:
    """Options with their defaults and types, and all that follows from the blanks that are filled."""
    rows = []
    for name in names():
        encoding = make(name)
        options = [
            f"{key}={option.default}:{getattr(option.kind, '__name__', option.kind)}"
            for key, option in encoding.options().items()
        ]
        rows.append([*known_of(encoding), " ".join(options)])
    snapshot(plain_table(rows))


def test_what_is_known_of_encodings_on_one_layer(snapshot: Snapshot) -> None:
    specs = [spec for spec in (*COMPOSITES, *TOYS, *MORE) if "+" in spec]
    encodings = [make(spec) for spec in specs]
    formulas = (f"{e.formula}\n" for e in encodings[:3])
    snapshot(plain_table(known_of(encoding) for encoding in encodings) + "".join(formulas))


MORE = [
    "rope+rope-dynamic", "learned+learned", "xpos+xpos", "rope+p-rope", "cable+logn(4)", "fox+urpe(base=none)",
    "alibi-2d+t5-2d", "window(4)+window(3)", "sink(2)+sink(3)+window(4)+window(9)", "ssmax+logn(4)", "fox+cable",
    "toys:Paced+toys:Forgetting+rope", "toys:Carried+toys:Carried", "deberta+deberta", "toys:Wide+fox",
    "urpe(base=none)+urpe(base=none)",
]  # fmt: skip


def test_html_of_encodings(snapshot: Snapshot) -> None:
    specs = ["none", "t5(buckets=6, far=11)", "alibi(trainable=true)+window(9)"]
    snapshot("\n".join(make(spec)._repr_html_() for spec in specs))


VERDICTS = {
    "both define what replaces the softmax": "W",
    "both define what replaces q . k": "K",
    "both define the positions": "P",
    "both define the phase": "A",
    "turns q and k; keep one": "T",
    "state different scales": "S",
    "counts positions along a line": "G",
}


def test_which_encodings_act_together(snapshot: Snapshot) -> None:
    """A letter for each pair: . they do, ~ and scores may then depend on absolute positions; below, what is said."""
    parts = [make(spec) for spec in (*names(), *(toy for toy in TOYS if "+" not in toy))]
    said: dict[str, str] = {}
    lines = []
    for one in parts:
        letters = ""
        for other in parts:
            try:
                scale_of((one, other))
                axes_of((one, other))
            except ValueError as error:
                letter = next(letter for text, letter in VERDICTS.items() if text in str(error))
                said.setdefault(letter, str(error))
            else:
                letter = "~" if entangled((one, other)) else "."
            letters += letter
        lines.append(f"{letters} {one.name}\n")
    snapshot("".join(lines) + plain_table(said.items()))


# Shapes that blanks must have


def wrong(blank: str, value: Callable[[Encoding], object], **attributes: object) -> Encoding:
    """An encoding one of whose blanks returns what it is given, whatever the arguments are."""
    fills: dict[str, Any] = {blank: lambda self, *_: value(self)} | attributes
    if blank == "potential":
        fills |= {"features": lambda self, x: x.new_zeros(2, HEADS, x.shape[1], 1), "feature_width": 1}
    return type("Wrong", (Encoding,), fills)(shape())


SIZES = {
    "embed": (2, 16, 24), "content_query": (2, 3, 16, 8), "query": (2, 3, 16, 8), "key": (2, 3, 16, 8),
    "value": (2, 3, 16, 8), "output": (2, 3, 16, 8), "temperature": (3, 16), "distance_bias": (3, 16),
    "relative_keys": (3, 16, 8), "relative_queries": (3, 16, 8), "relative_values": (3, 16, 8), "potential": (2, 3, 16),
    "bias": (2, 3, 16, 16), "similarity": (2, 3, 16, 16), "scores": (2, 3, 16, 16), "weights": (2, 3, 16, 16),
    "reweight": (2, 3, 16, 16),
}  # fmt: skip


def test_shapes_that_blanks_must_have(snapshot: Snapshot) -> None:
    """The right shape, that without heads or texts, one number more, another dtype, and no tensor at all."""
    rows = []
    for blank, size in SIZES.items():
        values: dict[str, Any] = {
            "right": torch.zeros(size),
            "shared": torch.zeros(1, *size[1:]),
            "flat": torch.zeros(size[1:]),
            "longer": torch.zeros(*size[:-1], size[-1] + 1),
            "double": torch.zeros(size, dtype=torch.float64),
            "text": "no tensor",
        }
        for what, value in values.items():
            try:
                found = wrong_shapes(wrong(blank, lambda _, value=value: value), BlankInputs.of(shape()))
            except (RuntimeError, AttributeError, AssertionError, IndexError) as error:
                found = type(error).__name__
            rows.append((blank, what, found or "fine"))
    others = {
        "positions": wrong("positions", lambda _: torch.arange(15)),
        "positions of a grid": wrong("positions", lambda _: torch.zeros(16, 3), axes=2),
        "features": wrong("features", lambda _: torch.zeros(2, HEADS, 16, 4), feature_width=3),
    }
    rows += [(what, "", wrong_shapes(encoding, BlankInputs.of(shape())) or "fine") for what, encoding in others.items()]
    given = [BlankInputs.of(shape(length), dtype) for length, dtype in ((5, torch.float32), (40, torch.bfloat16))]
    rows += [(x.tokens, x.x_BTW.shape, x.q_BHTD.dtype, x.ids_BT.tolist()) for x in given]
    wide_shape = Shape(width=24, heads=2, layers=1, length=9, vocab=7)
    rows.append((BlankInputs.of(wide_shape).ids_BT.tolist(), numbers(BlankInputs.of(wide_shape).q_BHTD[1, 1, 2])))
    snapshot(plain_table(rows), rounded=True)


# Positions, distances and what is visible


def marks(x: Tensor) -> str:
    """A boolean matrix, a letter for each entry."""
    return "\n".join("".join("x" if y else "." for y in row) for row in x.tolist())


def doubled(d: Tensor) -> Tensor:
    """Twice each distance, and twice the sum of rows and columns on a grid."""
    return 2 * d.double().reshape(len(d), -1).sum(1)[None]


def plain(queries: int, keys: int, at: Positions, **given: Any) -> Operands:
    """Operands of one text, one head and one channel."""
    q, k = (
        torch.arange(queries, dtype=torch.float32).view(1, 1, -1, 1),
        torch.arange(keys, dtype=torch.float32).view(1, 1, -1, 1),
    )
    return Operands(
        q_BHTD=q, k_BHSD=k, v_BHSE=10 + k, raw_q_BHTD=20 + q, raw_k_BHSD=30 + k, pos_S=at.of_keys, step=at.step,
        pos_of_queries_T=None if at.shown is None else at.pos[keys - queries :], columns=at.columns, **given,
    )  # fmt: skip


def test_distances_and_what_is_visible(snapshot: Snapshot) -> None:
    parts = []
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "all": ("none", {}),
        "a window": ("none", {"reach": 3}),
        "a window and sinks": ("none", {"reach": 3, "sinks": 2}),
        "a window of all": ("none", {"reach": 9}),
        "thirds": ("alibi+interpolated(3)", {"reach": 4}),
        "squares": ("toys:Squares", {}),
        "a grid": ("alibi-2d", {}),
        "a grid and a window": ("alibi-2d", {"reach": 4}),
    }
    for what, (spec, given) in cases.items():
        encoding, (queries, keys) = make(spec), (5, 8)
        at = encoding.locate(keys, CPU, columns=3 if encoding.axes == 2 else None)
        features, temperature = torch.arange(8.0).view(1, 1, 8, 1), torch.arange(5.0)[None]
        x = plain(queries, keys, at, **given, features_BHSF=features, temperature_HT=temperature)
        b = x.block(1, 3, 0 if x.sinks else 2)
        parts += [
            f"## {what}: step {at.step and round(at.step, 6)}, columns {at.columns}",
            f"positions {numbers(at.pos)}; of keys {numbers(at.of_keys)}; of queries {numbers(x.pos_T)}",
            marks(x.visible()),
            "\n".join(numbers(row) for row in x.distances()),
            f"at distances {numbers(x.at_distances(doubled))}",
            f"block: {b.queries} queries of {b.keys} keys; "
            + "; ".join(
                numbers(y)
                for y in (b.q_BHTD, b.raw_q_BHTD, b.k_BHSD, b.v_BHSE, b.raw_k_BHSD, b.pos_S, b.pos_T, b.temperature_HT)
            ),
            f"features {numbers(b.features_BHSF)}; of queries {numbers(b.features_of_queries)}",
            marks(b.visible()),
        ]
    snapshot("\n".join(parts), rounded=True)


def test_positions_of_tokens(snapshot: Snapshot) -> None:
    specs = ["none", "alibi+interpolated(4)", "toys:Quarters", "toys:Squares", "alibi-2d", "learned+randomized(40)"]
    rows: list[list[object]] = []
    for spec, count, columns in itertools.product(specs, (1, 2, 6), (None, 4)):
        encoding = make(spec)
        if columns is None or encoding.axes == 2:
            at = encoding.locate(count, CPU, columns)
            rows.append([spec, count, at.step, at.columns, numbers(at.pos), numbers(at.of_keys), at.pos.dtype])
    grids = [[cells, grid_shape(cells), columns_of(cells)] for cells in (1, 2, 6, 7, 9, 12, 36, 48, 60, 144, 1024)]
    lines = {
        "even": torch.arange(6) * 3,
        "even, from 5": 5 + torch.arange(4) / 2,
        "backwards": torch.arange(3, 0, -1),
        "standing": torch.full((4,), 2.0),
        "off by less than rounding": torch.tensor([0.0, 1e6 + 0.05, 2e6]),
        "off by more than rounding": torch.tensor([0.0, 1e6 + 0.5, 2e6]),
        "one": torch.tensor([3]),
    }
    steps = [[what, even_step(pos), Positions.spaced(pos).step] for what, pos in lines.items()]
    near = torch.tensor([1.0, 1 + 2.0**-19, 1 + 2.0**-21, 0.5, -2 - 2.0**-22], dtype=torch.float64)
    whole = [*near.tolist(), *snapped(near).tolist(), snapped(torch.tensor([3])).dtype]
    snapshot(plain_table([*rows, *grids, *steps, whole, raster(torch.arange(-1, 5), 2).tolist()]))


# Models


@torch.no_grad()
def test_logits_of_a_model_with_a_memory(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 6 tokens, each seeing 4 of those before; then the memory itself, in parts of a batch."""
    monkeypatch.setenv("POSCLI_NATIVE", "0")
    config = ModelConfig(layers=2, width=24, heads=3, mlp=20, memory=4)
    trained = perturbed(build_model(config, "transformer-xl", vocab=11, length=6, seed=0))
    text, parts = tokens(2, 15, seed=4), []
    for chunks in ([15], [6, 6, 3], [4, 4, 7]):
        cache = Cache()
        logits = torch.cat([trained(part, cache=cache) for part in text.split(chunks, dim=1)], dim=1)
        parts.append(f"{chunks}: {cache.tokens} read, {cache.held} held; {numbers(logits[0, 4:14:3, :3])}")
    slices = [(where, list(part.shape)) for where, part in trained.logits_in_slices(text)]
    parts.append(f"without a cache {numbers(trained(text)[0, 4:14:3, :3])}; slices {slices}")
    memory = Memory(tokens=4)
    for part in text.split(6, dim=1):
        logits = trained(part, memory=memory)
        before = memory.before(1)
        assert before is not None
        parts.append(
            f"memory of {memory.held} {list(before.shape)}: {numbers(logits[0, -1, :3])} {numbers(before[1, 0, :3])}"
        )
    halves = memory.parts(2)
    parts.append(f"{[each.held for each in halves]} {[each.tokens for each in halves]} {memory.parts(1) == [memory]}")
    halves[1].states = {layer: -x for layer, x in halves[1].states.items()}
    memory.join(halves)
    loaded = Memory(tokens=4)
    loaded.load(memory.tensors() | {"other": torch.zeros(1)}, CPU)
    parts.append(f"{sorted(memory.tensors())} {sorted(loaded.states)}; {numbers(loaded.states[1][:, 0, :3])}")
    memory.join([Memory(tokens=1)])
    parts.append(f"joined with nothing: {memory.held}; none: {Memory(tokens=4).held} {Memory(tokens=4).before(0)}")
    snapshot("\n".join(parts), rounded=True)


@torch.no_grad()
def test_what_models_generate(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSCLI_NATIVE", "0")
    rows: list[list[object]] = []
    for spec, columns in (("rope", None), ("alibi-2d", 4), ("learned", None)):
        trained = perturbed(model(spec, length=40), seed=5)
        for temperature, seed, end in itertools.product((0, 0.7, 1e-3), (0, 1), (10, 3)):
            found = generate(
                trained, [end, 2, 7], [end], tokens=12, temperature=temperature, seed=seed, columns=columns
            )
            rows.append([spec, temperature, seed, end, *found])
    snapshot(plain_table(rows))


def test_models_under_other_encodings_and_engines(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSCLI_NATIVE", "0")
    rows: list[list[object]] = []
    for spec in ("rope", "rope|shaw", "cope+fox|alibi", "sink(2)+window(5)+alibi", "alibi-2d|none"):
        small = model(spec)
        other = small.under([make("t5"), make("fire")])
        same = other.embedding is small.embedding and other.layers[1].gate.weight is small.layers[1].gate.weight
        rows.append([spec, small.engine, small.engine_reason, small.shape, small.device, small.attention_dtype])
        rows.append(["under t5, fire", other.engine, other.engine_reason, same, *(e.name for e in other.encodings)])
        rows.append(["its own", *(e.name for e in small.encodings), len(small.encoding_parameters())])
        for engine in ("blocks", "sdpa", "tiles", "native", "triton", "sdqa"):
            try:
                small.use_engine(engine)
            except UsageError as error:
                rows.append([engine, error])
            else:
                rows.append([engine, small.engine, small.engine_reason])
    try:
        model("alibi-2d|none")(tokens(1, 6), cache=Cache())
    except ValueError as error:
        rows.append([error])
    snapshot(plain_table(rows))


def test_slices_of_logits(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    small, text, rows = model("rope"), tokens(2, 13), []
    for most in (10**6, 300, 100, 1):
        monkeypatch.setattr(transformer, "SLICE_NUMBERS", most)
        with torch.no_grad():
            rows.append([most, *((at.start, at.stop, list(part.shape)) for at, part in small.logits_in_slices(text))])
    snapshot(plain_table(rows))
