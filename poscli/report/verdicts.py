"""The verdict on an encoding at the longest length: its names, what they mean, and what decides.

It is the context gain where a task is judged by its loss, and the accuracy where a task has right answers.
"""

from __future__ import annotations

import math

from poscli.statistics import FEWEST_SEEDS

USES_CONTEXT, MAY_USE_CONTEXT, HOLDS = "uses context", "may use context", "holds"
DEGRADES, BREAKS = "degrades", "breaks"
UNCLEAR, NOT_TESTED, NOT_TRAINED = "unclear", "not tested", "not trained"
UNDERTRAINED = "undertrained"
SOLVED, FADES, UNSOLVED = "solved", "fades", "unsolved"  # of tasks with right answers
PROVEN_SAFE, PROVEN_HARMFUL, UNDECIDED = "proven safe", "proven harmful", "undecided"  # of single lengths
SMALL_HARM, OPEN_HARM = "small harm", "harm of open size"  # what holds, or is unclear, and surely harms

# With many tokens even a harm of 0.0003 bits per byte is significant, though it does not matter. An encoding therefore
# holds if its interval excludes a harm of HARM_BPB (0.7 % in perplexity per byte), degrades if the whole interval lies
# at that harm or more, and then breaks if the mean harm reaches BROKEN_BPB (23 %).
HARM_BPB, BROKEN_BPB = 0.01, 0.3
# A smaller gain is of no consequence either. The context cut to L is up to L/32 shorter than L, which alone is worth
# 0.001 bits, or 0.0025 on texts where doubling the context wins 0.11.
GAIN_BPB = 0.005
# An encoding of a larger perplexity at L, relative to the best one on the same tokens, is undertrained. Where published
# tables compare encodings that were trained alike and from scratch, at the length that they were trained on, the worst
# is at 1.19 times the best (sinusoidal, 22.77 against 19.12; CABLE, arXiv:2503.08067, WikiText-103, medium); elsewhere
# sinusoidal, t5 and bipe-rope are at 1.15 or less, and "none" (no encoding) at 1.12 or less. The exception is KERPLE's
# sinusoidal (arXiv:2205.09921, table 3), at 1.18, 1.39 and 7.1 times the best: it fails already at L. Tables of models
# that were not trained alike (LM-Infinite, Wang et al.'s others), of trained models that are changed (PoSE, Wang et
# al.'s temperatures and head scales), and of models of several sizes on other text than that of the training (PoPE's
# figure 2, read by eye) say nothing about it.
UNDERTRAINED_RATIO, PUBLISHED_RATIO = 1.25, 1.19
SOLVED_SHARE = 0.9  # of the answers, from which a task counts as solved at a length
SOLVED_TEXT = f"{100 * SOLVED_SHARE:.0f} %"
MEANING = {
    USES_CONTEXT: f"better than the same model with its context cut to L by {GAIN_BPB} bits per byte or more, and "
    "surely better, over seeds and documents: it reads beyond L and gains from it",
    MAY_USE_CONTEXT: f"better than with its context cut to L by {GAIN_BPB} bits per byte or more, and surely better on "
    f"these documents; there are fewer than {FEWEST_SEEDS} seeds, and others may differ",
    HOLDS: f"the longer context costs less than {HARM_BPB} bits per byte, if anything, compared with the same model "
    "with its context cut to L; a model that ignores everything before the last L tokens also gets this verdict",
    DEGRADES: f"the longer context surely costs {HARM_BPB} bits per byte or more, compared with the same model with "
    "its context cut to L",
    BREAKS: f"the longer context surely harms, and costs {BROKEN_BPB} bits per byte or more on average: it is of no "
    "use at this length",
    UNCLEAR: f"the interval of the gain includes a harm of {HARM_BPB} bits per byte and also smaller ones, so that it "
    "is open whether the harm matters; or there is no interval, because too few documents are long enough",
    SOLVED: f"at least {SOLVED_TEXT} of the answers are right at every length",
    FADES: f"at least {SOLVED_TEXT} of the answers are right at the training length, but not at every longer one",
    UNSOLVED: f"less than {SOLVED_TEXT} of the answers are right already at the training length, so that longer "
    "windows say little about the encoding",
    NOT_TRAINED: "at its training length it predicts no better than guessing tokens by how frequent they are in the "
    "training text, so that it has nothing to extrapolate",
    UNDERTRAINED: f"at its training length its perplexity is surely more than {UNDERTRAINED_RATIO} times that of the "
    f"best encoding (at most {PUBLISHED_RATIO} times in all published comparisons but one): it was trained too little "
    "for its extrapolation to be ranked",
    NOT_TESTED: "not evaluated at the longest length, or only at the training length, or without a gain",
}


def meanings(bits: str) -> dict[str, str]:
    """What each verdict means, where `bits` is what the losses are in."""
    return {word: meaning.replace("bits per byte", bits) for word, meaning in MEANING.items()}


def is_failure(verdict: str) -> bool:
    """Whether a verdict is the status of a failed run, such as `oom`."""
    return verdict not in MEANING


def can_win(verdict: str) -> bool:
    """Whether an encoding with this verdict may be called the best: it did not fail, and it learned enough."""
    return verdict not in (NOT_TRAINED, UNDERTRAINED) and not is_failure(verdict)


def only_guesses(nll: float, gain_low: float, guess: float) -> bool:
    """Whether a loss is not surely below that of a guess, in nats per token.

    `gain_low` is the lower end of the interval of the guess minus the loss, on the same tokens; where it is not
    defined (NaN), the difference itself decides.
    """
    return (guess - nll if math.isnan(gain_low) else gain_low) <= 0


def verdict(gain: float, gain_low: float, gain_high: float, *, seeds: int = FEWEST_SEEDS) -> str:
    """The verdict on a context gain and its 95 % interval, in bits per byte, over this number of seeds."""
    if math.isnan(gain_low) or math.isnan(gain_high):
        return UNCLEAR
    if gain_low > 0 and gain >= GAIN_BPB:
        return USES_CONTEXT if seeds >= FEWEST_SEEDS else MAY_USE_CONTEXT
    if gain_low > -HARM_BPB:
        return HOLDS
    if gain_high > -HARM_BPB:
        return UNCLEAR
    return DEGRADES if gain > -BROKEN_BPB else BREAKS


def surely_harms(gain_high: float) -> bool:
    """Whether the whole interval of a context gain, which ends at `gain_high`, lies on the side of harm.

    That is so also where the verdict is `holds`, because the harm is small, or `unclear`, because it may be.
    """
    return gain_high < 0


def effect(verdict: str, gain_high: float) -> str:
    """The verdict, or SMALL_HARM or OPEN_HARM for a verdict that does not tell a harm that is sure, however small."""
    if surely_harms(gain_high) and verdict in (HOLDS, UNCLEAR):
        return SMALL_HARM if verdict == HOLDS else OPEN_HARM
    return verdict


def task_verdict(effective: float, longest: float) -> str:
    """The verdict on the effective length of a task with right answers; both are multiples of L.

    >>> task_verdict(16, 16), task_verdict(2, 16), task_verdict(0, 16)
    ('solved', 'fades', 'unsolved')
    """
    if effective >= longest:
        return SOLVED
    return FADES if effective > 0 else UNSOLVED
