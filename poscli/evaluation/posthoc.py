"""Post-hoc encodings: a trained model evaluated under another encoding, without new weights.

An encoding can replace another one if its class names it (`after`); it takes over the options that both have and that
it does not set itself. It must find the weights that it needs in the checkpoint, and leave none unused. Among encodings
that learned nothing, two that can replace the same one can replace each other and be replaced by it: a model trained
with a scaling of rope can be evaluated under another scaling, and under rope. `none` can replace every encoding that
learned nothing. An encoding with `wraps` can join any other, and stays unless the target names it.

Where layers alternate, a target of one layer replaces what it can, and the other layers keep what they have. If some
layers have a window and others have none, only the latter are changed: no distance in a window is new to the model. But
where the configuration of a checkpoint has one rope for all layers, they change together, since nothing else could be
served.

A request may ask for a recalibration: a short training under the other encoding, before the evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress
from typing import TypeVar

from poscli.config.plugins import source_hashes
from poscli.config.request import ExtrapolateRequest
from poscli.config.run import Recalibration, RunConfig
from poscli.encodings import get, missing, names
from poscli.equation import Encoding, Shape
from poscli.equation.composed import Composed, leaf_encodings
from poscli.model.language_model import LanguageModel
from poscli.runs.run import Run, evaluated_as
from poscli.specs import build, check
from poscli.specs.grammar import Leaf, Spec, parse
from poscli.system.console import warn_once
from poscli.system.errors import PluginError, UsageError
from poscli.system.text import counted

Leaves = tuple[Leaf, ...]  # the encodings of one layer
M = TypeVar("M", bound=LanguageModel)
Pairs = list[tuple[int, int]]  # indices of leaves: in a layer as trained, and in that layer as evaluated
ALL = "all"  # the target for every spec that needs no training


def runs_as(runs: list[Run], request: ExtrapolateRequest, strict: bool) -> list[Run]:
    """Trained runs, each followed by the post-hoc evaluations of a request; UsageError if no run has one."""
    targets = request.as_
    for target in set(targets) - {ALL}:
        parse(target)
    expanded = [each for run in runs for each in (run, *posthoc_runs(run, request, strict))]
    if targets and len(expanded) == len(runs):
        raise UsageError(f"--as {', '.join(targets)} changes no model here; --as all --dry-run shows what does")
    return expanded


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
    if config.checkpoint is not None:
        raise UsageError(
            f"{given} trains poscli's own models, and {config.checkpoint.name} is a checkpoint; leave it out"
        )
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
                others = compatible_specs(config.encoding, shape, memory, one_rope=config.one_rope)
                specs |= dict.fromkeys(others)
            else:
                specs[str(check(spec_under(config, target), shape, memory))] = None
        except UsageError as error:
            if strict:
                raise
            warn_once(str(error))
    return [other for other in specs if other != config.encoding]


def spec_under(config: RunConfig, target: str) -> str:
    """The spec, with all options, for the model of a run evaluated as `target`; UsageError if it cannot be."""
    return posthoc_spec(config.encoding, target, config.model.shape(config.length), one_rope=config.one_rope)


def posthoc_spec(trained: str, target: str, shape: Shape, *, one_rope: bool = False) -> str:
    """The spec, with all options, for a model trained with `trained` and evaluated as `target`; else UsageError.

    With `one_rope`, layers with a window get the same rope as the others.
    """
    known, wanted = parse(trained), parse(target, defaults=True)
    try:
        layers = _layers(known.layers, wanted.layers, shape, one_rope)
    except ValueError as error:
        raise UsageError(f"a model trained with {known} cannot be evaluated as {wanted}: {error}") from error
    return str(known if layers == known.layers else Spec(_shortest(layers, shape.layers)))


def compatible_specs(trained: str, shape: Shape, memory: bool = False, *, one_rope: bool = False) -> list[str]:
    """Every other spec that replaces or joins one encoding; with `memory`, only specs that can use a memory.

    `one_rope` is as `posthoc_spec` takes it.
    """
    offered: dict[str, None] = {}
    for name in names():
        if missing(name):
            continue
        for target in _candidates(parse(trained), name, shape, one_rope):
            try:
                other = posthoc_spec(trained, str(target), shape, one_rope=one_rope)
                offered[str(check(other, shape, memory))] = None
            except (UsageError, PluginError):
                continue  # this one is not compatible
    return [spec for spec in offered if spec != str(parse(trained))]


def with_encoding(model: M, target: str, trained: str) -> M:
    """A model with the same weights, and with the encodings of the spec `target` instead of `trained`."""
    others = build(parse(target), model.shape, seed=0)
    known, wanted = parse(trained).layers, parse(target).layers
    for n, (encoding, other) in enumerate(zip(model.encodings, others, strict=True)):
        before, after = leaf_encodings(encoding), leaf_encodings(other)
        for i, j in _matched(known[n % len(known)], wanted[n % len(wanted)]):
            after[j].take_over(before[i])
    return model.under([other.to(model.device) for other in others])


def with_joined(model: M, spec: str) -> M:
    """A model with the same weights, and with the encodings of a spec joined to those of every layer."""
    others = build(parse(spec), model.shape, seed=0)
    composed: dict[tuple[Encoding, Encoding], Encoding] = {}  # layers that share both encodings share what they make
    for encoding, other in zip(model.encodings, others, strict=True):
        if (encoding, other) not in composed:
            try:
                composed[encoding, other] = Composed(
                    [*leaf_encodings(encoding), *leaf_encodings(other.to(model.device))]
                )
            except ValueError as error:
                raise UsageError(f"{spec} cannot be joined to {encoding.name}: {error}") from error
    return model.under([composed[pair] for pair in zip(model.encodings, others, strict=True)])


def _matched(trained: Leaves, target: Leaves) -> Pairs:
    """Pairs of a trained leaf and the leaf of the target that takes over its weights."""
    pairs: Pairs = []
    free = list(range(len(target)))
    for i, leaf in enumerate(trained):
        # A leaf of the same name comes before any other: `window+rope` is `rope+window` in another order.
        for j in sorted(free, key=lambda j: target[j].name != leaf.name):
            if _can_replace(target[j].name, leaf.name):
                pairs.append((i, j))
                free.remove(j)
                break
    return pairs


def _can_replace(name: str, trained: str) -> bool:
    """Whether an encoding can replace a trained one; unless `after` says so, that one must have learned nothing."""
    new, old = get(name).after, get(trained).after
    return name == trained or trained in new or name in old or bool({*new} & {*old} - {"*"})


def _layers(
    trained: tuple[Leaves, ...], target: tuple[Leaves, ...], shape: Shape, one_rope: bool
) -> tuple[Leaves, ...]:
    """The leaves of the alternating layers as they are evaluated; ValueError says why they cannot be."""
    if len(target) == len(trained):
        return tuple(_layer(layer, wanted, shape) for layer, wanted in zip(trained, target, strict=True))
    if len(target) > 1:
        raise ValueError(f"one alternates {counted(len(trained), 'encoding')}, the other {len(target)}")
    if _wrapping(target[0]):
        return _joined_everywhere(trained, target[0], shape)
    return _replaced_where_possible(trained, target[0], shape, one_rope)


def _joined_everywhere(trained: tuple[Leaves, ...], target: Leaves, shape: Shape) -> tuple[Leaves, ...]:
    """Every layer with the wrappers of the target; local layers keep those that they have."""
    layers = []
    for layer, reached in zip(trained, _reached(trained, shape), strict=True):
        known = set() if reached else {leaf.name for leaf in layer}
        new = tuple(leaf for leaf in target if leaf.name not in known)
        layers.append(_layer(layer, new, shape) if new else layer)
    return tuple(layers)


def _replaced_where_possible(
    trained: tuple[Leaves, ...], target: Leaves, shape: Shape, one_rope: bool
) -> tuple[Leaves, ...]:
    """The target in the layers where it can replace something, and the other layers; ValueError if there is none.

    With `one_rope`, layers with a window are among them, and keep their own wrappers.
    """
    reached = _reached(trained, shape)
    chosen = [n for n, here in enumerate(reached) if here or one_rope]
    layers, reasons = list(trained), []
    for n in chosen:
        kept = set() if reached[n] else {leaf.name for leaf in trained[n] if get(leaf.name).wraps}
        try:
            layers[n] = _layer(trained[n], tuple(leaf for leaf in target if leaf.name not in kept), shape)
        except ValueError as error:
            reasons.append(str(error))
    if len(reasons) == len(chosen):
        hint = f"; to change its layers with a window too, write {len(trained)} encodings with | between"
        raise ValueError(reasons[0] + (hint if len(chosen) < len(trained) else ""))
    return tuple(layers)


def _reached(layers: tuple[Leaves, ...], shape: Shape) -> list[bool]:
    """Which layers a replacement is for: those without a window, or all if every layer has one."""
    local = [any(leaf.make(shape).reach is not None for leaf in leaves) for leaves in layers]
    return [all(local) or not each for each in local]


def _shortest(layers: tuple[Leaves, ...], count: int) -> tuple[Leaves, ...]:
    """The shortest alternation that gives the same `count` layers of a model."""
    whole = [layers[n % len(layers)] for n in range(count)]
    period = next(p for p in range(1, count + 1) if all(whole[n] == whole[n % p] for n in range(count)))
    return tuple(whole[:period])


def _layer(trained: Leaves, target: Leaves, shape: Shape) -> Leaves:
    """The leaves of one layer as it is evaluated; ValueError says why it cannot be."""
    target = _joined(trained, target)
    matched = dict(_matched(trained, target))
    for i, leaf in enumerate(trained):
        if i not in matched and (count := _learned(leaf, shape)):
            raise ValueError(f"{_join(target)} has no use for the {count:,} numbers of {leaf}")
    replaced = {j: trained[i] for i, j in matched.items()}
    return tuple(_completed(leaf, replaced.get(j), shape) for j, leaf in enumerate(target))


def _joined(trained: Leaves, target: Leaves) -> Leaves:
    """The target with what stays of a trained layer: its wrappers, and all of it if the target has wrappers only."""
    named = {leaf.name: leaf for leaf in target}
    if _wrapping(trained):
        return target
    if _wrapping(target):
        known = {leaf.name for leaf in trained}
        return (*(named.get(leaf.name, leaf) for leaf in trained), *(leaf for leaf in target if leaf.name not in known))
    first = next(n for n, leaf in enumerate(trained) if not get(leaf.name).wraps)
    stays = [get(leaf.name).wraps and leaf.name not in named for leaf in trained]
    before, after = (
        tuple(compress(leaves, stays[n:])) for n, leaves in ((0, trained[:first]), (first, trained[first:]))
    )
    return (*before, *target, *after)


def _wrapping(leaves: Leaves) -> bool:
    return all(get(leaf.name).wraps for leaf in leaves)


def _completed(leaf: Leaf, replaced: Leaf | None, shape: Shape) -> Leaf:
    """A leaf of the target with its own options, and otherwise those of the trained leaf that it replaces."""
    cls = get(leaf.name)
    if replaced is None and not cls.wraps and "*" not in cls.after:
        sources = " or ".join((*cls.after, leaf.name))
        raise ValueError(
            f"a model must be trained with {sources}; `poscli extrapolate --as all --dry-run` shows what needs no "
            "training"
        )
    taken_over = replaced.options if replaced is not None else ()
    kept = {key: value for key, value in (*taken_over, *leaf.options) if key in cls.options()}
    chosen = {key: kept[key] for key, option in cls.options().items() if key in kept and kept[key] != option.default}
    completed = Leaf(leaf.name, tuple(chosen.items()))
    if replaced is None:
        return completed
    if replaced.name not in (leaf.name, *cls.after) and (count := _learned(replaced, shape)):
        raise ValueError(f"{completed} has no use for the {count:,} numbers of {replaced}")
    if _shapes(completed, shape) != _shapes(replaced, shape):
        raise ValueError(f"{completed} learns other numbers than {replaced}")
    return completed


def _candidates(known: Spec, name: str, shape: Shape, one_rope: bool) -> Iterator[Spec]:
    """The trained spec with the encoding `name` joined, and with it in place of each one that it can replace."""
    if (get(name).wraps and not get(name).inert_alone) or "*" in get(name).after:
        yield Spec(((Leaf(name),),))
    reached = _reached(known.layers, shape)
    for old in dict.fromkeys(leaf.name for leaves in known.layers for leaf in leaves):
        if old != name and _can_replace(name, old):
            yield Spec(
                tuple(
                    tuple(Leaf(name) if (here or one_rope) and leaf.name == old else leaf for leaf in leaves)
                    for leaves, here in zip(known.layers, reached, strict=True)
                )
            )


def _learned(leaf: Leaf, shape: Shape) -> int:
    """The number of parameters of an encoding."""
    return sum(p.numel() for p in leaf.make(shape).parameters())


def _shapes(leaf: Leaf, shape: Shape) -> dict[str, tuple[int, ...]]:
    """The shapes of the parameters of an encoding, by name."""
    return {name: tuple(p.shape) for name, p in leaf.make(shape).named_parameters()}


def _join(leaves: Leaves) -> str:
    return "+".join(map(str, leaves))
