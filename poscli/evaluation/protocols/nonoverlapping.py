"""Windows that do not overlap, with every token scored."""

from poscli.evaluation.protocol import PROTOCOLS, Documents, EvaluationSettings, Protocol, in_turns
from poscli.tasks import Spans

FEWEST_SEGMENTS = 5  # read at every length, even if they hold more tokens than the budget


@PROTOCOLS.register("nonoverlapping")
class Nonoverlapping(Protocol):
    """Windows of l tokens with a stride of l; all l tokens count.

    Segments of the longest length are drawn, and each is cut into windows of every length, the last of which ends where
    the segment does. So all lengths score the same text, but for a remainder at the start of a segment where a length
    does not divide the longest one: on grids, at its top and its left, where rows or columns do not divide.
    """

    explained = (
        "**nonoverlapping**: segments of the longest length are cut into windows of l tokens, and every token is "
        "scored. All lengths score the same text. It favours long windows, because half of the tokens in a short "
        "window have little context."
    )
    convention = (
        "most papers, such as table 2 of ALiBi (arXiv:2108.12409), and perplexity scripts whose stride is the window"
    )
    compared = False

    def spans(self, documents: Documents, length: int) -> Spans:
        longest = documents.longest
        segments = in_turns(documents.text.tiles(longest), seed=1)
        chosen = segments[: max(FEWEST_SEGMENTS, documents.settings.tokens // longest)]
        return documents.text.parts(chosen, longest, length)

    def scored(self, settings: EvaluationSettings, length: int) -> int:
        return length
