"""Episodes that end with an answer, of which the last tokens are scored."""

from poscli.evaluation.protocol import PROTOCOLS, Documents, EvaluationSettings, Protocol
from poscli.tasks import Spans


@PROTOCOLS.register("answer")
class Answer(Protocol):
    """One window per episode, as long as the episode; the last L/2 tokens count, equally many at every length."""

    same_text = False
    explained = (
        "**answer**: one episode per window, which ends with the answer. The last L/2 tokens of the answer are scored, "
        "equally many at every length; L is the training length."
    )

    convention = "papers on length generalization, which report the accuracy of answers"

    def spans(self, documents: Documents, length: int) -> Spans:
        settings = documents.settings
        return documents.text.tiles(length)[: max(1, settings.tokens // self.scored(settings, length))]

    def scored(self, settings: EvaluationSettings, length: int) -> int:
        return settings.train_length // 2
