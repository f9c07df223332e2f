"""What can be wrong with a checkpoint's positions: the table FAULTS, with one row for each fault or note.

A row says how the fault is called, where a checkpoint has it, what is wrong, what to do, and which model types and
versions of transformers read the keys that it is about.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from poscli.checkpoints.architecture import LOCAL, SCALINGS, quantization_of
from poscli.checkpoints.readings import FAR, ORIGINAL, ROUNDING, Readings, Scaling, Turns, ranges

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

WITH_LAYER_TYPES = {
    "qwen2", "qwen3", "qwen2_moe", "gemma3_text", "smollm3", "cohere2", "exaone4", "olmo3", "gpt_oss", "dots1",
    "ministral",
}  # fmt: skip
WITH_WINDOW = {"mistral", "phi3", "starcoder2", "mixtral", "qwen3_moe"} | WITH_LAYER_TYPES
NESTED = {"gemma3_text", "olmo3"}  # model types with parameters of rope for each type of layer
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
# Keys whose misspelling loses a position; and keys that resemble them and are right.
TOP = {"rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "layer_types", ORIGINAL, *READERS}
RESEMBLING = {"use_sliding_window", "sliding_window_pattern", "_sliding_window_pattern", "no_rope_layer_interval"}


@dataclass(frozen=True)
class Fault:
    """Something about a checkpoint's positions that is wrong, or, if it is only a note, that is good to know."""

    name: str
    wrong: str  # one sentence with the values
    fix: str  # one sentence that says what to do
    note: bool = False


Places = Iterable[Mapping[str, object]]  # the values to put into the sentences, once for each place with the fault
Column = Callable[[Readings], object]


def anyone(model: Readings) -> bool:
    """Every model type, in every version of transformers."""
    return True


def version_4(model: Readings) -> bool:
    """Transformers before version 5."""
    return model.stock.before(5)


def types(*names: str) -> Column:
    """Models of these types."""
    return lambda model: model.model_type in names


@dataclass(frozen=True)
class Rule:
    """A row of the table: how a fault is called, where a checkpoint has it, what to say of that, and what to do.

    The two sentences have the checkpoint, as `model`, and the values of the place in braces.
    """

    name: str
    places: Callable[[Readings], Places]
    wrong: str
    fix: str
    read_by: Column = anyone  # whether this model type and version of transformers read what it is about
    note: bool = False  # it is right, or may be meant so, and people stumble over it


def faults_of(subject: Readings) -> list[Fault]:
    """What the table finds in a checkpoint, faults before notes."""
    faults = []
    for rule in FAULTS:
        for values in rule.places(subject) if rule.read_by(subject) else ():
            wrong, fix = (sentence.format(model=subject, **values) for sentence in (rule.wrong, rule.fix))
            faults.append(Fault(rule.name, wrong, fix, rule.note))
    return sorted(faults, key=lambda fault: fault.note)


def whole_checkpoint(condition: Column, **values: Column) -> Callable[[Readings], Places]:
    """One place, the whole checkpoint, if the condition holds, with these values of it."""
    return lambda model: [{name: value(model) for name, value in values.items()}] if condition(model) else []


def scalings(*kinds: str, where: Callable[[Scaling], object] = lambda scaling: True) -> Callable[[Readings], Places]:
    """The scalings of these kinds, without kinds all of them, for which a condition holds."""
    return lambda model: [
        {"scaling": each} for each in model.scalings if (not kinds or each.kind in kinds) and where(each)
    ]


def _unknown_keys(model: Readings) -> Places:
    for scaling in model.scalings:
        for key in scaling.parameters:
            if key not in KNOWN:
                close = difflib.get_close_matches(key, KNOWN, n=1, cutoff=0.6)
                fix = f"Correct it to {close[0]!r}." if close else "Remove it, or find out what wrote it."
                yield {"scaling": scaling, "key": key, "fix": fix}


