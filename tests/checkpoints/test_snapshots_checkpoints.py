"""Whole tables of what config.json files of every model type say, of their faults, and of what is pasted into them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from checkpoint_cases import FAULTY, LIMITS, MISPLACED, PASTED, READ, REFUSED, Config

from poscli.checkpoints.architecture import architecture
from poscli.checkpoints.card import Card, card_of
from poscli.checkpoints.faults import FAULTS
from poscli.checkpoints.paste import RUNTIMES, Snippet, cropped, snippets
from poscli.checkpoints.readings import LayerNumbers, Readings, Stock, Turns, own_layers
from poscli.checkpoints.wanted import fixed
from poscli.system.errors import PoscliError

Snapshot = Callable[..., None]


def subject_of(config: Config, limit: int | None = None, version: str = "5.4.0") -> Readings:
    """A checkpoint that a made-up version of transformers reads as poscli does."""
    found = architecture(config)
    layers = tuple(own_layers(found))
    return Readings(config, found, layers, Stock(version, tuple(layer.measured for layer in layers)), limit)


def test_what_every_model_type_says_of_its_positions(snapshot: Snapshot) -> None:
    lines = [line for name, config in READ.items() for line in (f"## {name}", *said(subject_of(config)))]
    snapshot("\n".join(lines), rounded=True)


def test_faults_of_configurations(snapshot: Snapshot) -> None:
    lines = [line for name, config in FAULTY.items() for line in (f"## {name}", *faults(card_of(subject_of(config))))]
    for config, limit in LIMITS:
        subject = subject_of(config, limit)
        lines += [f"## a limit of {limit} for {subject.architecture.spec}", *faults(card_of(subject))]
    assert {rule.name for rule in FAULTS} - OF_READING <= set(
        re.findall(r"^  (?:fault|note) ([\w-]+):", "\n".join(lines), re.MULTILINE)
    )
    snapshot("\n".join(lines), rounded=True)


def test_faults_of_readings(snapshot: Snapshot) -> None:
    """What another version of transformers makes of a configuration: windows, speeds, factors and layers of its own."""
    lines = []
    for name, config in MISPLACED.items():
        for version in ("4.57.0", "5.4.0"):
            lines += [f"## {name}, read by {version}", *faults(card_of(subject_of(config, version=version)))]
    for name, (config, version, alter) in READINGS.items():
        subject = subject_of(config, version=version)
        lines += [f"## {name}", *faults(card_of(replace(subject, stock=alter(subject.stock))))]
    snapshot("\n".join(lines), rounded=True)


def test_what_is_pasted_into_every_program(snapshot: Snapshot) -> None:
    lines = []
    for name, specs in PASTED.items():
        config = READ[name]
        known = architecture(config)
        for spec in specs:
            lines.append(f"## {name}, of {known.length}, under {fixed(spec, known.length, 384)}")
            lines += pasted(snippets("ORG/M", known, config, spec, 384))
    config = READ["plain"]
    for target in (192, 1_000_000):
        lines.append(f"## plain, for {target}")
        lines += pasted(snippets("my models/m", architecture(config), config, "yarn(base=500)", target, ["vllm"]))
    for name, length, runtimes in (("ORG/M", 96, tuple(RUNTIMES)), ("/a folder", 40, ("llama.cpp", "transformers"))):
        lines += [f"## the last {length} tokens", *pasted(cropped(name, length, runtimes))]
    snapshot("\n".join(lines), rounded=True)


def pasted(found: Sequence[Snippet]) -> Iterator[str]:
    """A line for each thing to paste, after the programs that take it; what was said before is (the same)."""
    by_text: dict[str, list[str]] = {}
    said = ""
    for each in found:
        text = each.text.replace("\n  ", " ").replace("\n}", " }").replace("\n", "; ")
        assert not each.keys or json.loads(text) == each.keys
        parts = [f"{each.action}: {text}" if text else each.action, *each.notes, each.reason]
        line = " // ".join(filter(None, parts))
        rope = json.dumps(each.keys.get("rope_parameters", ""))
        by_text.setdefault(line.replace(said, "(the same)") if said else line, []).append(each.runtime)
        said = rope if "rope_type" in rope else said
    yield from (f"{', '.join(runtimes)}: {line}" for line, runtimes in by_text.items())


def test_what_makes_no_model(snapshot: Snapshot) -> None:
    snapshot("\n".join(f"{name}: {refusal(config)}" for name, config in REFUSED.items()))


def slower(stock: Stock) -> Stock:
    """A reading in which the second pair of channels of each layer turns four times as slowly."""

    def turned(text: Turns) -> Turns:
        return replace(text, speeds=(*text.speeds[:1], *(speed / 4 for speed in text.speeds[1:2]), *text.speeds[2:]))

    return with_layers(stock, lambda layer: replace(layer, short=turned(layer.short), long=turned(layer.long)))


def with_layers(stock: Stock, change: Callable[[LayerNumbers], LayerNumbers], *numbers: int) -> Stock:
    """A reading in which some layers are others; without numbers, all of them."""
    chosen = numbers or range(len(stock.layers))
    return replace(stock, layers=tuple(change(each) if n in chosen else each for n, each in enumerate(stock.layers)))


def short(stock: Stock, *numbers: int, **changes: Any) -> Stock:
    """A reading in which some layers turn otherwise in short texts."""
    return with_layers(stock, lambda layer: replace(layer, short=replace(layer.short, **changes)), *numbers)


def forgetful(stock: Stock) -> Stock:
    """A reading in which long texts are like short ones."""
    return with_layers(stock, lambda layer: replace(layer, long=layer.short))


def windowed(stock: Stock, window: int | None, *numbers: int) -> Stock:
    return with_layers(stock, lambda layer: replace(layer, window=window), *numbers)


def refused(stock: Stock) -> Stock:
    return replace(stock, layers=(), refusal="KeyError: 'no such key'")


Alter = Callable[[Stock], Stock]
# By name: a configuration, and what transformers makes of it in the place of what it states.
READINGS: dict[str, tuple[Config, str, Alter]] = {
    "slower": (READ["plain"], "4.57.0", slower),
    "parameters of version 5, slower": (READ["parameters of version 5"], "4.57.0", slower),
    "parameters of version 5, slower in version 5": (READ["parameters of version 5"], "5.0.0", slower),
    "louder in two layers": (READ["yarn"], "5.0.0", lambda stock: short(stock, 0, 2, amplitude=1.25)),
    "louder and slower": (READ["yarn"], "5.0.0", lambda stock: slower(short(stock, amplitude=1.25))),
    "fewer pairs in one layer": (
        READ["plain"], "5.0.0", lambda stock: short(stock, 1, speeds=stock.layers[1].short.speeds[:3]),
    ),
    "one of two lists": (READ["longrope"], "5.0.0", forgetful),
    "a scaling that never begins": (READ["dynamic"], "5.0.0", forgetful),
    "a narrower window": (READ["gemma3 with types"], "5.0.0", lambda stock: windowed(stock, 7)),
    "no window": (READ["mistral"], "5.0.0", lambda stock: windowed(stock, None, 1, 2)),
    "fewer layers": (READ["smollm3"], "5.0.0", lambda stock: replace(stock, layers=stock.layers[:2])),
    "no model": (READ["plain"], "5.0.0", refused),
    "no model of a version": (READ["plain"] | {"transformers_version": "4.31.0"}, "5.0.0", refused),
}  # fmt: skip
OF_READING = {
    "refused", "rope-parameters-unread", "theta-unread", "original-misplaced", "rotations-read-otherwise",
    "windows-read-otherwise", "layers-read-otherwise", "scores-scaled-by-eager-attention-only",
}  # fmt: skip


def refusal(config: Config) -> str:
    try:
        return f"read as {subject_of(config).architecture.spec}"
    except PoscliError as error:
        return f"{type(error).__name__}: {error}"


def said(subject: Readings) -> Iterator[str]:
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


def turns(measured: LayerNumbers) -> str:
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
