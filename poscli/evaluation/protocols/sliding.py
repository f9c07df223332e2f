"""A window that moves over the text, with only its last tokens scored."""

from poscli.evaluation.protocol import PROTOCOLS, Documents, EvaluationSettings, Protocol, largest_divisor
from poscli.tasks import Spans

# A window is at least so many times as long as what is scored at its end. If it were only twice as long, as it is with
# a stride of L/2, tokens scored with the context cut to L would see 3/4 L on average, and those of a long window under
# an attention mask of width L all of it: a gain in which no context beyond L takes part.
PIECES_PER_WINDOW = 8


@PROTOCOLS.register("sliding")
class Sliding(Protocol):
    """Windows of l tokens with a stride of S or, if that is less, l/8; the last tokens of each count.

    Windows of all lengths end at the same tokens, so that all lengths score the same text.
    """

    explained = (
        "**sliding**: windows of l tokens move by the stride, at most l/8, and only the last stride tokens of each are "
        "scored, so that every scored token has nearly full context. All lengths score the same tokens."
    )
    convention = "tables 13 to 15 of ALiBi (arXiv:2108.12409), and perplexity scripts with a short stride"

    def spans(self, documents: Documents, length: int) -> Spans:
        return documents.ends()[: documents.settings.tokens // documents.settings.stride]

    def scored(self, settings: EvaluationSettings, length: int) -> int:
        return settings.stride

    def piece(self, settings: EvaluationSettings, window: int) -> int:
        return largest_divisor(settings.stride, window // PIECES_PER_WINDOW)
