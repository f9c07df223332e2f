"""A sliding window, scored on the same tokens at every length."""

from poscli.evaluation.protocol import PROTOCOLS, Documents, EvaluationSettings, Protocol
from poscli.tasks import Spans


@PROTOCOLS.register("fixed")
class Fixed(Protocol):
    """Like `sliding`, but only tokens count that lie beyond the longest length in their document."""

    same_text = True
    explained = (
        "**fixed**: like sliding, but every length is scored on the same tokens, which lie at least the longest length "
        "into their documents. Only under this protocol can lengths be compared token by token, and the "
        "report takes the gain from it."
    )

    def spans(self, documents: Documents, length: int) -> Spans:
        return documents.shared[: documents.settings.tokens // documents.settings.stride]

    def scored(self, settings: EvaluationSettings, length: int) -> int:
        return settings.stride
