"""What the config.json of a checkpoint says about its positions, in poscli's terms.

Nothing here imports torch or transformers. The file itself is read, and not what the installed version of transformers
makes of it: versions drop keys that others have written. `poscli card` compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poscli.checkpoints.fields import HEADS, LAYERS, LENGTH, WIDTH, Config, whole
from poscli.checkpoints.kinds import KINDS, Kind, Layer
from poscli.system.errors import DataError, UsageError, near

MOST_SIZE, MOST_LAYERS = 2**20, 10_000  # far above every published model; a larger number is a mistake


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The sizes of a checkpoint's model, and the positions of each of its layers."""

    model_type: str
    kind: Kind
    layers: tuple[Layer, ...]
    width: int  # of the residual stream
    heads: int
    kv_heads: int
    head_width: int
    vocab: int
    length: int  # L: the longest input, in tokens, that config.json promises

    @property
    def spec(self) -> str:
        """The positions as a spec of poscli: the encodings of the layers, in the shortest period that they have."""
        return "|".join(shortest_period([layer.spec for layer in self.layers]))


def architecture(config: Config, length: int | None = None) -> Architecture:
    """What a config.json says; `length` replaces its own number of tokens.

    UsageError for a model type whose positions poscli does not know, DataError for numbers that make no model.
    """
    kind = kind_of(config)
    width, heads = whole(config, WIDTH, most=MOST_SIZE), whole(config, HEADS, most=MOST_SIZE)
    head_width = whole(config, ("head_dim",), kind.head_width or width // heads, MOST_SIZE)
    if not head_width:
        raise DataError(f"config.json says {width} channels and {heads} heads, which leaves no channel for a head")
    given = length or whole(config, LENGTH, kind.length)
    layers = kind.layers(config, whole(config, LAYERS, most=MOST_LAYERS), head_width, given)
    return Architecture(
        model_type=config["model_type"],
        kind=kind,
        layers=tuple(layers),
        width=width,
        heads=heads,
        kv_heads=kind.kv_heads(config, heads),
        head_width=head_width,
        vocab=whole(config, ("vocab_size",)),
        length=given,
    )


def kind_of(config: Config) -> Kind:
    """The kind of positions of a model type; UsageError, with what is supported, if it is not known."""
    name = config.get("model_type")
    if not isinstance(name, str) or not name:
        raise UsageError("config.json has no model_type: it belongs to no model of transformers")
    if name not in KINDS:
        raise UsageError(
            f"poscli does not know the positions of models of type {name!r}: {near(name, KINDS)}; it knows "
            f"{', '.join(sorted(KINDS))}"
        )
    return KINDS[name]


def shortest_period(specs: Sequence[str]) -> list[str]:
    """The shortest list that, repeated, begins with all of these: layer n has entry n modulo its length."""
    for period in range(1, len(specs) + 1):
        if all(spec == specs[n % period] for n, spec in enumerate(specs)):
            return list(specs[:period])
    return list(specs)
