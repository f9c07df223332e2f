"""Faults of keys: those that nobody reads, because they are misspelt, belong to something else, or stand twice."""

from __future__ import annotations

import difflib

from poscli.checkpoints.card.faults.fault import ORIGINAL, Said, Subject, fault
from poscli.checkpoints.kinds.rotary import LOCAL
from poscli.checkpoints.kinds.scaling import SCALINGS

# The keys of an object with parameters of rope: those of all scalings, and those that only one reads.
EVERYWHERE = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
OF_LONGROPE = {"factor", ORIGINAL, "attention_factor", "short_factor", "long_factor"}
READ: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "yarn": {"factor", ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"},
    "llama3": {"factor", ORIGINAL, "low_freq_factor", "high_freq_factor"},
    "longrope": OF_LONGROPE,
    "su": OF_LONGROPE,
}
KNOWN = EVERYWHERE.union(*READ.values())

WITH_WINDOW = {"mistral", "qwen2", "qwen3", "gemma3_text", "phi3", "starcoder2", "smollm3"}
WITH_LAYER_TYPES = {"qwen2", "qwen3", "gemma3_text", "smollm3"}
# Keys at the top of config.json, and the model types that read them; rope_theta is read by all others with rotations.
READERS: dict[str, set[str]] = {
    "rotary_emb_base": {"gpt_neox"},
    "rotary_pct": {"gpt_neox"},
    "partial_rotary_factor": {"phi", "phi3", "gpt_neox"},  # version 4 writes it for gpt_neox, and does not read it
    "rope_local_base_freq": {"gemma3_text"},
    "no_rope_layers": {"smollm3"},
    "sliding_window": WITH_WINDOW,
    "alibi": {"falcon"},
}
HARMLESS = (None, False, 0)  # values of a foreign key that ask for nothing
# Keys whose misspelling loses a position; and keys that resemble them and are right.
TOP = {"rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "layer_types", ORIGINAL, *READERS}
RESEMBLING = {"use_sliding_window", "sliding_window_pattern", "_sliding_window_pattern", "no_rope_layer_interval"}


@fault("unknown-key")
def unknown_key(subject: Subject) -> Said:
    """A key among the parameters of rope that no scaling has."""
    for scaling in subject.scalings:
        for key in scaling.parameters:
            if key not in KNOWN:
                yield (
                    f"{scaling.where} has the key {key!r}, which transformers does not read.",
                    f"Correct it to {_nearest(key)!r}." if _nearest(key) else "Remove it, or find out what wrote it.",
                )


@fault("key-of-another-scaling")
def key_of_another_scaling(subject: Subject) -> Said:
    """A key among the parameters of rope that only another scaling has."""
    for scaling in subject.scalings:
        foreign = [key for key in scaling.parameters if key in KNOWN - EVERYWHERE - READ.get(scaling.kind, KNOWN)]
        for key in foreign:
            readers = [kind for kind in SCALINGS if key in READ[kind]]
            yield (
                f"{scaling.where} has {key} {scaling.parameters[key]!r}, which its type {scaling.kind} does not read.",
                f"Remove it, or set rope_type to one that reads it: {', '.join(readers)}.",
            )


@fault("misspelt-key")
def misspelt_key(subject: Subject) -> Said:
    """A key at the top of config.json that is almost that of a position."""
    for key in subject.config:
        if key in TOP | RESEMBLING:
            continue
        close = difflib.get_close_matches(key, TOP, n=1, cutoff=0.87)
        if close and close[0] not in subject.config:
            yield (f"config.json has the key {key!r}, which nothing reads.", f"Correct it to {close[0]!r}.")


@fault("key-of-another-model-type")
def key_of_another_model_type(subject: Subject) -> Said:
    """A key at the top of config.json that this model type does not read."""
    name = subject.architecture.model_type
    for key, readers in READERS.items():
        value = subject.config.get(key)
        if value in HARMLESS or name in readers:
            continue
        yield (
            f"config.json has {key} {value!r}, which models of type {name} do not read.",
            f"Remove it, or use the key that {name} reads; {key} is read by {', '.join(sorted(readers))}.",
        )
    if LOCAL in subject.layer_types and name not in WITH_LAYER_TYPES:
        yield (
            f"config.json lists layer_types, which models of type {name} do not read: all layers are alike.",
            f"Remove it; layer_types are read by {', '.join(sorted(WITH_LAYER_TYPES))}.",
        )


@fault("theta-under-another-name")
def theta_under_another_name(subject: Subject) -> Said:
    """GPT-NeoX does not read rope_theta at the top of config.json."""
    theta, read = subject.config.get("rope_theta"), subject.config.get("rotary_emb_base", 10000)
    if subject.architecture.model_type == "gpt_neox" and theta is not None and theta != read:
        yield (
            f"config.json has rope_theta {theta!r}, and models of type gpt_neox read rotary_emb_base, here {read!r}.",
            f"Write rotary_emb_base {theta!r} if the model was trained with it, and remove rope_theta if not.",
        )


@fault("two-types")
def two_types(subject: Subject) -> Said:
    """`type`, the old name of `rope_type`, says something else."""
    for scaling in subject.scalings:
        old, new = scaling.parameters.get("type"), scaling.parameters.get("rope_type")
        if old and new and old != new and {old, new} != {"su", "longrope"}:
            yield (
                f"{scaling.where} has type {old!r} and rope_type {new!r}: transformers 4 takes the first for most "
                "models, version 5 the second.",
                "Keep rope_type only, with the scaling that the model was trained with.",
            )


@fault("two-scalings")
def two_scalings(subject: Subject) -> Said:
    """Both versions' keys are there and differ, and both versions take rope_scaling."""
    where = {scaling.where: scaling for scaling in subject.scalings}
    old, new = where.get("rope_scaling"), where.get("rope_parameters")
    if old is None or new is None:
        return
    names = sorted((set(old.parameters) | set(new.parameters)) - {"rope_type", "type", "rope_theta"})
    differing = [name for name in names if old.parameters.get(name) != new.parameters.get(name)]
    if old.kind != new.kind or differing:
        what = "the type" if old.kind != new.kind else differing[0]
        yield (
            f"rope_scaling and rope_parameters of config.json differ in {what}; transformers reads rope_scaling.",
            "Keep one of the two: rope_scaling for transformers 4, rope_parameters for version 5.",
        )


def _nearest(key: str) -> str:
    return next(iter(difflib.get_close_matches(key, KNOWN, n=1, cutoff=0.6)), "")