def _keys_of_another_scaling(model: Readings) -> Places:
    for scaling in model.scalings:
        for key, value in scaling.parameters.items():
            if key in KNOWN - EVERYWHERE - READ.get(scaling.kind, KNOWN):
                readers = ", ".join(kind for kind in SCALINGS if key in READ[kind])
                yield {"scaling": scaling, "key": key, "value": value, "readers": readers}


def _misspelt_keys(model: Readings) -> Places:
    for key in model.config:
        close = difflib.get_close_matches(key, TOP, n=1, cutoff=0.87)
        if key not in TOP | RESEMBLING and close and close[0] not in model.config:
            yield {"key": key, "right": close[0]}


def _keys_of_another_model_type(model: Readings) -> Places:
    for key, readers in READERS.items():
        value = model.config.get(key)
        if value not in HARMLESS and model.model_type not in readers:
            yield {"key": key, "value": value, "readers": ", ".join(sorted(readers))}


def _two_scalings(model: Readings) -> Places:
    where = {scaling.where: scaling for scaling in model.scalings}
    old, new = where.get("rope_scaling"), where.get("rope_parameters")
    if old is None or new is None:
        return
    keys = sorted((set(old.parameters) | set(new.parameters)) - {"rope_type", "type", "rope_theta"})
    differing = [key for key in keys if old.parameters.get(key) != new.parameters.get(key)]
    if old.kind != new.kind or differing:
        yield {"what": "the type" if old.kind != new.kind else differing[0]}


def _length_raised(model: Readings) -> Places:
    originals = [scaling.original for scaling in model.scalings] or [model.config.get(ORIGINAL)]
    for original in {value for value in originals if isinstance(value, int | float)}:
        if model.length > original and all(scaling.kind == "default" for scaling in model.scalings):
            yield {"original": original}


def _rotations_read_otherwise(model: Readings) -> Places:
    """Groups of layers, and in words where the two readings part: in short texts, or only in long ones."""
    by_difference: dict[str, list[int]] = {}
    for n, (layer, stock) in enumerate(zip(model.layers, model.stock.layers, strict=False)):
        stated = layer.measured
        if stated.short.differs(stock.short):
            by_difference.setdefault(_in_words(stated.short, stock.short), []).append(n)
        elif stated.long.differs(stock.long):
            words = f"in a text of {FAR * model.length} tokens, {_in_words(stated.long, stock.long)}"
            by_difference.setdefault(words, []).append(n)
    return [{"difference": words, "layers": ranges(layers)} for words, layers in by_difference.items()]


def _in_words(stated: Turns, stock: Turns) -> str:
    """How the turns that transformers computes differ from those that config.json states."""
    if len(stated.speeds) != len(stock.speeds):
        return f"it turns {len(stock.speeds)} pairs of channels where config.json states {len(stated.speeds)}"
    words = []
    if stated.largest_error(stock) > ROUNDING:
        ratios = [turned / pair for pair, turned in zip(stated.speeds, stock.speeds, strict=True) if pair]
        furthest = max(ratios, key=lambda ratio: abs(ratio - 1), default=1.0)
        words.append(f"a pair of channels turns {furthest:.4g} times as fast as config.json states")
    if stated.amplitude != stock.amplitude:
        factor, of_config = f"{stock.amplitude:.4g}", f"{stated.amplitude:.4g}"
        words.append(f"the factor on cos and sin is {factor} where config.json states {of_config}")
    return " and ".join(words)


def _windows_read_otherwise(model: Readings) -> Places:
    by_windows: dict[tuple[int | None, int | None], list[int]] = {}
    for n, (layer, stock) in enumerate(zip(model.layers, model.stock.layers, strict=False)):
        if layer.window != stock.window:
            by_windows.setdefault((layer.window, stock.window), []).append(n)
    for windows, layers in by_windows.items():
        stated, read = ("no window" if each is None else f"a window of {each} tokens" for each in windows)
        yield {"stated": stated, "read": read, "layers": ranges(layers)}


def _windows_that_never_cut(model: Readings) -> Places:
    layers = [n for n, layer in enumerate(model.layers) if layer.window and layer.window >= model.length]
    if layers:
        yield {"layers": ranges(layers), "window": model.layers[layers[0]].window}


