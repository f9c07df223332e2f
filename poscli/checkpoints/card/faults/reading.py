"""Faults of the reading: the installed transformers computes other positions than config.json states."""

from __future__ import annotations

from poscli.checkpoints.card.faults.fault import ORIGINAL, Said, Subject, fault, ranges
from poscli.checkpoints.card.layers import FAR, Measured, OwnLayer, Turns


@fault("refused")
def refused(subject: Subject) -> Said:
    """Transformers raises an error on the configuration."""
    if subject.stock.refusal:
        yield (
            f"{subject.stock.name} makes no model of this config.json: {subject.stock.refusal}.",
            "Mend what it names, or install the version that wrote the file: pip install 'transformers"
            f"=={subject.config.get('transformers_version', 'VERSION')}'.",
        )


@fault("rope-parameters-unread")
def rope_parameters_unread(subject: Subject) -> Said:
    """Version 4 does not know the key in which version 5 keeps theta and the scaling."""
    if subject.stock.major < 5 and subject.config.get("rope_parameters") and _differing(subject):
        yield (
            f"config.json has theta and scaling in rope_parameters, a key of transformers 5, and {subject.stock.name} "
            "does not read it.",
            "Install transformers 5, or write rope_theta and rope_scaling beside it, as version 4 reads them.",
        )


@fault("theta-unread")
def theta_unread(subject: Subject) -> Said:
    """Version 4 reads theta at the top of the file only."""
    top = subject.config.get("rope_theta")
    for scaling in subject.scalings:
        inside = scaling.number("rope_theta")
        if subject.stock.major < 5 and scaling.where == "rope_scaling" and inside is not None and inside != top:
            yield (
                f"rope_scaling has rope_theta {inside:g}, which {subject.stock.name} does not read there: it takes "
                f"{'its default' if top is None else f'{top:g} from the top of config.json'}.",
                f"Write rope_theta {inside:g} at the top of config.json.",
            )


@fault("two-thetas")
def two_thetas(subject: Subject) -> Said:
    """Theta stands in the file twice, and versions differ in which they take."""
    top = subject.config.get("rope_theta")
    for scaling in subject.scalings:
        inside = scaling.number("rope_theta")
        flat = "." not in scaling.where
        if flat and isinstance(top, int | float) and inside is not None and inside != top:
            yield (
                f"config.json has rope_theta {top:g} and, in {scaling.where}, rope_theta {inside:g}: transformers 4 "
                "takes the first, version 5 the second.",
                "Keep the theta that the model was trained with.",
            )


@fault("original-misplaced")
def original_misplaced(subject: Subject) -> Said:
    """Version 4 reads the length before a longrope at the top of the file, and that before others inside."""
    top = subject.config.get(ORIGINAL)
    for scaling in subject.scaled_by("longrope", "su", "yarn", "llama3"):
        inside, outside = scaling.number(ORIGINAL), scaling.kind in ("longrope", "su")
        if subject.stock.major >= 5 or scaling.where != "rope_scaling":
            continue
        if outside and inside is not None and top is None:
            yield (
                f"rope_scaling has {ORIGINAL} {inside:g}, which {subject.stock.name} reads only at the top of "
                "config.json for this scaling.",
                f"Write {ORIGINAL} {inside:g} at the top of config.json too.",
            )
        if not outside and top is not None and inside is None:
            yield (
                f"config.json has {ORIGINAL} {top} at its top, which {subject.stock.name} reads only inside "
                "rope_scaling for this scaling.",
                f"Write {ORIGINAL} {top} into rope_scaling too.",
            )


@fault("rotations-read-otherwise")
def rotations_read_otherwise(subject: Subject) -> Said:
    """The speeds of the pairs, or the factor on cos and sin, are others than config.json states."""
    by_difference: dict[str, list[int]] = {}
    for n, own, stock in _differing(subject):
        by_difference.setdefault(_difference(own, stock), []).append(n)
    for difference, layers in by_difference.items():
        yield (
            f"{subject.stock.name} reads the rotations of layers {ranges(layers)} otherwise: {difference}.",
            "Mend the key that another fault names; if there is none, report it with this config.json.",
        )


@fault("windows-read-otherwise")
def windows_read_otherwise(subject: Subject) -> Said:
    """The windows of layers are others than config.json states."""
    found: dict[tuple[int | None, int | None], list[int]] = {}
    for n, (own, stock) in enumerate(zip(subject.layers, subject.stock.layers, strict=False)):
        if own.window != stock.window:
            found.setdefault((own.window, stock.window), []).append(n)
    for (own_window, window), layers in found.items():
        yield (
            f"config.json states {_window(own_window)} for layers {ranges(layers)}, and {subject.stock.name} gives "
            f"them {_window(window)}.",
            "Compare layer_types, sliding_window and use_sliding_window with those of the model it was made from.",
        )


@fault("layers-read-otherwise")
def layers_read_otherwise(subject: Subject) -> Said:
    """The model has another number of layers than config.json states."""
    count = len(subject.stock.layers)
    if not subject.stock.refusal and count != len(subject.layers):
        yield (
            f"config.json states {len(subject.layers)} layers, and {subject.stock.name} makes {count}.",
            "Keep one key for the number of layers, with the number of layers in the weights.",
        )


def _differing(subject: Subject) -> list[tuple[int, OwnLayer, Measured]]:
    """The layers whose rotations transformers computes otherwise, with their numbers."""
    pairs = enumerate(zip(subject.layers, subject.stock.layers, strict=False))
    found = [(n, own, stock) for n, (own, stock) in pairs]
    return [each for each in found if _differ(each[1].measured, each[2])]


def _differ(own: Measured, stock: Measured) -> bool:
    return own.short.differs(stock.short) or own.long.differs(stock.long)


def _difference(own: OwnLayer, stock: Measured) -> str:
    """In words, where the two readings part: in short texts, or only in long ones."""
    stated = own.measured
    if stated.short.differs(stock.short):
        return _compared(stated.short, stock.short)
    tokens = FAR * own.encoding.shape.length
    return f"in a text of {tokens} tokens, {_compared(stated.long, stock.long)}"


def _compared(own: Turns, stock: Turns) -> str:
    if len(own.speeds) != len(stock.speeds):
        return f"it turns {len(stock.speeds)} pairs of channels where config.json states {len(own.speeds)}"
    ratios = [theirs / mine for mine, theirs in zip(own.speeds, stock.speeds, strict=True) if mine]
    furthest = max(ratios, key=lambda ratio: abs(ratio - 1), default=1.0)
    said = (
        [f"a pair of channels turns {furthest:.4g} times as fast as config.json states"]
        if own.largest_error(stock) > 1e-5
        else []
    )
    if own.amplitude != stock.amplitude:
        said.append(f"the factor on cos and sin is {stock.amplitude:.4g} where config.json states {own.amplitude:.4g}")
    return " and ".join(said)


def _window(tokens: int | None) -> str:
    return "no window" if tokens is None else f"a window of {tokens} tokens"
