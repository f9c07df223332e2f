"""Where a checkpoint has each of the faults of faults.py.

A function finds the places of one fault in what was read of a checkpoint. A place is a mapping of the values that the
sentences about the fault name; a checkpoint without the fault has none.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping

from poscli.checkpoints.architecture import DUAL_CHUNKS, KINDS, RotaryKind, everywhere, where_used, without_window
from poscli.checkpoints.readings import FAR, Readings, Scaling, number_in, ranges
from poscli.checkpoints.scalings import ORIGINAL, SCALINGS
from poscli.checkpoints.values import section

NEED_FACTOR = ("linear", "yarn", "llama3", "dynamic")  # scalings with a factor of their own
LONGROPE = ("longrope", "su")  # two names of one scaling
FAR_ABOVE = 4  # times the longest text; published tokenizers have up to 4 times the length before a scaling
LONGEST_TRAINED = 2**24  # tokens; the longest that was published is 10 * 2**20
MPT_BIAS = 8  # alibi_bias_max as transformers computes slopes
EXACT_IN_BFLOAT16 = 256  # the whole numbers up to here are exact in bfloat16

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

# Model types whose layers may have a window, those of them that read `layer_types`, and those with a rope for each type
# of layer.
TYPES = {name: kind.types for name, kind in KINDS.items() if isinstance(kind, RotaryKind)}
WITH_WINDOW = {name for name, types in TYPES.items() if types is not without_window}
WITH_LAYER_TYPES = {name for name in WITH_WINDOW if TYPES[name] not in (everywhere, where_used)}
NESTED = {name for name, kind in KINDS.items() if kind.ropes_by_type}
# Keys at the top of config.json, and the model types that read them; rope_theta is read by all others with rotations.
READERS: dict[str, set[str]] = {
    "rotary_emb_base": {"gpt_neox"},
    "rotary_pct": {"gpt_neox"},
    # Version 4 writes it for gpt_neox, and does not read it.
    "partial_rotary_factor": {"phi", "phi3", "glm", "glm4", "gpt_neox", "stablelm", "nemotron"},
    "rope_local_base_freq": {"gemma3_text"},
    "no_rope_layers": {"smollm3"},
    "sliding_window": WITH_WINDOW,
    "alibi": {"falcon"},
}
HARMLESS = (None, False, 0)  # values of a foreign key that ask for nothing
FRACTIONS = ("rotary_pct", "partial_rotary_factor")  # of the channels; 1 asks for nothing
# Keys whose misspelling loses a position; and keys that resemble them and are right.
TOP = {"rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "layer_types", ORIGINAL, *READERS}
RESEMBLING = {"use_sliding_window", "sliding_window_pattern", "_sliding_window_pattern", "no_rope_layer_interval"}

Places = Iterable[Mapping[str, object]]  # the values to put into the sentences, once for each place with the fault
Column = Callable[[Readings], object]


def whole_checkpoint(condition: Column, **values: Column) -> Callable[[Readings], Places]:
    """One place, the whole checkpoint, if the condition holds, with these values of it."""
    return lambda model: [{name: value(model) for name, value in values.items()}] if condition(model) else []


def scalings(*kinds: str, where: Callable[[Scaling], object] = lambda scaling: True) -> Callable[[Readings], Places]:
    """The scalings of these kinds, without kinds all of them, for which a condition holds."""
    return lambda model: [
        {"scaling": each} for each in model.scalings if (not kinds or each.kind in kinds) and where(each)
    ]


# Keys of YaRN's authors, for the program that they wrote. With the value 1, or true, they ask for nothing.
OF_YARN = ("attn_factor", "extrapolation_factor", "finetuned")


def unknown_keys(model: Readings) -> Places:
    """Keys of a scaling that no version of transformers reads."""
    for scaling in model.scalings:
        for key, value in scaling.parameters.items():
            if key not in KNOWN and not (key in OF_YARN and value == 1):
                close = [] if key in OF_YARN else difflib.get_close_matches(key, KNOWN, n=1, cutoff=0.6)
                fix = f"Correct it to {close[0]!r}." if close else "Remove it, or find out what wrote it."
                yield {"scaling": scaling, "key": key, "fix": fix}


def keys_of_another_scaling(model: Readings) -> Places:
    """Keys of a scaling that only scalings of other types read."""
    for scaling in model.scalings:
        for key, value in scaling.parameters.items():
            if key in KNOWN - EVERYWHERE - READ.get(scaling.kind, KNOWN):
                readers = ", ".join(kind for kind in SCALINGS if key in READ[kind])
                yield {"scaling": scaling, "key": key, "value": value, "readers": readers}


def misspelt_keys(model: Readings) -> Places:
    """Keys of the file that resemble one which is missing."""
    for key in model.config:
        close = difflib.get_close_matches(key, TOP, n=1, cutoff=0.87)
        if key not in TOP | RESEMBLING and close and close[0] not in model.config:
            yield {"key": key, "right": close[0]}


def keys_of_another_model_type(model: Readings) -> Places:
    """Keys of the file that only other model types read, with values that ask for something."""
    for key, readers in READERS.items():
        value = model.config.get(key)
        harmless = value in HARMLESS or (key in FRACTIONS and value == 1)
        if not harmless and model.model_type not in readers:
            yield {"key": key, "value": value, "readers": ", ".join(sorted(readers))}


def two_scalings(model: Readings) -> Places:
    """The two objects for a scaling, if they contradict each other."""
    where = {scaling.where: scaling for scaling in model.scalings}
    old, new = where.get("rope_scaling"), where.get("rope_parameters")
    if old is None or new is None:
        return
    keys = sorted((set(old.parameters) | set(new.parameters)) - {"rope_type", "type", "rope_theta"})
    differing = [key for key in keys if old.parameters.get(key) != new.parameters.get(key)]
    if old.kind != new.kind or differing:
        yield {"what": "the type" if old.kind != new.kind else differing[0]}


def length_raised(model: Readings) -> Places:
    """The trained length before a scaling, if the stated length is above it and nothing scales."""
    originals = [scaling.original for scaling in model.scalings] or [model.config.get(ORIGINAL)]
    for original in {value for value in originals if isinstance(value, int | float)}:
        if model.length > original and all(scaling.kind == "default" for scaling in model.scalings):
            yield {"original": original}


def rotations_read_otherwise(model: Readings) -> Places:
    """Groups of layers, and in words where the two readings part: in short texts, or only in long ones."""
    by_difference: dict[str, list[int]] = {}
    for n, (layer, stock) in enumerate(zip(model.layers, model.stock.layers, strict=False)):
        stated, far = layer.measured, FAR * model.length
        words = stated.short.difference(stock.short, model.length)
        if not words and (words := stated.long.difference(stock.long, far)):
            words = f"in a text of {far} tokens, {words}"
        if words:
            by_difference.setdefault(words, []).append(n)
    return [{"difference": words, "layers": ranges(layers)} for words, layers in by_difference.items()]


def windows_read_otherwise(model: Readings) -> Places:
    """Layers to which transformers gives another window than the file states."""
    by_windows: dict[tuple[int | None, int | None], list[int]] = {}
    for n, (layer, stock) in enumerate(zip(model.layers, model.stock.layers, strict=False)):
        if layer.window != stock.window:
            by_windows.setdefault((layer.window, stock.window), []).append(n)
    for windows, layers in by_windows.items():
        stated, read = ("no window" if each is None else f"a window of {each} tokens" for each in windows)
        yield {"stated": stated, "read": read, "layers": ranges(layers)}


def windows_that_never_cut(model: Readings) -> Places:
    """Layers whose window is as long as the longest text."""
    layers = [n for n, layer in enumerate(model.layers) if layer.window and layer.window >= model.length]
    if layers:
        yield {"layers": ranges(layers), "window": model.layers[layers[0]].window}


def two_types(model: Readings) -> Places:
    """Scalings with two names of their type, which differ."""
    for scaling in model.scalings:
        old, new = scaling.parameters.get("type"), scaling.parameters.get("rope_type")
        if old and new and old != new and {str(old), str(new)} != set(LONGROPE):
            yield {"scaling": scaling, "old": old, "new": new}


def tokenizer_longer(model: Readings) -> Places:
    """The longest text of the tokenizer, if it is far above that of the model."""
    limit = model.tokenizer_limit
    if limit is not None and limit > FAR_ABOVE * model.promised:
        yield {"longest": model.promised, "ratio": limit / model.promised}


def theta_unread_by_neox(model: Readings) -> Places:
    """A theta under the name that GPT-NeoX does not read."""
    theta, read = model.config.get("rope_theta"), model.config.get("rotary_emb_base", 10000)
    if theta is not None and theta != read:
        yield {"theta": theta, "read": read}


def theta_unread(model: Readings) -> Places:
    """A theta beside a scaling that lacks it."""
    top = model.config.get("rope_theta")
    for scaling in model.scalings:
        if scaling.where == "rope_scaling" and scaling.theta is not None and scaling.theta != top:
            read = "its default" if top is None else f"{top:g} from the top of config.json"
            yield {"scaling": scaling, "read": read}


def two_thetas(model: Readings) -> Places:
    """A theta beside a scaling with another one."""
    top = model.config.get("rope_theta")
    for scaling in model.scalings:
        if isinstance(top, int | float) and scaling.theta not in (None, top) and not scaling.layer_type:
            yield {"scaling": scaling, "top": top}


def original_misplaced(model: Readings) -> Places:
    """Scalings whose original length stands only where version 4 does not read it.

    For longrope it reads the key at the top of the file, for yarn and llama3 the one inside `rope_scaling`.
    """
    top = model.config.get(ORIGINAL)
    for scaling in model.scalings:
        inside = scaling.number(ORIGINAL)
        if scaling.where != "rope_scaling" or (inside is None) == (top is None):
            continue
        if scaling.kind in LONGROPE and top is None:
            yield {
                "there": f"rope_scaling has {ORIGINAL} {inside:g}",
                "read": "at the top of config.json",
                "fix": f"Write {ORIGINAL} {inside:g} at the top of config.json too.",
            }
        if scaling.kind in ("yarn", "llama3") and inside is None:
            yield {
                "there": f"config.json has {ORIGINAL} {top} at its top",
                "read": "inside rope_scaling",
                "fix": f"Write {ORIGINAL} {top} into rope_scaling too.",
            }


def longrope_without_effect(model: Readings) -> Places:
    """LongRoPE with two equal lists of factors."""
    for scaling in model.scalings:
        short, long = scaling.parameters.get("short_factor"), scaling.parameters.get("long_factor")
        if scaling.kind in LONGROPE and short == long:
            ones = isinstance(short, list) and all(factor == 1 for factor in short)
            nothing = "hold nothing but 1, so that no pair turns slower"
            yield {"scaling": scaling, "lists": nothing if ones else "are equal, so that long texts change nothing"}


def attention_factor_cancelled(model: Readings) -> Places:
    """YaRN whose factor on cos and sin is 1."""
    for scaling in model.scalings:
        if scaling.kind != "yarn" or (scaling.factor or model.layers[0].factor) <= 1:
            continue
        attention, mscale = scaling.number("attention_factor"), scaling.number("mscale")
        if attention == 1:
            yield {"scaling": scaling, "keys": "attention_factor 1"}
        elif attention is None and mscale and mscale == scaling.number("mscale_all_dim"):
            yield {"scaling": scaling, "keys": f"mscale {mscale:g} and the same mscale_all_dim"}


def windows_of_chunks(model: Readings) -> int | None:
    """The tokens of a window of training, of a model with attention in chunks; None for others."""
    number = number_in(section(model.config, DUAL_CHUNKS), ORIGINAL)
    return None if number is None else round(number)


def mscale_alone(model: Readings) -> Places:
    """YaRN with one of the two numbers that act together."""
    for scaling in model.scalings:
        alone = [key for key in ("mscale", "mscale_all_dim") if scaling.number(key)]
        if alone == ["mscale"] and scaling.number("mscale") == 1:
            continue  # it changes nothing, whether it is read or not
        if scaling.kind == "yarn" and len(alone) == 1 and scaling.number("attention_factor") is None:
            other = "mscale_all_dim" if alone[0] == "mscale" else "mscale"
            yield {"scaling": scaling, "alone": alone[0], "other": other}


def window_switched_off(model: Readings) -> Places:
    """A window that no layer has."""
    window = model.config.get("sliding_window")
    if not model.windowed and isinstance(window, int) and 0 < window < model.length:
        yield {"window": window, "first": model.config.get("max_window_layers")}


def scores_scaled_by_eager_only(model: Readings) -> Places:
    """Keys of GPT-2 that change the scale of scores."""
    for key, default in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
        value = model.config.get(key)
        if value is not None and bool(value) is not default:
            yield {"key": key, "value": value}


def left_out_by_mpt(model: Readings) -> Places:
    """Keys of MPT's attention that transformers leaves out."""
    for key, lost in (
        ("qk_ln", "has no norms of queries and keys, and drops their weights"),
        ("prefix_lm", "lets no token see a later one"),
    ):
        if model.attn_config.get(key):
            yield {"key": key, "lost": lost}


def layer_list_too_long(model: Readings) -> Places:
    """A list with more entries than the model has layers."""
    entries, layers = model.config.get("no_rope_layers"), len(model.layers)
    if isinstance(entries, list) and len(entries) > layers:
        yield {"entries": len(entries), "layers": layers, "unread": len(entries) - layers}