def _two_types(model: Readings) -> Places:
    for scaling in model.scalings:
        old, new = scaling.parameters.get("type"), scaling.parameters.get("rope_type")
        if old and new and old != new and {old, new} != set(LONGROPE):
            yield {"scaling": scaling, "old": old, "new": new}


def _tokenizer_longer(model: Readings) -> Places:
    limit = model.tokenizer_limit
    longest = max(model.length, *(int(layer.factor * layer.original) for layer in model.layers))
    if limit is not None and limit > FAR_ABOVE * longest:
        yield {"longest": longest, "ratio": limit / longest}


def _theta_unread_by_neox(model: Readings) -> Places:
    theta, read = model.config.get("rope_theta"), model.config.get("rotary_emb_base", 10000)
    if theta is not None and theta != read:
        yield {"theta": theta, "read": read}


def _theta_unread(model: Readings) -> Places:
    top = model.config.get("rope_theta")
    for scaling in model.scalings:
        if scaling.where == "rope_scaling" and scaling.theta is not None and scaling.theta != top:
            read = "its default" if top is None else f"{top:g} from the top of config.json"
            yield {"scaling": scaling, "read": read}


def _two_thetas(model: Readings) -> Places:
    top = model.config.get("rope_theta")
    for scaling in model.scalings:
        if isinstance(top, int | float) and scaling.theta not in (None, top) and not scaling.layer_type:
            yield {"scaling": scaling, "top": top}


def _original_misplaced(model: Readings) -> Places:
    """Version 4 reads the length before a longrope at the top of the file, and that before others inside."""
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


def _longrope_without_effect(model: Readings) -> Places:
    for scaling in model.scalings:
        short, long = scaling.parameters.get("short_factor"), scaling.parameters.get("long_factor")
        if scaling.kind in LONGROPE and short == long:
            ones = isinstance(short, list) and all(factor == 1 for factor in short)
            nothing = "hold nothing but 1, so that no pair turns slower"
            yield {"scaling": scaling, "lists": nothing if ones else "are equal, so that long texts change nothing"}


def _attention_factor_cancelled(model: Readings) -> Places:
    for scaling in model.scalings:
        if scaling.kind != "yarn" or (scaling.factor or model.layers[0].factor) <= 1:
            continue
        attention, mscale = scaling.number("attention_factor"), scaling.number("mscale")
        if attention == 1:
            yield {"scaling": scaling, "keys": "attention_factor 1"}
        elif attention is None and mscale and mscale == scaling.number("mscale_all_dim"):
            yield {"scaling": scaling, "keys": f"mscale {mscale:g} and the same mscale_all_dim"}


def _mscale_alone(model: Readings) -> Places:
    for scaling in model.scalings:
        alone = [key for key in ("mscale", "mscale_all_dim") if scaling.number(key)]
        if scaling.kind == "yarn" and len(alone) == 1 and scaling.number("attention_factor") is None:
            other = "mscale_all_dim" if alone[0] == "mscale" else "mscale"
            yield {"scaling": scaling, "alone": alone[0], "other": other}


def _window_switched_off(model: Readings) -> Places:
    window = model.config.get("sliding_window")
    if not model.windowed and isinstance(window, int) and 0 < window < model.length:
        yield {"window": window, "first": model.config.get("max_window_layers")}


def _scores_scaled_by_eager_only(model: Readings) -> Places:
    for key, default in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
        value = model.config.get(key)
        if value is not None and bool(value) is not default:
            yield {"key": key, "value": value}


def _left_out_by_mpt(model: Readings) -> Places:
    for key, lost in (
        ("qk_ln", "has no norms of queries and keys, and drops their weights"),
        ("prefix_lm", "lets no token see a later one"),
    ):
        if model.attn_config.get(key):
            yield {"key": key, "lost": lost}


