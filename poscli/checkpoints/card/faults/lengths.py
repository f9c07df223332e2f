"""Faults of lengths: what the tokenizer lets through, and what the model was trained on."""

from __future__ import annotations

from poscli.checkpoints.card.faults.fault import Said, Subject, fault

FAR_ABOVE = 4  # times the longest text; published tokenizers have up to 4 times the length before a scaling


@fault("tokenizer-shorter")
def tokenizer_shorter(subject: Subject) -> Said:
    """The tokenizer cuts texts off that the model can read."""
    limit = subject.tokenizer_limit
    if limit is not None and limit < subject.length:
        yield (
            f"tokenizer_config.json has model_max_length {limit}, and the model reads {subject.length} tokens: texts "
            "that are truncated to the tokenizer's length lose the rest.",
            f"Set model_max_length to {subject.length}.",
        )


@fault("tokenizer-longer")
def tokenizer_longer(subject: Subject) -> Said:
    """The tokenizer lets texts through that are far longer than the model can read."""
    limit = subject.tokenizer_limit
    longest = max(subject.length, *(int(layer.factor * layer.original) for layer in subject.layers))
    if limit is not None and limit > FAR_ABOVE * longest:
        yield (
            f"tokenizer_config.json has model_max_length {limit}, which is {limit / longest:.3g} times the {longest} "
            "tokens that config.json states.",
            f"Set model_max_length to {longest}, or add the scaling that makes the model read {limit} tokens.",
        )
