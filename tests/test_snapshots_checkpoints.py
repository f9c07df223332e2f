"""Whole tables of what config.json files of every model type say, of their faults, and of what is pasted into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from checkpoint_cases import READ, REFUSED, Config

from poscli.checkpoints.architecture import architecture
from poscli.checkpoints.card import Card, Subject, card_of
from poscli.checkpoints.card.layers import Measured, own_layers
from poscli.checkpoints.card.stock import Stock
from poscli.system.errors import PoscliError

Snapshot = Callable[..., None]


def subject_of(config: Config, limit: int | None = None, version: str = "5.1.0") -> Subject:
    """A checkpoint that a made-up version of transformers reads as poscli does."""
    found = architecture(config)
    layers = tuple(own_layers(found))
    return Subject(config, found, layers, Stock(version, tuple(layer.measured for layer in layers)), limit)


def test_what_every_model_type_says_of_its_positions(snapshot: Snapshot) -> None:
    lines = [line for name, config in READ.items() for line in (f"## {name}", *said(subject_of(config)))]
    snapshot("\n".join(lines), rounded=True)


def test_what_makes_no_model(snapshot: Snapshot) -> None:
    snapshot("\n".join(f"{name}: {refusal(config)}" for name, config in REFUSED.items()))


def refusal(config: Config) -> str:
    try:
        return f"read as {subject_of(config).architecture.spec}"
    except PoscliError as error:
        return f"{type(error).__name__}: {error}"


def said(subject: Subject) -> Iterator[str]:
    """A checkpoint's sizes, a line for each group of layers, and its faults."""
    found, card = subject.architecture, card_of(subject)
    yield (
        f"{card.model_type}, {card.kind}: {card.layers} layers, {found.width} wide, {card.heads} heads of "
        f"{card.head_width}, {card.kv_heads} of keys, {found.vocab} words; {card.length} tokens by {card.length_from}, "
        f"promised {card.promised}"
    )
    if found.spec != subject.layers[0].layer.spec:
        yield f"spec {card.spec}"
    for group in card.groups:
        layer = subject.layers[group.layers[0]]
        yield f"{group.numbers}: {layer.layer.spec}" + (f" as {group.spec}" if group.spec != layer.layer.spec else "")
        if group.pairs:
            scale = f"factor {group.factor} of {group.original} amplitude {group.amplitude:.4g} "
            yield (
                f"  base {group.theta:g} {scale if group.factor else ''}window {group.window} pairs {group.pairs} "
                f"short {group.never_turning} slowest {group.slowest_wavelength:.4g} {turns(layer.measured)}"
            )
        for name, numbers in layer.layer.numbers.items():
            yield f"  {name} {row(numbers)}"
    yield from faults(card)


def turns(measured: Measured) -> str:
    """The speeds of the pairs and the factor on cos and sin, twice where they depend on the length of the text."""
    texts = dict.fromkeys((measured.short, measured.long))
    return ", then ".join(f"turning {row(text.speeds)} times {few(text.amplitude)}" for text in texts)


def row(numbers: Sequence[float]) -> str:
    """A few numbers, or the ends of many."""
    shown = map(few, numbers)
    return " ".join(shown) if len(numbers) <= 12 else " ".join([*shown][:3]) + f" ... {few(numbers[-1])}"


def few(number: float) -> str:
    """A number with four digits."""
    return f"{number:.4g}"


def faults(card: Card) -> Iterator[str]:
    for fault in card.faults:
        yield f"  {'note' if fault.note else 'fault'} {fault.name}: {fault.wrong} {fault.fix}"
