"""From a spec to the encoding of each layer: what is refused before training, and how many numbers they hold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import torch

from poscli.encodings import missing
from poscli.equation import Encoding, Shape, Unsupported
from poscli.equation.composed import Composed
from poscli.equation.shapes import BlankInputs, wrong_shapes
from poscli.specs.grammar import Leaf, Spec, parse, with_layouts
from poscli.system.errors import PluginError, PoscliError, UsageError
from poscli.system.memory import is_out_of_memory, unaffordable
from poscli.system.plugins import blamed, is_outside
from poscli.system.text import counted

# Encodings that see a text where no blank says so, with what they lose when its beginning is forgotten.
LOST_IN_MEMORY = {
    "selective": "it hides every token but the first of the text, and a segment starts with the first one remembered",
    "selective-rope": "it sums the angles of several tokens, and the first one remembered has lost those before it",
}
LARGE_OPTION = 10**6  # a whole number above it may be the size of a table that fits no memory


def build(spec: Spec, shape: Shape, seed: int) -> list[Encoding]:
    """The encoding of each layer; a shared one is the same instance in all layers. Weights are drawn from `seed`.

    UsageError for an encoding that needs a package which is not installed.
    """
    for name in dict.fromkeys(leaf.name for leaves in spec.layers for leaf in leaves):
        if why := missing(name):
            raise UsageError(f"{name} {why}")
    return _built(spec, shape, seed)


def _built(spec: Spec, shape: Shape, seed: int) -> list[Encoding]:
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: it would also reseed the generators of devices, and costs a stack trace for each kind.
        torch.default_generator.manual_seed(seed)
        firsts: dict[Leaf, Encoding] = {}
        layers = [_layer(spec.layers[n % len(spec.layers)], shape, firsts) for n in range(shape.layers)]
    if len(spec.layers) > 1:
        for part in (part for layer in layers for part in layer.modules()):
            if isinstance(part, Encoding) and not isinstance(part, Composed) and "embed" in part.blanks:
                raise UsageError(
                    f"{part.name} acts on the embedding, before any layer, so it cannot alternate by layer; "
                    f"join it with + instead of |"
                )
    return layers


def _layer(leaves: tuple[Leaf, ...], shape: Shape, firsts: dict[Leaf, Encoding]) -> Encoding:
    """The encoding of one layer; `firsts` holds the first instance of each leaf in earlier layers."""
    parts = []
    for leaf in leaves:
        first = firsts.get(leaf)
        part = first if first is not None and first.shared else leaf.make(shape)
        part.tie(firsts.setdefault(leaf, part))
        parts.append(part)
    spec = "+".join(map(str, leaves))
    try:
        layer = parts[0] if len(parts) == 1 else Composed(parts)
    except ValueError as error:
        raise UsageError(f"{spec}: {error}") from error
    layer.spec = spec
    return layer


def check(text: str, shape: Shape, memory: bool = False, axes: int = 2) -> Spec:
    """Parse a spec and build it, to report errors before training; `memory`: segments see those before them.

    `axes` are those of the task's tokens: 1 on a line, where encodings of a grid are refused, 2 on a grid.
    UsageError for a spec that cannot be trained, PluginError for an encoding from outside poscli that fails.
    """
    spec = parse(text)
    if len(spec.layers) > shape.layers:
        count, needed = counted(shape.layers, "layer"), len(spec.layers)
        raise UsageError(
            f"{with_layouts(str(spec))} alternates {needed} encodings, and the model has {count}; give it {needed} or "
            f"more, as by --layers {needed}"
        )
    _refuse_huge(spec, shape)
    with refusing_sizes(spec), blamed():
        layers = build(spec, shape, seed=0)
        for encoding in layers:
            if encoding.axes > axes:
                raise UsageError(
                    f"{encoding.name} encodes rows and columns, and the tokens of this task stand on a line; "
                    f"add --task grid, or choose an encoding of one axis"
                )
        _refuse_short(spec, layers, shape)
        _refuse_wrong_shapes(layers, shape)
    if memory:
        _refuse_memory(layers)
    return spec


def _refuse_huge(spec: Spec, shape: Shape) -> None:
    """Refuse options so large that the weights do not fit the memory: the system would kill poscli as it makes them."""
    leaves = [leaf for layer in spec.at(shape.length).layers for leaf in layer]
    if not any(isinstance(value, int) and value > LARGE_OPTION for leaf in leaves for _, value in leaf.options):
        return
    size = 0
    with contextlib.suppress(PoscliError, RuntimeError, TypeError, ValueError):  # building them says what is wrong
        with torch.device("meta"):  # sizes without memory
            layers = build(spec, shape, seed=0)
        tensors = {id(x): x for layer in layers for x in (*layer.parameters(), *layer.buffers())}
        size = sum(x.numel() * x.element_size() for x in tensors.values())
    if why := unaffordable(size, torch.device("cpu")):
        raise UsageError(f"{spec} {why}; give smaller numbers")


@torch.no_grad()
def _refuse_short(spec: Spec, layers: list[Encoding], shape: Shape) -> None:
    """Refuse a spec that lacks positions for a training window, such as `learned+randomized`.

    The first and the last token, which has the largest positions, decide: a window of a checkpoint may take gigabytes.
    """
    try:
        for encoding in dict.fromkeys(layers):
            pos = encoding.locate(shape.length, torch.device("cpu")).pos[[0, -1]]
            x_1TW, ids = torch.zeros(1, len(pos), shape.width), torch.zeros(1, len(pos), dtype=torch.long)
            q_1HTD = x_1TW.unflatten(2, (shape.heads, -1)).transpose(1, 2)
            encoding.embed(x_1TW, pos, ids)
            encoding.query(q_1HTD, pos)
    except Unsupported as reason:
        raise UsageError(f"{spec} cannot be trained on windows of {shape.length} tokens: {reason}") from reason


def plugins_among(layers: list[Encoding]) -> list[Encoding]:
    """The encodings that come from outside poscli, each once, the parts of composed ones among them."""
    parts = {id(part): part for layer in layers for part in layer.modules() if isinstance(part, Encoding)}
    return [part for part in parts.values() if is_outside(type(part))]


def _refuse_wrong_shapes(layers: list[Encoding], shape: Shape) -> None:
    """Refuse a plugin that returns a wrong shape, because attention could not say whose fault its error is."""
    for plugin in plugins_among(layers):
        try:
            wrong = wrong_shapes(plugin, BlankInputs.of(shape))
        except (Exception, SystemExit):  # noqa: BLE001 - it raises the same in a forward pass, which states it
            continue
        if wrong:
            raise PluginError(f"the encoding {plugin.name} is wrong: {wrong}; poscli verify {plugin.name} says more")


def _refuse_memory(layers: list[Encoding]) -> None:
    """Refuse encodings whose output for a segment with its memory is another than that for the whole text."""
    for encoding in layers:
        instead, parts = "a relative one", [part for part in encoding.modules() if isinstance(part, Encoding)]
        if encoding.axes == 2:
            why = "a grid does not go on from segment to segment"
        elif "mix" in encoding.blanks:
            why = "it mixes a token with those before it, and the first one remembered has lost these"
            instead = "one that mixes nothing"
        elif not encoding.relative or encoding.sinks:
            why = "it depends on where in a text a token is, and every segment starts at 0 again"
        elif encoding.rescales:
            why = "it depends on the total length, and a segment does not know it"
        elif any("positions" in part.blanks and type(part).begin_step is not Encoding.begin_step for part in parts):
            why, instead = "it draws positions for a segment, and has none for what is remembered", "another one"
        elif lost := next((LOST_IN_MEMORY[part.name] for part in parts if part.name in LOST_IN_MEMORY), ""):
            why, instead = lost, "another one"
        else:
            continue
        raise UsageError(f"{encoding.name} cannot be trained with a memory: {why}; use {instead}, or --memory 0")


@contextmanager
def refusing_sizes(spec: Spec) -> Iterator[None]:
    """In the block, a tensor whose size overflows int64 or any memory is a UsageError about the spec."""
    try:
        yield
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
        if not _is_too_large(error):
            raise
        raise UsageError(f"{spec} has tensors larger than any memory; lower its options") from error


def abstract(spec: Spec, shape: Shape) -> list[Encoding]:
    """The encoding of each layer with the shapes of its tensors but no numbers in them (torch's device `meta`).

    An encoding whose constructor needs numbers is built with them. UsageError if a tensor is too large to exist.
    """
    with refusing_sizes(spec):
        try:
            with torch.device("meta"):
                return _built(spec, shape, seed=0)
        except (RuntimeError, TypeError) as error:
            if _is_too_large(error):
                raise
            return _built(spec, shape, seed=0)


@cache
def encoding_parameters(spec: Spec, shape: Shape) -> int:
    """The number of parameters of the encodings of all layers, those that layers share counted once.

    The first two repetitions of the spec's alternating layers are counted. Every further one adds what the second one
    adds, so that the time does not grow with the number of layers.
    """
    period = len(spec.layers)
    repetitions, rest = divmod(shape.layers, period)
    if repetitions < 3:
        return _count(abstract(spec, shape))
    once, twice = (_count(abstract(spec, replace(shape, layers=n * period + rest))) for n in (1, 2))
    return once + (repetitions - 1) * (twice - once)


def _is_too_large(error: Exception) -> bool:
    """Whether an error is about a size that overflows int64, or about lack of memory: torch has no class for it."""
    return isinstance(error, OverflowError) or "overflow" in str(error).lower() or is_out_of_memory(error)


def _count(layers: list[Encoding]) -> int:
    return sum(p.numel() for p in {id(p): p for encoding in layers for p in encoding.parameters()}.values())
