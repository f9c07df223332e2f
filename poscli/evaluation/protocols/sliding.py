"""A window that moves over the text, with only its last tokens scored."""

from poscli.evaluation.protocol import PROTOCOLS, Documents, EvaluationSettings, Protocol
from poscli.tasks import Spans


@PROTOCOLS.register("sliding")
class Sliding(Protocol):
    """Windows of l tokens with a stride of S; the last S tokens of each count.

    Windows of all lengths end at the same tokens, so that all lengths score the same text.
    """

    explained = (
        "**sliding**: windows of l tokens move by the stride, and only the last stride tokens of each are scored, so "
        "that every scored token has nearly full context. All lengths score the same tokens."
    )
    convention = "tables 13 to 15 of ALiBi (arXiv:2108.12409), and perplexity scripts with a short stride"

    def spans(self, documents: Documents, length: int) -> Spans:
        return documents.ends(documents.longest)[: documents.settings.tokens // documents.settings.stride]

    def scored(self, settings: EvaluationSettings, length: int) -> int:
        return settings.stride
