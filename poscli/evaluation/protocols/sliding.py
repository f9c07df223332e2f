"""A window that moves over the text, with only its last tokens scored."""

from poscli.evaluation.protocol import PROTOCOLS, Documents, EvaluationSettings, Protocol, largest_divisor
from poscli.tasks import Spans

# A window is at least so many times as long as what is scored at its end. If it were only twice as long, as it is with
# a stride of L/2, tokens scored with the context cut to L would see 3/4 L on average, and those of a long window under
# an attention mask of width L all of it: a gain in which no context beyond L takes part. Windows of L tokens, with
# which all others are compared, score even less: on texts where doubling the context wins 0.11 bits, the 6 % of L that
# an eighth costs them would still be a gain of 0.01.
PIECES_PER_WINDOW, PIECES_PER_SHORTEST = 8, 32


@PROTOCOLS.register("sliding")
class Sliding(Protocol):
    """Windows of l tokens that move by --stride, at most by l/8 (L/32 where l = L); the last tokens of each count.

    Windows of all lengths end at the same tokens, so that all lengths score the same text.
    """

    same_text = True  # an episode is as long as its window, which cannot move
    explained = (
        "**sliding**: windows of l tokens move by the stride, at most l/8 (L/32 for l = L), and only the last stride "
        "tokens of each are scored, so that every scored token has nearly full context. All lengths score the same "
        "tokens."
    )
    convention = "tables 13 to 15 of ALiBi (arXiv:2108.12409), and perplexity scripts with a short stride"

    def spans(self, documents: Documents, length: int) -> Spans:
        ends, settings = documents.ends(), documents.settings
        for window in settings.lengths:
            first = ends - (0, settings.stride - self.piece(settings, window))  # the windows that score the first piece
            ends = ends[documents.text.inside(first, window, 0)]
        return ends[: settings.tokens // settings.stride]

    def scored(self, settings: EvaluationSettings, length: int) -> int:
        return settings.stride

    def piece(self, settings: EvaluationSettings, window: int) -> int:
        # The largest part of the stride that one window may score, so that all of it has nearly the whole window.
        parts = PIECES_PER_WINDOW if window > settings.train_length else PIECES_PER_SHORTEST
        return largest_divisor(settings.stride, window // parts)
