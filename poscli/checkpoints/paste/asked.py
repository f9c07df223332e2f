"""What a spec asks of a checkpoint's layers: which rope each type of layer is to have, and which window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poscli.checkpoints.architecture import GLOBAL, LOCAL, Architecture, Rotary
from poscli.checkpoints.fields import Config
from poscli.checkpoints.paste.fixed import FACTOR, fixed
from poscli.checkpoints.paste.snippet import Inexpressible
from poscli.drawing.text import named
from poscli.encodings import get
from poscli.equation import Shape
from poscli.specs.grammar import Leaf, parse

ALL = ""  # the type of every layer, in a model whose layers have one theta
Leaves = tuple[Leaf, ...]
WINDOW, SQUEEZED, ROPE, LINEAR, NOTHING = "window", "interpolated", "rope", "rope-linear", "none"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A spec for a checkpoint, sorted by what configurations have keys for."""

    architecture: Architecture
    config: Config
    target: int  # tokens of the inputs
    ropes: Mapping[str, Leaf]  # by type of layer; empty for a model without rotations
    own: Mapping[str, Leaf]  # what the model was trained with, likewise
    window: int | None  # on all layers, of a model that was trained without one

    @property
    def shape(self) -> Shape:
        a = self.architecture
        return Shape(width=a.heads * a.head_width, heads=a.heads, layers=len(a.layers), length=a.length, vocab=a.vocab)

    @property
    def main(self) -> str:
        """The type of the layers that scalings are made for: those without a theta of their own, if there are any."""
        return next(type_ for type_ in (ALL, GLOBAL, LOCAL) if type_ in self.ropes)


def asked(architecture: Architecture, config: Config, spec: str, target: int) -> Asked:
    """Sort a spec; Inexpressible, with the reason, if no program has keys for it."""
    layers = parse(fixed(spec, architecture.length, target)).layers
    own = [parse(layer.spec).layers[0] for layer in architecture.layers]
    wanted = [_as_scaling(layers[n % len(layers)]) for n in range(len(own))]
    windows = {_new_window(*pair, architecture.length) for pair in zip(own, wanted, strict=True)}
    if len(windows) > 1:
        raise Inexpressible("It puts a window on some layers only, for which there is no key.")
    ropes, (window,) = _ropes(architecture, own, wanted), windows
    if not ropes:
        _refuse_other_biases(own, wanted)
    trained = _ropes(architecture, own, own)
    return Asked(architecture=architecture, config=config, target=target, ropes=ropes, own=trained, window=window)


def _as_scaling(leaves: Leaves) -> Leaves:
    """Rope at interpolated positions as the linear scaling that it is."""
    by_name = {leaf.name: leaf for leaf in leaves}
    if ROPE not in by_name or SQUEEZED not in by_name:
        return leaves
    factor = dict(by_name[SQUEEZED].options)[FACTOR]
    linear = Leaf(LINEAR, ((FACTOR, factor), *by_name[ROPE].options))
    return tuple(linear if leaf.name == ROPE else leaf for leaf in leaves if leaf.name != SQUEEZED)


def _rotation(leaves: Leaves) -> Leaf | None:
    """The rotary encoding of a layer: the one that has a base."""
    return next((leaf for leaf in leaves if "base" in get(leaf.name).options()), None)


def _ropes(architecture: Architecture, own: Sequence[Leaves], wanted: Sequence[Leaves]) -> dict[str, Leaf]:
    """The rope that each type of layer is to have; Inexpressible if layers of one type would have several."""
    kind = architecture.kind
    typed = isinstance(kind, Rotary) and kind.local_theta is not None
    found: dict[str, Leaf] = {}
    for before, after in zip(own, wanted, strict=True):
        if _rotation(before) is None:
            continue  # a layer that was trained without rotations keeps none
        others = [leaf for leaf in after if leaf.name != WINDOW]
        leaf = _rotation(after)
        if leaf is None or len(others) > 1:
            raise Inexpressible(f"No configuration has a key for {_named(others)} on a model trained with rope.")
        type_ = ALL if not typed else LOCAL if _has_window(before) else GLOBAL
        if found.setdefault(type_, leaf) != leaf:
            raise Inexpressible(f"It has {found[type_]} and {leaf} on layers that share one configuration of rope.")
    return found


def _has_window(leaves: Leaves) -> bool:
    return any(leaf.name == WINDOW for leaf in leaves)


def _width(leaves: Leaves, length: int) -> int:
    """The width of a layer's window, which is the trained length unless it is given."""
    (options,) = (dict(leaf.options) for leaf in leaves if leaf.name == WINDOW)
    return int(options.get("width") or length)


def _new_window(before: Leaves, after: Leaves, length: int) -> int | None:
    """The width of a window that a layer gets; Inexpressible if the one that it was trained with changes."""
    if not _has_window(before):
        return _width(after, length) if _has_window(after) else None
    if not _has_window(after) or _width(before, length) != _width(after, length):
        raise Inexpressible(f"It changes the window of {_width(before, length)} tokens that layers were trained with.")
    return None


def _refuse_other_biases(own: Sequence[Leaves], wanted: Sequence[Leaves]) -> None:
    """Refuse whatever is not the model's own, in a model whose positions are no rotations."""
    for before, after in zip(own, wanted, strict=True):
        if set(before) != {leaf for leaf in after if leaf.name != WINDOW}:
            raise Inexpressible(
                f"No configuration has a key for {_named(after)} on a model trained with {_named(before)}."
            )


def _named(leaves: Sequence[Leaf]) -> str:
    return named("+".join(map(str, leaves)))
