"""Episodes that end with an answer, of which the last tokens are scored."""

import numpy as np

from poscli.evaluation.protocol import PROTOCOLS, Documents, EvaluationSettings, Protocol
from poscli.tasks import Spans


@PROTOCOLS.register("answer")
class Answer(Protocol):
    """One window per episode, as long as the episode; of its answer, the part in the last L/2 tokens counts."""

    same_text = False
    explained = (
        "**answer**: one episode per window, which ends with the answer. Those of its tokens that lie in the last "
        "L/2 tokens are scored; L is the training length."
    )

    convention = "papers on length generalization, which report the accuracy of answers"

    def spans(self, documents: Documents, length: int) -> Spans:
        """As many episodes as have no more tokens in their answers than are to be scored, and at least one."""
        settings, text = documents.settings, documents.text
        every = text.tiles(length)
        answers = text.counts(every, self.scored(settings, length)).sum(axis=1)
        return every[: max(1, np.searchsorted(np.cumsum(answers), settings.tokens, side="right"))]

    def scored(self, settings: EvaluationSettings, length: int) -> int:
        return settings.train_length // 2
