"""No position encoding (NoPE)."""

from poscli.encodings import Encoding, register


@register("none", paper="arXiv:2203.16634, arXiv:2305.19466", family="none")
class NoPE(Encoding):
    """No position encoding: the causal mask alone lets a decoder learn about positions."""

    after = ("*",)  # it can replace any encoding that has learned no weights
