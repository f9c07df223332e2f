"""The card of a checkpoint: its positions in numbers, and what is wrong with them, without its weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from poscli.checkpoints.architecture import architecture, lengths_of
from poscli.checkpoints.faults import Fault, faults_of
from poscli.checkpoints.readings import Readings, own_layers, ranges, stock_reading
from poscli.checkpoints.source import FETCH, config_in
from poscli.specs import parse
from poscli.system.files import read_object

TOKENIZER = "tokenizer_config.json"
UNLIMITED = 10**15  # transformers writes 1e30 for a tokenizer without a limit


@dataclass(frozen=True, kw_only=True)
class LayerGroup:
    """Layers of equal positions."""

    layers: tuple[int, ...]
    spec: str  # as `--enc` takes it
    theta: float | None  # the base of rope; None without rotations
    factor: float | None  # of a scaling by a fixed factor, else None
    original: int | None  # the trained length before that scaling, in tokens
    amplitude: float  # the factor on cos and sin
    window: int | None  # tokens
    pairs: int  # of channels that turn
    never_turning: int  # of these pairs, those short of one full turn within the trained length: longer texts are new
    slowest_wavelength: float | None  # tokens

    @property
    def numbers(self) -> str:
        """The layers as ranges, for people."""
        return ranges(self.layers)


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a checkpoint's positions are. Lengths are in tokens."""

    model_type: str
    kind: str  # of positions, such as `rotary`
    spec: str  # the positions of all layers, as `--enc` takes them
    heads: int
    kv_heads: int
    head_width: int
    groups: tuple[LayerGroup, ...]
    length: int
    length_from: str  # the key of config.json, or whose default it is
    promised: int  # the longest text for which the positions are made
    tokenizer_limit: int | None
    transformers: str  # the version that was compared
    faults: tuple[Fault, ...]  # and notes

    @property
    def layers(self) -> int:
        return sum(len(group.layers) for group in self.groups)

    @property
    def grave(self) -> tuple[Fault, ...]:
        """The faults that are more than notes."""
        return tuple(fault for fault in self.faults if not fault.note)

    def to_json(self) -> dict[str, Any]:
        """The card as one object of JSON."""
        return asdict(self) | {"layers": self.layers, "healthy": not self.grave}


def read_subject(folder: Path) -> Readings:
    """What the three readers make of the checkpoint in a folder, of which only the JSON files are read.

    CorruptError for a damaged file, DataError for numbers that make no model, UsageError for a model type that poscli
    does not know.
    """
    config = config_in(folder)
    read = architecture(config)
    return Readings(
        config=config,
        architecture=read,
        layers=tuple(own_layers(read)),
        stock=stock_reading(folder, read.length),
        tokenizer_limit=tokenizer_limit(folder),
    )


def tokenizer_limit(folder: Path) -> int | None:
    """`model_max_length` of tokenizer_config.json: the tokens that the tokenizer lets through; None for no limit."""
    if not (folder / TOKENIZER).is_file():
        return None
    limit = read_object(folder / TOKENIZER, FETCH).get("model_max_length")
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 1 <= limit < UNLIMITED:
        return None
    return int(limit)


def card_of(subject: Readings) -> Card:
    """The card of a checkpoint that has been read."""
    read = subject.architecture
    by_layer: dict[int, list[int]] = {}  # layers of equal positions are one object
    for n, layer in enumerate(subject.layers):
        by_layer.setdefault(id(layer), []).append(n)
    groups = []
    for numbers in by_layer.values():
        layer = subject.layers[numbers[0]]
        scaled = layer.factor != 1
        groups.append(
            LayerGroup(
                layers=tuple(numbers),
                spec=str(parse(layer.layer.spec)),
                theta=layer.theta,
                factor=layer.factor if scaled else None,
                original=layer.original if scaled else None,
                amplitude=layer.measured.short.amplitude,
                window=layer.window,
                pairs=len(layer.measured.short.speeds),
                never_turning=layer.never_turning,
                slowest_wavelength=layer.slowest_wavelength,
            )
        )
    return Card(
        model_type=read.model_type,
        kind=read.kind.name,
        spec=str(parse(read.spec)),
        heads=read.heads,
        kv_heads=read.kv_heads,
        head_width=read.head_width,
        groups=tuple(groups),
        length=read.length,
        length_from=next(
            (name for name in lengths_of(read.model_type) if subject.config.get(name)),
            f"the default of {read.model_type}",
        ),
        promised=subject.promised,
        tokenizer_limit=subject.tokenizer_limit,
        transformers=subject.stock.version,
        faults=tuple(faults_of(subject)),
    )
