"""Faults of a scaling's own numbers: those that change nothing, contradict each other, or are missing."""

from __future__ import annotations

from poscli.checkpoints.card.faults.fault import ORIGINAL, Said, Subject, fault, note
from poscli.checkpoints.kinds.rotary import LOCAL

FIXED = ("linear", "yarn", "llama3", "dynamic")  # scalings that need a factor
NESTED = {"gemma3_text"}  # model types with parameters of rope for each type of layer
FAR_APART = 2.0  # between factor * original and the stated length; both are rounded by people


@fault("factor-one")
def factor_one(subject: Subject) -> Said:
    """A factor of 1 leaves rope as it is."""
    for scaling in subject.scaled_by(*FIXED):
        if scaling.number("factor") == 1:
            yield (
                f"{scaling.where} has the scaling {scaling.kind} with factor 1, which changes nothing.",
                f"Remove {scaling.where}, or give the factor by which texts are to be longer.",
            )


@fault("longrope-without-effect")
def longrope_without_effect(subject: Subject) -> Said:
    """The two lists of LongRoPE are equal, so that nothing happens where texts get long."""
    for scaling in subject.scaled_by("longrope", "su"):
        short, long = scaling.parameters.get("short_factor"), scaling.parameters.get("long_factor")
        if short != long:
            continue
        ones = isinstance(short, list) and all(factor == 1 for factor in short)
        what = (
            "hold nothing but 1, so that no pair turns slower"
            if ones
            else "are equal, so that long texts change nothing"
        )
        yield (
            f"short_factor and long_factor of {scaling.where} {what}.",
            "Take both lists from the config.json of the model that was trained with them.",
        )


@fault("attention-factor-cancelled")
def attention_factor_cancelled(subject: Subject) -> Said:
    """YaRN's factor on cos and sin, 0.1 ln(factor) + 1, is set to 1."""
    for scaling in subject.scaled_by("yarn"):
        if (scaling.number("factor") or subject.layers[0].factor) <= 1:
            continue
        given, mscale = scaling.number("attention_factor"), scaling.number("mscale")
        by_mscale = given is None and mscale and mscale == scaling.number("mscale_all_dim")
        if given != 1 and not by_mscale:
            continue
        why = "attention_factor 1" if given == 1 else f"mscale {mscale:g} and the same mscale_all_dim"
        yield (
            f"{scaling.where} has {why}, which cancels YaRN's factor on cos and sin.",
            "Remove it, so that the factor is 0.1 ln(factor) + 1, unless the model was trained without it.",
        )


@fault("mscale-alone")
def mscale_alone(subject: Subject) -> Said:
    """One of DeepSeek's two numbers without the other is not read."""
    for scaling in subject.scaled_by("yarn"):
        given = [key for key in ("mscale", "mscale_all_dim") if scaling.number(key)]
        if len(given) == 1 and scaling.number("attention_factor") is None:
            yield (
                f"{scaling.where} has {given[0]} alone, which transformers reads only together with "
                f"{'mscale_all_dim' if given[0] == 'mscale' else 'mscale'}.",
                "Give both, or attention_factor, or neither.",
            )


@fault("original-missing")
def original_missing(subject: Subject) -> Said:
    """A scaling that depends on the length before it does not have it."""
    for scaling in subject.scaled_by("yarn", "llama3", "longrope", "su"):
        if subject.original(scaling) is None:
            yield (
                f"{scaling.where} has the scaling {scaling.kind} without {ORIGINAL}: transformers takes the stated "
                f"length, {subject.length}, for the length before the scaling.",
                f"Write {ORIGINAL} with the length that the model was trained on before the scaling.",
            )


@fault("factor-contradicts-length")
def factor_contradicts_length(subject: Subject) -> Said:
    """The length after a scaling is far from the factor times the length before it."""
    for scaling in subject.scaled_by("yarn", "longrope", "su"):
        factor, original = scaling.number("factor"), subject.original(scaling)
        if not factor or not original or subject.length == original:
            continue
        ratio = subject.length / (factor * original)
        if not 1 / FAR_APART <= ratio <= FAR_APART:
            yield (
                f"{scaling.where} scales {original:g} tokens by {factor:g}, which makes {factor * original:g}, and "
                f"config.json states a length of {subject.length}.",
                f"Set factor to {subject.length / original:g}, or the length to {factor * original:g}.",
            )


