"""Windows that do not overlap, with every token scored."""

import numpy as np

from poscli.evaluation.protocol import PROTOCOLS, Documents, EvaluationSettings, Protocol, every
from poscli.tasks import Spans

FEWEST_WINDOWS = 4  # read at every length, even if they hold more tokens than the budget


@PROTOCOLS.register("nonoverlapping")
class Nonoverlapping(Protocol):
    """Windows of l tokens with a stride of l; all l tokens count."""

    explained = (
        "**nonoverlapping**: the text is cut into windows of l tokens and every token is scored. Most papers report "
        "this number. It favours long windows, because half of the tokens in a short window have little context."
    )
    compared = False

    def spans(self, documents: Documents, length: int) -> Spans:
        windows = every(documents.sizes, length)
        order = np.random.default_rng(1).permutation(len(windows))
        return windows[order][: max(FEWEST_WINDOWS, documents.settings.tokens // length)]

    def scored(self, settings: EvaluationSettings, length: int) -> int:
        return length
