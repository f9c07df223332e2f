"""Position interpolation, for any encoding (Chen et al., 2023)."""

from torch import Tensor

from poscli.encodings import Encoding, Shape, at_least, register


@register("interpolated", paper="arXiv:2306.15595", family="wrapper")
class Interpolated(Encoding):
    """k' = k / factor: the encodings joined with it (`sinusoidal+interpolated(4)`) see positions closer together.

    If `factor` is not given, it is n / L for an input of n tokens longer than the training length L, and 1 for shorter
    ones. Positions then stay below L, and all of them change with the length of the input.
    """

    shared = True
    wraps = True

    def __init__(self, shape: Shape, *, factor: float | None = None) -> None:
        super().__init__(shape)
        at_least(1, factor=factor)
        self.factor = factor
        self.rescales = factor is None

    def positions(self, index: Tensor) -> Tensor:
        factor = max(1.0, (int(index[-1]) + 1) / self.shape.length) if self.factor is None else self.factor
        return index if factor == 1 else index.double() / factor
