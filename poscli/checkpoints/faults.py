"""What can be wrong with a checkpoint's positions: the table FAULTS, with one row for each fault or note.

A row says how the fault is called, where a checkpoint has it, what is wrong, what to do, and which model types and
versions of transformers read the keys that it is about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from poscli.checkpoints import fault_places as at
from poscli.checkpoints.architecture import DUAL_CHUNKS, LOCAL, quantization_of
from poscli.checkpoints.readings import Readings
from poscli.checkpoints.scalings import ORIGINAL


@dataclass(frozen=True)
class Fault:
    """Something about a checkpoint's positions that is wrong, or, if it is only a note, that is good to know."""

    name: str
    wrong: str  # one sentence with the values
    fix: str  # one sentence that says what to do
    note: bool = False


def anyone(model: Readings) -> bool:
    """Every model type, in every version of transformers."""
    return True


def version_4(model: Readings) -> bool:
    """Transformers before version 5."""
    return model.stock.before(5)


def types(*names: str) -> at.Column:
    """Models of these types."""
    return lambda model: model.model_type in names


@dataclass(frozen=True)
class Rule:
    """A row of the table: how a fault is called, where a checkpoint has it, what to say of that, and what to do.

    The two sentences have the checkpoint, as `model`, and the values of the place in braces.
    """

    name: str
    places: Callable[[Readings], at.Places]
    wrong: str
    fix: str
    read_by: at.Column = anyone  # whether this model type and version of transformers read what it is about
    note: bool = False  # it is right, or may be meant so, and people stumble over it


def faults_of(subject: Readings) -> list[Fault]:
    """What the table finds in a checkpoint, faults before notes."""
    faults = []
    for rule in FAULTS:
        for values in rule.places(subject) if rule.read_by(subject) else ():
            wrong, fix = (sentence.format(model=subject, **values) for sentence in (rule.wrong, rule.fix))
            faults.append(Fault(rule.name, wrong, fix, rule.note))
    return sorted(faults, key=lambda fault: fault.note)


