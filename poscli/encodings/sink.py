"""Attention sinks: the first tokens stay visible under a window (Xiao et al., 2023)."""

from poscli.encodings import Encoding, Length, Shape, at_least, register


@register("sink", paper="arXiv:2309.17453", family="wrapper")
class Sink(Encoding):
    """Under a window of w tokens, s_ij = -inf only where i - j >= w and j >= count: the first `count` keys stay.

    `rope+sink(4)+window(128)` sees the last 128 tokens and the first 4, the attention sinks of StreamingLLM. Without a
    window it changes nothing. Every token keeps its position in the text, so a sink may be any distance away; the paper
    renumbers positions within its cache instead.
    """

    shared = True
    wraps = True
    inert_alone = True  # without a window, every query sees the first tokens anyway

    def __init__(self, shape: Shape, *, count: Length[int] = 4) -> None:
        super().__init__(shape)
        at_least(1, count=count)
        self.count = count

    @property
    def sinks(self) -> int:
        return self.count
