"""A window that moves over the text, with only its last tokens scored."""

from poscli.evaluation.protocol import PROTOCOLS, Documents, EvaluationSettings, Protocol
from poscli.tasks import Spans


@PROTOCOLS.register("sliding")
class Sliding(Protocol):
    """Windows of l tokens with a stride of S; the last S tokens of each count."""

    explained = (
        "**sliding**: windows of l tokens move by the stride, and only the last stride tokens of each are scored, so "
        "that every scored token has nearly full context."
    )

    def spans(self, documents: Documents, length: int) -> Spans:
        anchors = documents.anchors
        return anchors[anchors[:, 1] >= length][: documents.settings.tokens // documents.settings.stride]

    def scored(self, settings: EvaluationSettings, length: int) -> int:
        return settings.stride
