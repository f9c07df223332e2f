"""XLNet's relative position encoding (Yang et al., 2019)."""

from poscli.encodings import Encoding, register
from poscli.encodings.transformer_xl import TransformerXL


@register("xlnet", paper="arXiv:1906.08237", family="relative")
class XLNet(TransformerXL):
    """s_ij = ((q_i + u) . k_j + (q_i + v) . W_R R[i-j]) / sqrt(D), where every layer has a u and a v of its own.

    XLNet's term for segments, (q_i + b) . s, is left out, because the softmax cancels it within one segment. XLNet's
    training on permutations is left out too.
    """

    facts = ("a layer of xlnet is one of transformer-xl; only there do all layers share u and v",)

    def tie(self, first: Encoding) -> None:
        """Share nothing."""