def _layer_list_too_long(model: Readings) -> Places:
    entries, layers = model.config.get("no_rope_layers"), len(model.layers)
    if isinstance(entries, list) and len(entries) > layers:
        yield {"entries": len(entries), "layers": layers, "unread": len(entries) - layers}


FAULTS = (
    # Keys that nobody reads, because they are misspelt, belong to something else, or stand twice.
    Rule(
        "unknown-key",
        _unknown_keys,
        "{scaling.where} has the key {key!r}, which transformers does not read.",
        "{fix}",
    ),
    Rule(
        "key-of-another-scaling",
        _keys_of_another_scaling,
        "{scaling.where} has {key} {value!r}, which its type {scaling.kind} does not read.",
        "Remove it, or set rope_type to one that reads it: {readers}.",
    ),
    Rule(
        "misspelt-key",
        _misspelt_keys,
        "config.json has the key {key!r}, which nothing reads.",
        "Correct it to {right!r}.",
    ),
    Rule(
        "key-of-another-model-type",
        _keys_of_another_model_type,
        "config.json has {key} {value!r}, which models of type {model.model_type} do not read.",
        "Remove it, or use the key that {model.model_type} reads; {key} is read by {readers}.",
    ),
    Rule(
        "key-of-another-model-type",
        whole_checkpoint(lambda model: LOCAL in model.layer_types and model.model_type not in WITH_LAYER_TYPES),
        "config.json lists layer_types, which models of type {model.model_type} do not read: all layers are alike.",
        f"Remove it; layer_types are read by {', '.join(sorted(WITH_LAYER_TYPES))}.",
    ),
    Rule(
        "theta-under-another-name",
        _theta_unread_by_neox,
        "config.json has rope_theta {theta!r}, and models of type gpt_neox read rotary_emb_base, here {read!r}.",
        "Write rotary_emb_base {theta!r} if the model was trained with it, and remove rope_theta if not.",
        read_by=types("gpt_neox"),
    ),
    Rule(
        "two-types",
        _two_types,
        "{scaling.where} has type {old!r} and rope_type {new!r}: transformers 4 takes the first for most models, "
        "version 5 the second.",
        "Keep rope_type only, with the scaling that the model was trained with.",
    ),
    Rule(
        "two-scalings",
        _two_scalings,
        "rope_scaling and rope_parameters of config.json differ in {what}; transformers reads rope_scaling.",
        "Keep one of the two: rope_scaling for transformers 4, rope_parameters for version 5.",
    ),
    # What the tokenizer lets through, and what the model was trained on.
    Rule(
        "tokenizer-shorter",
        whole_checkpoint(lambda model: model.tokenizer_limit is not None and model.tokenizer_limit < model.length),
        "tokenizer_config.json has model_max_length {model.tokenizer_limit}, and the model reads {model.length} "
        "tokens: texts that are truncated to the tokenizer's length lose the rest.",
        "Set model_max_length to {model.length}.",
    ),
    Rule(
        "tokenizer-longer",
        _tokenizer_longer,
        "tokenizer_config.json has model_max_length {model.tokenizer_limit}, which is {ratio:.3g} times the "
        "{longest} tokens that config.json states.",
        "Set model_max_length to {longest}, or add the scaling that makes the model read {model.tokenizer_limit} "
        "tokens.",
    ),
    Rule(
        "quantised",
        whole_checkpoint(lambda model: quantization_of(model.config), how=lambda model: quantization_of(model.config)),
        "The weights are quantised ({how}): poscli reads their positions here, and does not run them.",
        "To evaluate it, take the model that was quantised, or save it dequantised.",
        note=True,
    ),
    Rule(
        "length-implausible",
        whole_checkpoint(lambda model: model.length > LONGEST_TRAINED),
        f"config.json states a length of {{model.length}} tokens, and no model is known to be trained on more than "
        f"{LONGEST_TRAINED}: it says nothing of where the model ends.",
        "Write the length of the training windows.",
    ),
    # What single model types do with attention in transformers, whatever config.json says.
    Rule(
        "scores-scaled-by-eager-attention-only",
        _scores_scaled_by_eager_only,
        "config.json has {key} {value!r}, which the attention that {model.stock.name} takes by default does not read; "
        "its eager attention and version 5.4 do.",
        "Load the model with attn_implementation='eager', or install transformers 5.4.",
        read_by=lambda model: model.model_type == "gpt2" and model.stock.before(5, 4),
    ),
    Rule(
        "attention-of-mpt-left-out",
        _left_out_by_mpt,
        "attn_config has {key} true, and transformers' model of type mpt {lost}.",
        "Run the checkpoint with the code that it was trained with.",
        read_by=types("mpt"),
    ),
    Rule(
        "alibi-all-the-same",
        whole_checkpoint(lambda model: model.attn_config.get("alibi") is False),
        "attn_config has alibi false, and transformers adds ALiBi to every model of type mpt.",
        "Run the checkpoint with the code that it was trained with; its positions are not those of transformers.",
        read_by=types("mpt"),
    ),
    Rule(
        "alibi-slopes-unread",
        whole_checkpoint(lambda model: model.attn_config.get("alibi_bias_max", MPT_BIAS) != MPT_BIAS),
        "attn_config has alibi_bias_max {model.attn_config[alibi_bias_max]!r}, and transformers computes the slopes of "
        f"ALiBi with {MPT_BIAS}.",
        "Run the checkpoint with the code that it was trained with; its slopes are not those of transformers.",
        read_by=types("mpt"),
    ),
    Rule(
        "alibi-ends-at-length",
        whole_checkpoint(lambda model: True),
        "transformers reads no more than max_seq_len, {model.length} tokens, with a model of type mpt, though ALiBi "
        "has no end.",
        "Set max_seq_len to the length of your texts; no weight depends on it.",
        read_by=types("mpt"),
        note=True,
    ),
    Rule(
        "alibi-in-bfloat16",  # slope times position: bfloat16 holds 8 digits of a binary number
        whole_checkpoint(
            lambda model: model.config.get("alibi"),
            step=lambda model: max(1, 2 ** ((model.length - 1).bit_length() - 8)),
        ),
        "transformers computes the ALiBi of models of type falcon in bfloat16, where positions from "
        f"{EXACT_IN_BFLOAT16} on are rounded: at {{model.length}} to multiples of {{step}}.",
        "Nothing, if the model was trained so; distances are as coarse as that in long texts.",
        read_by=types("falcon"),
        note=True,
    ),
    Rule(
        "alibi-twice-in-eager-attention",
        whole_checkpoint(lambda model: model.config.get("alibi")),
        "The eager attention of transformers, 4.57 to 5.23 at least, adds the ALiBi of models of type falcon twice; "
        "the default (sdpa) adds it once.",
        "Keep the default, and do not ask for output_attentions, which takes the other.",
        read_by=types("falcon"),
        note=True,
    ),
    # The installed transformers computes other positions than config.json states.
    Rule(
        "refused",
        whole_checkpoint(lambda model: model.stock.refusal),
        "{model.stock.name} makes no model of this config.json: {model.stock.refusal}.",
        "Mend what it names, or install the version that wrote the file: pip install 'transformers=={model.writer}'.",
    ),
    Rule(
        "rope-parameters-unread",
        whole_checkpoint(lambda model: model.config.get("rope_parameters") and _rotations_read_otherwise(model)),
        "config.json has theta and scaling in rope_parameters, a key of transformers 5, and {model.stock.name} does "
        "not read it.",
        "Install transformers 5, or write rope_theta and rope_scaling beside it, as version 4 reads them.",
        read_by=version_4,
    ),
    Rule(
        "theta-unread",
        _theta_unread,
        "rope_scaling has rope_theta {scaling.theta:g}, which {model.stock.name} does not read there: it takes {read}.",
        "Write rope_theta {scaling.theta:g} at the top of config.json.",
        read_by=version_4,
    ),
    Rule(
        "two-thetas",
        _two_thetas,
        "config.json has rope_theta {top:g} and, in {scaling.where}, rope_theta {scaling.theta:g}: transformers 4 "
        "takes the first, version 5 the second.",
        "Keep the theta that the model was trained with.",
    ),
    Rule(
        "original-misplaced",
        _original_misplaced,
        "{there}, which {model.stock.name} reads only {read} for this scaling.",
        "{fix}",
        read_by=version_4,
    ),
    Rule(
        "rotations-read-otherwise",
        _rotations_read_otherwise,
        "{model.stock.name} reads the rotations of layers {layers} otherwise: {difference}.",
        "Mend the key that another fault names; if there is none, report it with this config.json.",
    ),
    Rule(
        "windows-read-otherwise",
        _windows_read_otherwise,
        "config.json states {stated} for layers {layers}, and {model.stock.name} gives them {read}.",
        "Compare layer_types, sliding_window and use_sliding_window with those of the model it was made from.",
    ),
    Rule(
        "layers-read-otherwise",
        whole_checkpoint(
            lambda model: not model.stock.refusal and len(model.layers) != len(model.stock.layers),
            stated=lambda model: len(model.layers),
            made=lambda model: len(model.stock.layers),
        ),
        "config.json states {stated} layers, and {model.stock.name} makes {made}.",
        "Keep one key for the number of layers, with the number of layers in the weights.",
    ),
    # A scaling's own numbers change nothing, contradict each other, or are missing.
    Rule(
        "factor-one",
        scalings(*NEED_FACTOR, where=lambda scaling: scaling.factor == 1),
        "{scaling.where} has the scaling {scaling.kind} with factor 1, which changes nothing.",
        "Remove {scaling.where}, or give the factor by which texts are to be longer.",
    ),
    Rule(
        "longrope-without-effect",
        _longrope_without_effect,
        "short_factor and long_factor of {scaling.where} {lists}.",
        "Take both lists from the config.json of the model that was trained with them.",
    ),
    Rule(
        "attention-factor-cancelled",
        _attention_factor_cancelled,
        "{scaling.where} has {keys}, which cancels YaRN's factor on cos and sin.",
        "Remove it, so that the factor is 0.1 ln(factor) + 1, unless the model was trained without it.",
    ),
    Rule(
        "mscale-alone",
        _mscale_alone,
        "{scaling.where} has {alone} alone, which transformers reads only together with {other}.",
        "Give both, or attention_factor, or neither.",
    ),
    Rule(
        "original-missing",
        scalings("yarn", "llama3", *LONGROPE, where=lambda scaling: scaling.original is None),
        f"{{scaling.where}} has the scaling {{scaling.kind}} without {ORIGINAL}: transformers takes the stated length, "
        "{model.length}, for the length before the scaling.",
        f"Write {ORIGINAL} with the length that the model was trained on before the scaling.",
    ),
    Rule(
        "factor-contradicts-length",
        scalings("yarn", *LONGROPE, where=lambda scaling: scaling.contradicts_length),
        "{scaling.where} scales {scaling.original:g} tokens by {scaling.factor:g}, which makes {scaling.reach:g}, and "
        "config.json states a length of {model.length}.",
        "Set factor to {scaling.growth:g}, or the length to {scaling.reach:g}.",
    ),
    Rule(
        "length-raised-without-scaling",
        _length_raised,
        f"config.json states {{model.length}} tokens and {ORIGINAL} {{original:g}}, and no scaling of rope.",
        "Add the scaling that the model was trained with, or set the length to {original:g}.",
    ),
    Rule(
        "length-not-raised",
        scalings("llama3", where=lambda scaling: scaling.original == scaling.length),
        f"{{scaling.where}} has {ORIGINAL} {{model.length}}, which is the stated length too, so that the scaling "
        "{scaling.kind} stretches a length nobody uses.",
        "Raise max_position_embeddings to the length after the scaling.",
    ),
    Rule(
        "length-not-raised",
        scalings(*LONGROPE, where=lambda scaling: scaling.original == scaling.length),
        f"{{scaling.where}} has {ORIGINAL} {{model.length}}, which is the stated length too, so that the scaling "
        "{scaling.kind} never leaves its short factors.",
        "Raise max_position_embeddings to the length after the scaling.",
    ),
    Rule(
        "length-not-raised-for-yarn",  # as Qwen's pages ask for it; programs that read the length alone stop early
        scalings("yarn", where=lambda scaling: scaling.original == scaling.length and (scaling.factor or 1) > 1),
        "{scaling.where} scales {model.length} tokens by {scaling.factor:g}, and max_position_embeddings is still "
        "{model.length}.",
        "Nothing for transformers; set it to {scaling.reach:g} for programs that stop at it.",
        note=True,
    ),
    Rule(
        "dynamic-keeps-state",  # until a text comes that is shorter than the trained length
        scalings("dynamic"),
        "{scaling.where} has the scaling dynamic, which changes nothing up to {model.length} tokens; beyond, "
        "transformers keeps the frequencies of the longest text so far, so that a result depends on what was read "
        "before.",
        "Read fewer than {model.length} tokens before each long text, or use a scaling of fixed factor.",
    ),
    Rule(
        "local-layers-scaled",
        scalings(where=lambda scaling: scaling.layer_type == LOCAL and scaling.kind != "default"),
        "{scaling.where} has the scaling {scaling.kind} on the layers with a window, which see no more tokens than "
        "before.",
        "Set rope_type of {scaling.where} to default; only the other layers are scaled.",
    ),
    Rule(
        "parameters-of-no-layer",
        scalings(where=lambda scaling: scaling.layer_type),
        "config.json has {scaling.where}, which nothing reads: models of type {model.model_type} have one set of "
        "parameters for all layers.",
        "Move the parameters to where the layers are, or remove them.",
        read_by=lambda model: model.model_type not in NESTED,
    ),
    Rule(
        "parameters-of-no-layer",
        lambda model: [
            {"scaling": each} for each in model.scalings if each.layer_type and each.layer_type not in model.layer_types
        ],
        "config.json has {scaling.where}, which nothing reads: no layer is of type {scaling.layer_type}.",
        "Move the parameters to where the layers are, or remove them.",
        read_by=lambda model: model.model_type in NESTED and model.layer_types,
    ),
    Rule(
        "scaling-without-rotations",
        scalings(where=lambda scaling: scaling.kind != "default"),
        "{scaling.where} has the scaling {scaling.kind}, and no layer of this model has rotations.",
        "Remove {scaling.where}: it changes nothing.",
        read_by=lambda model: not model.rotates,
    ),
    # Windows, and lists with an entry for each layer.
    Rule(
        "window-never-cuts",
        _windows_that_never_cut,
        "The window of layers {layers} has {window} tokens and the longest text {model.length}, so that it never cuts "
        "anything off.",
        "Nothing; the layers see the whole text.",
        note=True,
    ),
    Rule(
        "window-switched-off",
        _window_switched_off,
        "config.json has sliding_window {window}, which is switched off: use_sliding_window is {model.window_switch!r} "
        "and max_window_layers {first!r}.",
        "Nothing, if the model was trained so; set use_sliding_window to true if not.",
        read_by=types(*WITH_WINDOW),
        note=True,
    ),
    Rule(
        "window-missing",
        whole_checkpoint(
            lambda model: LOCAL in model.layer_types and not model.windowed,
            window=lambda model: model.config.get("sliding_window"),
            count=lambda model: model.layer_types.count(LOCAL),
        ),
        f"layer_types lists {{count}} layers of type {LOCAL}, and there is no window: sliding_window is {{window!r}} "
        "and use_sliding_window {model.window_switch!r}.",
        "Set both, or list full_attention for all layers.",
        read_by=types(*WITH_LAYER_TYPES),
    ),
    Rule(
        "layer-list-too-long",
        _layer_list_too_long,
        "no_rope_layers has {entries} entries for {layers} layers; the last {unread} are not read.",
        "Make it as long as the model, and check that its entries are those of the layers that are left.",
    ),
)
