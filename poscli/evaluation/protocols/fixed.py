"""A sliding window, scored on the same tokens at every length."""

from poscli.evaluation.protocol import PROTOCOLS, Documents
from poscli.evaluation.protocols.sliding import Sliding
from poscli.tasks import Spans


@PROTOCOLS.register("fixed")
class Fixed(Sliding):
    """As `sliding`, but every scored token has the longest length or more of its document before it."""

    explained = (
        "**fixed**: like sliding, but every scored token lies the longest length or more into its document, so that no "
        "window of any length begins where a document does. The report takes the gain from it."
    )
    convention = "no paper that we know of; a comparison of lengths needs it"

    def spans(self, documents: Documents, length: int) -> Spans:
        margin = documents.settings.stride
        return documents.ends(margin)[: documents.settings.tokens // documents.settings.stride]