@fault("length-raised-without-scaling")
def length_raised(subject: Subject) -> Said:
    """The length was raised, the length before it is still there, and nothing scales the rotations."""
    kinds = {scaling.kind for scaling in subject.scalings} - {"default"}
    originals = [subject.original(scaling) for scaling in subject.scalings] or [subject.config.get(ORIGINAL)]
    for original in {value for value in originals if isinstance(value, int | float)}:
        if not kinds and subject.length > original:
            yield (
                f"config.json states {subject.length} tokens and {ORIGINAL} {original:g}, and no scaling of rope.",
                f"Add the scaling that the model was trained with, or set the length to {original:g}.",
            )


@fault("length-not-raised")
def length_not_raised(subject: Subject) -> Said:
    """The length after a scaling is that before it, which switches some scalings off."""
    for scaling in subject.scaled_by("llama3", "longrope", "su"):
        if subject.original(scaling) == subject.length:
            effect = "never leaves its short factors" if scaling.kind != "llama3" else "stretches a length nobody uses"
            yield (
                f"{scaling.where} has {ORIGINAL} {subject.length}, which is the stated length too, so that the scaling "
                f"{scaling.kind} {effect}.",
                "Raise max_position_embeddings to the length after the scaling.",
            )


@note("length-not-raised-for-yarn")
def length_not_raised_for_yarn(subject: Subject) -> Said:
    """Qwen's pages ask for it so: transformers does not mind, and programs that read the length alone stop early."""
    for scaling in subject.scaled_by("yarn"):
        factor = scaling.number("factor")
        if subject.original(scaling) == subject.length and factor and factor > 1:
            yield (
                f"{scaling.where} scales {subject.length} tokens by {factor:g}, and max_position_embeddings is still "
                f"{subject.length}.",
                f"Nothing for transformers; set it to {factor * subject.length:g} for programs that stop at it.",
            )


@fault("dynamic-keeps-state")
def dynamic_keeps_state(subject: Subject) -> Said:
    """The module of transformers keeps the frequencies of the longest text until one shorter than L comes."""
    for scaling in subject.scaled_by("dynamic"):
        yield (
            f"{scaling.where} has the scaling dynamic, which changes nothing up to {subject.length} tokens; beyond, "
            "transformers keeps the frequencies of the longest text so far, so that a result depends on what was read "
            "before.",
            f"Read fewer than {subject.length} tokens before each long text, or use a scaling of fixed factor.",
        )


@fault("local-layers-scaled")
def local_layers_scaled(subject: Subject) -> Said:
    """Layers with a window see no more tokens than before, so that nothing has to be scaled."""
    for scaling in subject.scalings:
        if scaling.where.endswith(f".{LOCAL}") and scaling.kind != "default":
            yield (
                f"{scaling.where} has the scaling {scaling.kind} on the layers with a window, which see no more tokens "
                "than before.",
                f"Set rope_type of {scaling.where} to default; only the other layers are scaled.",
            )


@fault("parameters-of-no-layer")
def parameters_of_no_layer(subject: Subject) -> Said:
    """Parameters of rope for a type of layer that this model type, or this model, does not have."""
    types = set(subject.layer_types)
    for scaling in subject.scalings:
        _, _, layer_type = scaling.where.partition(".")
        if not layer_type:
            continue
        if subject.architecture.model_type not in NESTED:
            why = f"models of type {subject.architecture.model_type} have one set of parameters for all layers"
        elif types and layer_type not in types:
            why = f"no layer is of type {layer_type}"
        else:
            continue
        yield (
            f"config.json has {scaling.where}, which nothing reads: {why}.",
            "Move the parameters to where the layers are, or remove them.",
        )


@fault("scaling-without-rotations")
def scaling_without_rotations(subject: Subject) -> Said:
    """There is a scaling of rope, and no layer has rope."""
    for scaling in subject.scalings:
        if not subject.rotates and scaling.kind != "default":
            yield (
                f"{scaling.where} has the scaling {scaling.kind}, and no layer of this model has rotations.",
                f"Remove {scaling.where}: it changes nothing.",
            )
