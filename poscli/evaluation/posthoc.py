"""Post-hoc encodings: a trained model evaluated under another encoding, without new weights.

An encoding can replace another one if its class names it (`after`); it takes over the options that both have and that
it does not set itself. It must find the weights that it needs in the checkpoint, and leave none unused. An encoding
with `wraps` can join any other. `none` can replace every encoding that learned nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

from poscli.config.plugins import source_hashes
from poscli.config.request import ExtrapolateRequest
from poscli.config.run import Recalibration, RunConfig
from poscli.encodings import get, missing, names
from poscli.equation import Encoding, Shape
from poscli.equation.composed import Composed
from poscli.model.transformer import Model
from poscli.runs.run import Run, evaluated_as
from poscli.specs import build, check
from poscli.specs.grammar import Leaf, Spec, parse
from poscli.specs.options import Value
from poscli.system.console import warn_once
from poscli.system.errors import PluginError, UsageError

Pairs = list[tuple[int, int]]  # indices of leaves: in a layer as trained, and in that layer as evaluated
ALL = "all"  # the target for every spec that needs no training


def runs_as(runs: list[Run], request: ExtrapolateRequest, strict: bool) -> list[Run]:
    """Trained runs, each followed by the post-hoc evaluations of a request; UsageError if no run has one."""
    targets = request.as_
    for target in set(targets) - {ALL}:
        parse(target)
    found = [each for run in runs for each in (run, *posthoc_runs(run, request, strict))]
    if targets and len(found) == len(runs):
        raise UsageError(f"nothing trained here can be evaluated as {', '.join(targets)}; --as all shows what can")
    return found


def posthoc_runs(run: Run, request: ExtrapolateRequest, strict: bool) -> list[Run]:
    """The evaluations of a trained run under the other encodings of a request, recalibrated if it asks for that."""
    refuse_recalibration(run.config, request)
    others = posthoc_specs(run.config, request.as_, strict)
    return [evaluated_as(run, other, recalibration(run.config, other, request)) for other in others]


def recalibration(config: RunConfig, encoding: str, request: ExtrapolateRequest) -> Recalibration | None:
    """How the model of a run is recalibrated before it is evaluated under another encoding; None if it is not."""
    if request.recalibrate is None:
        return None
    sources = source_hashes(encoding, config.task, config.tokenizer, config.model.shape(config.length))
    return Recalibration(
        tokens=request.recalibrate, length=request.recalibrate_length or config.length, plugins=sources
    )


def refuse_recalibration(config: RunConfig, request: ExtrapolateRequest) -> None:
    """UsageError if a request recalibrates nothing, too little, or a model that cannot be recalibrated."""
    if request.recalibrate is None:
        if request.recalibrate_length is not None:
            raise UsageError(
                f"--recalibrate-length {request.recalibrate_length} is the window of --recalibrate; give that too"
            )
        return
    given = f"--recalibrate {request.recalibrate}"
    if not request.as_:
        raise UsageError(f"{given} trains a model under the encodings of --as; give --as too, such as --as none")
    if config.model.memory:
        raise UsageError(f"{given}: {config.encoding} has a memory, with which nothing is recalibrated; leave it out")
    length = request.recalibrate_length or config.length
    if request.recalibrate < (step := max(1, config.batch * config.length // length) * length):
        raise UsageError(f"{given} is less than one step of {step} tokens; give at least {step}")


def posthoc_specs(config: RunConfig, targets: list[str], strict: bool) -> list[str]:
    """The specs that the model of a run is to be evaluated as, with all options.

    The target `all` means every spec that needs no training. A target that the model cannot be evaluated as is a
    UsageError with the reason if `strict`, else a note.
    """
    shape, memory = config.model.shape(config.length), config.model.memory > 0
    specs: dict[str, None] = {}
    for target in targets:
        try:
            if target == ALL:
                specs |= dict.fromkeys(compatible_specs(config.encoding, shape, memory))
            else:
                other = posthoc_spec(config.encoding, target, shape)
                specs[str(check(other, shape, memory))] = None
        except UsageError as error:
            if strict:
                raise
            warn_once(str(error))
    return [other for other in specs if other != config.encoding]


def posthoc_spec(trained: str, target: str, shape: Shape) -> str:
    """The spec, with all options, for a model trained with `trained` and evaluated as `target`; else UsageError."""
    known, wanted = parse(trained), parse(target)
    try:
        return str(Spec(tuple(_layer(s, t, shape) for s, t in _aligned(known, wanted))))
    except ValueError as error:
        alternates = len(wanted.layers) < len(known.layers)
        hint = f"; its layers alternate, so write {len(known.layers)} encodings with | between" if alternates else ""
        raise UsageError(f"a model trained with {known} cannot be evaluated as {wanted}: {error}{hint}") from error


def compatible_specs(trained: str, shape: Shape, memory: bool = False) -> list[str]:
    """Every other spec that replaces or joins one encoding; with `memory`, only specs that can use a memory."""
    found: dict[str, None] = {}
    for name in names():
        if missing(name):
            continue
        for target in _replaced(parse(trained), name):
            try:
                found[str(check(posthoc_spec(trained, str(target), shape), shape, memory))] = None
            except (UsageError, PluginError):
                continue  # this one is not compatible
    return [spec for spec in found if spec != str(parse(trained))]


def with_encoding(model: Model, target: str, trained: str) -> Model:
    """A copy of a model that shares its weights, with the encodings of the spec `target` instead of `trained`."""
    copied = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    others = build(parse(target), model.config.shape(model.length, model.vocab), seed=0)
    known, wanted = parse(trained).layers, parse(target).layers
    for n, (attention, other) in enumerate(zip(copied.attention, others, strict=True)):
        before, after = _parts(attention.encoding), _parts(other)
        for i, j in _matched(known[n % len(known)], wanted[n % len(wanted)]):
            after[j].load_state_dict(before[i].state_dict())
        attention.encoding = other.to(model.embedding.device)
    return copied


def joined(model: Model, spec: str) -> Model:
    """A copy of a model that shares its weights, with the encodings of a spec joined to those of every layer."""
    copied = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    others = build(parse(spec), model.config.shape(model.length, model.vocab), seed=0)
    composed: dict[tuple[Encoding, Encoding], Encoding] = {}  # layers that share both encodings share what they make
    for attention, other in zip(copied.attention, others, strict=True):
        own = attention.encoding
        if (own, other) not in composed:
            try:
                composed[own, other] = Composed([*_parts(own), *_parts(other.to(model.embedding.device))])
            except ValueError as error:
                raise UsageError(f"{spec} cannot be joined to {own.name}: {error}") from error
        attention.encoding = composed[own, other]
    return copied


def _parts(encoding: Encoding) -> list[Encoding]:
    """The encodings of a layer, one per leaf of its spec."""
    return list(encoding.parts) if type(encoding) is Composed else [encoding]


def _matched(trained: tuple[Leaf, ...], target: tuple[Leaf, ...]) -> Pairs:
    """Pairs of a trained leaf and the leaf of the target that takes over its weights."""
    pairs: Pairs = []
    free = list(range(len(target)))
    for i, leaf in enumerate(trained):
        # A leaf of the same name comes before any other: `window+rope` is `rope+window` in another order.
        for j in sorted(free, key=lambda j: target[j].name != leaf.name):
            if target[j].name == leaf.name or leaf.name in get(target[j].name).after:
                pairs.append((i, j))
                free.remove(j)
                break
    return pairs


def _aligned(known: Spec, wanted: Spec) -> Iterator[tuple[tuple[Leaf, ...], tuple[Leaf, ...]]]:
    """The layers of both specs in pairs; a single layer of the target stands for all layers."""
    if len(wanted.layers) not in (1, len(known.layers)):
        raise ValueError(f"one alternates {len(known.layers)} encodings, the other {len(wanted.layers)}")
    targets = wanted.layers * (len(known.layers) // len(wanted.layers))
    return zip(known.layers, targets, strict=True)


def _layer(trained: tuple[Leaf, ...], target: tuple[Leaf, ...], shape: Shape) -> tuple[Leaf, ...]:
    """The leaves of one layer as it is evaluated; ValueError says why it cannot be."""
    if all(get(leaf.name).wraps for leaf in target) and not all(get(leaf.name).wraps for leaf in trained):
        target = (*trained, *(leaf for leaf in target if leaf.name not in {own.name for own in trained}))
    matched = dict(_matched(trained, target))
    for i, leaf in enumerate(trained):
        if i not in matched and (count := _learned(leaf, shape)):
            raise ValueError(f"{leaf} learned {count:,} numbers that {_join(target)} has no use for")
    replaced = {j: trained[i] for i, j in matched.items()}
    return tuple(_completed(leaf, replaced.get(j), shape) for j, leaf in enumerate(target))


def _completed(leaf: Leaf, replaced: Leaf | None, shape: Shape) -> Leaf:
    """A leaf of the target with its own options, and otherwise those of the trained leaf that it replaces."""
    cls = get(leaf.name)
    if replaced is None:
        if not cls.wraps and "*" not in cls.after:
            raise ValueError(f"a model must be trained with {leaf.name}; `--as all` shows what needs no training")
        return leaf
    kept: dict[str, Value] = {key: value for key, value in replaced.options if key in cls.options()}
    kept |= dict(leaf.options)
    completed = Leaf(leaf.name, tuple((key, kept[key]) for key in cls.options() if key in kept))
    if _shapes(completed, shape) != _shapes(replaced, shape):
        raise ValueError(f"{completed} learns other numbers than {replaced}")
    return completed


def _replaced(known: Spec, name: str) -> Iterator[Spec]:
    """The trained spec with the encoding `name` joined, and with it in place of each one that it can replace."""
    if (get(name).wraps and not get(name).inert_alone) or "*" in get(name).after:
        yield Spec(((Leaf(name),),))
    for old in dict.fromkeys(leaf.name for leaves in known.layers for leaf in leaves):
        if old in get(name).after:
            layers = [tuple(Leaf(name) if own.name == old else own for own in leaves) for leaves in known.layers]
            yield Spec(tuple(layers))


def _learned(leaf: Leaf, shape: Shape) -> int:
    """The number of parameters of an encoding."""
    return sum(p.numel() for p in leaf.make(shape).parameters())


def _shapes(leaf: Leaf, shape: Shape) -> dict[str, tuple[int, ...]]:
    """The shapes of the parameters of an encoding, by name."""
    return {name: tuple(p.shape) for name, p in leaf.make(shape).named_parameters()}


def _join(leaves: tuple[Leaf, ...]) -> str:
    return "+".join(map(str, leaves))
