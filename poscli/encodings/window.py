"""A sliding attention window (Beltagy et al., 2020): the baseline that every claim of extrapolation must beat."""

from poscli.encodings import Encoding, Length, Shape, at_least, register


@register("window", paper="arXiv:2004.05150", family="bias")
class Window(Encoding):
    """s_ij += 0 for i - j < width and -inf beyond: a query sees the last `width` tokens, including itself.

    `width` is the training length L unless given. Joined with another encoding (`rope+window(128)`), it limits what
    queries see there. The window counts tokens, whatever their positions are.
    """

    shared = True
    wraps = True

    def __init__(self, shape: Shape, *, width: Length[int] | None = None) -> None:
        super().__init__(shape)
        self.width = shape.length if width is None else width
        at_least(1, width=self.width)

    @property
    def reach(self) -> int:
        return self.width
