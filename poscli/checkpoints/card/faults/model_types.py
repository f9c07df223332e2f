"""What single model types do with positions in transformers, whatever config.json says."""

from __future__ import annotations

from poscli.checkpoints.card.faults.fault import Said, Subject, fault, note

MPT_BIAS = 8  # alibi_bias_max as transformers computes slopes
EXACT_IN_BFLOAT16 = 256  # the whole numbers up to here are exact in bfloat16


@fault("alibi-all-the-same")
def alibi_all_the_same(subject: Subject) -> Said:
    """MPT without ALiBi has it in transformers, which does not read the switch."""
    if subject.architecture.model_type == "mpt" and _attention(subject).get("alibi") is False:
        yield (
            "attn_config has alibi false, and transformers adds ALiBi to every model of type mpt.",
            "Run the checkpoint with the code that it was trained with; its positions are not those of transformers.",
        )


@fault("alibi-slopes-unread")
def alibi_slopes_unread(subject: Subject) -> Said:
    """MPT's smallest slope is always that of alibi_bias_max 8 in transformers."""
    most = _attention(subject).get("alibi_bias_max", MPT_BIAS)
    if subject.architecture.model_type == "mpt" and most != MPT_BIAS:
        yield (
            f"attn_config has alibi_bias_max {most!r}, and transformers computes the slopes of ALiBi with {MPT_BIAS}.",
            "Run the checkpoint with the code that it was trained with; its slopes are not those of transformers.",
        )


@note("alibi-ends-at-length")
def alibi_ends_at_length(subject: Subject) -> Said:
    """MPT in transformers has a table of biases that ends at max_seq_len."""
    if subject.architecture.model_type == "mpt":
        yield (
            f"transformers reads no more than max_seq_len, {subject.length} tokens, with a model of type mpt, though "
            "ALiBi has no end.",
            "Set max_seq_len to the length of your texts; no weight depends on it.",
        )


@note("alibi-in-bfloat16")
def alibi_in_bfloat16(subject: Subject) -> Said:
    """Falcon in transformers computes slope times position in bfloat16, which holds 8 digits of a binary number."""
    if subject.architecture.model_type == "falcon" and subject.config.get("alibi"):
        yield (
            "transformers computes the ALiBi of models of type falcon in bfloat16, where positions from "
            f"{EXACT_IN_BFLOAT16} on are rounded: at {subject.length} to multiples of {_step(subject.length)}.",
            "Nothing, if the model was trained so; distances are as coarse as that in long texts.",
        )


def _attention(subject: Subject) -> dict[str, object]:
    given = subject.config.get("attn_config")
    return given if isinstance(given, dict) else {}


def _step(position: int) -> int:
    """The distance between neighbouring numbers of bfloat16 at a whole number."""
    return max(1, 2 ** ((position - 1).bit_length() - 8))