FAULTS = (
    # Keys that nobody reads, because they are misspelt, belong to something else, or stand twice.
    Rule(
        "unknown-key",
        at.unknown_keys,
        "{scaling.where} has the key {key!r}, which transformers does not read.",
        "{fix}",
    ),
    Rule(
        "key-of-another-scaling",
        at.keys_of_another_scaling,
        "{scaling.where} has {key} {value!r}, which its type {scaling.kind} does not read.",
        "Remove it, or set rope_type to one that reads it: {readers}.",
    ),
    Rule(
        "misspelt-key",
        at.misspelt_keys,
        "config.json has the key {key!r}, which nothing reads.",
        "Correct it to {right!r}.",
    ),
    Rule(
        "key-of-another-model-type",
        at.keys_of_another_model_type,
        "config.json has {key} {value!r}, which models of type {model.model_type} have no use for.",
        "Remove it, or use the key that {model.model_type} reads; {key} is read by {readers}.",
    ),
    Rule(
        "key-of-another-model-type",
        at.whole_checkpoint(lambda model: LOCAL in model.layer_types and model.model_type not in at.WITH_LAYER_TYPES),
        "config.json lists layer_types, which models of type {model.model_type} do not read: all layers are alike.",
        f"Remove it; layer_types are read by {', '.join(sorted(at.WITH_LAYER_TYPES))}.",
    ),
    Rule(
        "theta-under-another-name",
        at.theta_unread_by_neox,
        "config.json has rope_theta {theta!r}, and models of type gpt_neox read rotary_emb_base, here {read!r}.",
        "Write rotary_emb_base {theta!r} if the model was trained with it, and remove rope_theta if not.",
        read_by=types("gpt_neox"),
    ),
    Rule(
        "two-types",
        at.two_types,
        "{scaling.where} has type {old!r} and rope_type {new!r}: transformers 4 takes the first for most models, "
        "version 5 the second.",
        "Keep rope_type only, with the scaling that the model was trained with.",
    ),
    Rule(
        "two-scalings",
        at.two_scalings,
        "rope_scaling and rope_parameters of config.json differ in {what}; transformers reads rope_scaling.",
        "Keep one of the two: rope_scaling for transformers 4, rope_parameters for version 5.",
    ),
    # What the tokenizer lets through, and what the model was trained on.
    Rule(
        "tokenizer-shorter",
        at.whole_checkpoint(lambda model: model.tokenizer_limit is not None and model.tokenizer_limit < model.length),
        "tokenizer_config.json has model_max_length {model.tokenizer_limit}, and the model reads {model.length} "
        "tokens: texts that are truncated to the tokenizer's length lose the rest.",
        "Set model_max_length to {model.length}.",
    ),
    Rule(
        "tokenizer-longer",
        at.tokenizer_longer,
        "tokenizer_config.json has model_max_length {model.tokenizer_limit}, which is {ratio:.3g} times the "
        "{longest} tokens that config.json states.",
        "Set model_max_length to {longest}, or add the scaling that makes the model read {model.tokenizer_limit} "
        "tokens.",
    ),
    Rule(
        "quantised",
        at.whole_checkpoint(
            lambda model: quantization_of(model.config), how=lambda model: quantization_of(model.config)
        ),
        "The weights are quantised ({how}): poscli reads their positions here, and does not run them.",
        "To evaluate it, take the model that was quantised, or save it dequantised.",
        note=True,
    ),
    Rule(
        "length-implausible",
        at.whole_checkpoint(lambda model: model.length > at.LONGEST_TRAINED),
        f"config.json states a length of {{model.length}} tokens, and no model is known to be trained on more than "
        f"{at.LONGEST_TRAINED}: it says nothing of where the model ends.",
        "Write the length of the training windows.",
    ),
    # What single model types do with attention in transformers, whatever config.json says.
    Rule(
        "scores-scaled-by-eager-attention-only",
        at.scores_scaled_by_eager_only,
        "config.json has {key} {value!r}, which the attention that {model.stock.name} takes by default does not read; "
        "its eager attention and version 5.4 do.",
        "Load the model with attn_implementation='eager', or install transformers 5.4.",
        read_by=lambda model: model.model_type == "gpt2" and model.stock.before(5, 4),
    ),
    Rule(
        "attention-of-mpt-left-out",
        at.left_out_by_mpt,
        "attn_config has {key} true, and transformers' model of type mpt {lost}.",
        "Run the checkpoint with the code that it was trained with.",
        read_by=types("mpt"),
    ),
    Rule(
        "alibi-all-the-same",
        at.whole_checkpoint(lambda model: model.attn_config.get("alibi") is False),
        "attn_config has alibi false, and transformers adds ALiBi to every model of type mpt.",
        "Run the checkpoint with the code that it was trained with; its positions are not those of transformers.",
        read_by=types("mpt"),
    ),
    Rule(
        "alibi-slopes-unread",
        at.whole_checkpoint(lambda model: model.attn_config.get("alibi_bias_max", at.MPT_BIAS) != at.MPT_BIAS),
        "attn_config has alibi_bias_max {model.attn_config[alibi_bias_max]!r}, and transformers computes the slopes of "
        f"ALiBi with {at.MPT_BIAS}.",
        "Run the checkpoint with the code that it was trained with; its slopes are not those of transformers.",
        read_by=types("mpt"),
    ),
    Rule(
        "alibi-ends-at-length",
        at.whole_checkpoint(anyone),
        "transformers reads no more than max_seq_len, {model.length} tokens, with a model of type mpt, though ALiBi "
        "has no end.",
        "Set max_seq_len to the length of your texts; no weight depends on it.",
        read_by=types("mpt"),
        note=True,
    ),
    Rule(
        "alibi-in-bfloat16",  # slope times position: bfloat16 holds 8 digits of a binary number
        at.whole_checkpoint(
            lambda model: model.config.get("alibi") and model.length > at.EXACT_IN_BFLOAT16,
            step=lambda model: 2 ** ((model.length - 1).bit_length() - 8),
        ),
        "transformers computes the ALiBi of models of type falcon in bfloat16, where positions from "
        f"{at.EXACT_IN_BFLOAT16} on are rounded: at {{model.length}} to multiples of {{step}}.",
        "Nothing, if the model was trained so; distances are as coarse as that in long texts.",
        read_by=types("falcon"),
        note=True,
    ),
    Rule(
        "alibi-twice-in-eager-attention",
        at.whole_checkpoint(lambda model: model.config.get("alibi")),
        "The eager attention of transformers, 4.57 to 5.23 at least, adds the ALiBi of models of type falcon twice; "
        "the default (sdpa) adds it once.",
        "Keep the default, and do not ask for output_attentions, which takes the other.",
        read_by=types("falcon"),
        note=True,
    ),
    # The installed transformers computes other positions than config.json states.
    Rule(
        "refused",
        at.whole_checkpoint(lambda model: model.stock.refusal),
        "{model.stock.name} makes no model of this config.json: {model.stock.refusal}.",
        "Mend what it names, or install the version that wrote the file: pip install 'transformers=={model.writer}'.",
    ),
    Rule(
        "rope-parameters-unread",
        at.whole_checkpoint(lambda model: model.config.get("rope_parameters") and at.rotations_read_otherwise(model)),
        "config.json has theta and scaling in rope_parameters, a key of transformers 5, and {model.stock.name} does "
        "not read it.",
        "Install transformers 5, or write rope_theta and rope_scaling beside it, as version 4 reads them.",
        read_by=version_4,
    ),
    Rule(
        "theta-unread",
        at.theta_unread,
        "rope_scaling has rope_theta {scaling.theta:g}, which {model.stock.name} does not read there: it takes {read}.",
        "Write rope_theta {scaling.theta:g} at the top of config.json.",
        read_by=version_4,
    ),
    Rule(
        "two-thetas",
        at.two_thetas,
        "config.json has rope_theta {top:g} and, in {scaling.where}, rope_theta {scaling.theta:g}: transformers 4 "
        "takes the first, version 5 the second.",
        "Keep the theta that the model was trained with.",
    ),
    Rule(
        "original-misplaced",
        at.original_misplaced,
        "{there}, which {model.stock.name} reads only {read} for this scaling.",
        "{fix}",
        read_by=version_4,
    ),
    Rule(
        "rotations-read-otherwise",
        at.rotations_read_otherwise,
        "{model.stock.name} reads the rotations of layers {layers} otherwise: {difference}.",
        "Mend the key that another fault names; if there is none, report it with this config.json.",
    ),
    Rule(
        "windows-read-otherwise",
        at.windows_read_otherwise,
        "config.json states {stated} for layers {layers}, and {model.stock.name} gives them {read}.",
        "Compare layer_types, sliding_window and use_sliding_window with those of the model it was made from.",
    ),
    Rule(
        "layers-read-otherwise",
        at.whole_checkpoint(
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
        at.scalings(*at.NEED_FACTOR, where=lambda scaling: scaling.factor == 1),
        "{scaling.where} has the scaling {scaling.kind} with factor 1, which changes nothing.",
        "Remove {scaling.where}, or give the factor by which texts are to be longer.",
    ),
    Rule(
        "longrope-without-effect",
        at.longrope_without_effect,
        "short_factor and long_factor of {scaling.where} {lists}.",
        "Take both lists from the config.json of the model that was trained with them.",
    ),
    Rule(
        "attention-factor-cancelled",
        at.attention_factor_cancelled,
        "{scaling.where} has {keys}, which cancels YaRN's factor on cos and sin.",
        "Remove it, so that the factor is 0.1 ln(factor) + 1, unless the model was trained without it.",
    ),
    Rule(
        "mscale-alone",
        at.mscale_alone,
        "{scaling.where} has {alone} alone, which transformers reads only together with {other}.",
        "Give both, or attention_factor, or neither.",
    ),
    Rule(
        "original-missing",
        at.scalings("yarn", "llama3", *at.LONGROPE, where=lambda scaling: scaling.original is None),
        f"{{scaling.where}} has the scaling {{scaling.kind}} without {ORIGINAL}: transformers takes the stated length, "
        "{model.length}, for the length before the scaling.",
        f"Write {ORIGINAL} with the length that the model was trained on before the scaling.",
    ),
    Rule(
        "factor-contradicts-length",
        at.scalings("yarn", *at.LONGROPE, where=lambda scaling: scaling.contradicts_length),
        "{scaling.where} scales {scaling.original:g} tokens by {scaling.factor:g}, which makes {scaling.reach:g}, and "
        "config.json states a length of {model.length}.",
        "Set factor to {scaling.growth:g}, or the length to {scaling.reach:g}.",
    ),
    Rule(
        "length-raised-without-scaling",
        at.length_raised,
        f"config.json states {{model.length}} tokens and {ORIGINAL} {{original:g}}, and no scaling of rope.",
        "Add the scaling that the model was trained with, or set the length to {original:g}.",
    ),
    Rule(
        "dual-chunks-left-out",
        at.whole_checkpoint(at.windows_of_chunks, original=at.windows_of_chunks, key=lambda model: DUAL_CHUNKS),
        "{key} asks for attention in chunks, which transformers leaves out: beyond the {original} tokens of training "
        "distances are new, and {model.length} are stated.",
        "Give --length {original}, or read long inputs with vLLM.",
    ),
    Rule(
        "length-before-or-after-scaling",
        at.scalings("linear", where=lambda scaling: scaling.original is None and (scaling.factor or 1) > 1),
        "{scaling.where} divides positions by {scaling.factor:g}, and nothing says whether {model.length} tokens is "
        "the length before that or after it.",
        "Nothing, if it was trained on {model.length}; else give that length as --length.",
        read_by=lambda model: model.model_type != "gemma3_text",
        note=True,
    ),
    Rule(
        "length-not-raised",
        at.scalings("llama3", where=lambda scaling: scaling.original == scaling.length),
        f"{{scaling.where}} has {ORIGINAL} {{model.length}}, which is the stated length too, so that the scaling "
        "{scaling.kind} stretches a length nobody uses.",
        "Raise max_position_embeddings to the length after the scaling.",
    ),
    Rule(
        "length-not-raised",
        at.scalings(*at.LONGROPE, where=lambda scaling: scaling.original == scaling.length),
        f"{{scaling.where}} has {ORIGINAL} {{model.length}}, which is the stated length too, so that the scaling "
        "{scaling.kind} never leaves its short factors.",
        "Raise max_position_embeddings to the length after the scaling.",
    ),
    Rule(
        "length-not-raised-for-yarn",  # as Qwen's pages ask for it; programs that read the length alone stop early
        at.scalings(
            "yarn", where=lambda scaling: scaling.original and scaling.original <= scaling.length < scaling.reach
        ),
        "{scaling.where} scales {scaling.original:g} tokens by {scaling.factor:g}, and max_position_embeddings is "
        "{model.length}.",
        "Nothing for transformers; set it to {scaling.reach:g} for programs that stop at it.",
        note=True,
    ),
    Rule(
        "dynamic-keeps-state",  # until a text comes that is shorter than the trained length
        at.scalings("dynamic"),
        "{scaling.where} has the scaling dynamic, which changes nothing up to {model.length} tokens; beyond, "
        "transformers keeps the frequencies of the longest text so far, so that a result depends on what was read "
        "before.",
        "Read fewer than {model.length} tokens before each long text, or use a scaling of fixed factor.",
    ),
    Rule(
        "local-layers-scaled",
        at.scalings(where=lambda scaling: scaling.layer_type == LOCAL and scaling.kind != "default"),
        "{scaling.where} has the scaling {scaling.kind} on the layers with a window, which see no more tokens than "
        "before.",
        "Set rope_type of {scaling.where} to default; only the other layers are scaled.",
    ),
    Rule(
        "parameters-of-no-layer",
        at.scalings(where=lambda scaling: scaling.layer_type),
        "config.json has {scaling.where}, which nothing reads: models of type {model.model_type} have one set of "
        "parameters for all layers.",
        "Move the parameters to where the layers are, or remove them.",
        read_by=lambda model: model.model_type not in at.NESTED,
    ),
    Rule(
        "parameters-of-no-layer",
        lambda model: [
            {"scaling": each} for each in model.scalings if each.layer_type and each.layer_type not in model.layer_types
        ],
        "config.json has {scaling.where}, which nothing reads: no layer is of type {scaling.layer_type}.",
        "Move the parameters to where the layers are, or remove them.",
        read_by=lambda model: model.model_type in at.NESTED and model.layer_types,
    ),
    Rule(
        "scaling-without-rotations",
        at.scalings(where=lambda scaling: scaling.kind != "default"),
        "{scaling.where} has the scaling {scaling.kind}, and no layer of this model has rotations.",
        "Remove {scaling.where}: it changes nothing.",
        read_by=lambda model: not model.rotates,
    ),
    # Windows, and lists with an entry for each layer.
    Rule(
        "window-never-cuts",
        at.windows_that_never_cut,
        "The window of layers {layers} has {window} tokens and the longest text {model.length}, so that it never cuts "
        "anything off.",
        "Nothing; the layers see the whole text.",
        note=True,
    ),
    Rule(
        "window-switched-off",
        at.window_switched_off,
        "config.json has sliding_window {window}, which is switched off: use_sliding_window is {model.window_switch!r} "
        "and max_window_layers {first!r}.",
        "Nothing, if the model was trained so; set use_sliding_window to true if not.",
        read_by=types(*at.WITH_WINDOW),
        note=True,
    ),
    Rule(
        "window-missing",
        at.whole_checkpoint(
            lambda model: LOCAL in model.layer_types and not model.windowed,
            window=lambda model: model.config.get("sliding_window"),
            count=lambda model: model.layer_types.count(LOCAL),
        ),
        f"layer_types lists {{count}} layers of type {LOCAL}, and there is no window: sliding_window is {{window!r}} "
        "and use_sliding_window {model.window_switch!r}.",
        "Set both, or list full_attention for all layers.",
        read_by=types(*at.WITH_LAYER_TYPES),
    ),
    Rule(
        "layer-list-too-long",
        at.layer_list_too_long,
        "no_rope_layers has {entries} entries for {layers} layers; the last {unread} are not read.",
        "Make it as long as the model, and check that its entries are those of the layers that are left.",
    ),
)
