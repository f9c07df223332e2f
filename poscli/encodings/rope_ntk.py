"""NTK-aware scaled rope (bloc97, 2023)."""

from torch import Tensor

from poscli.encodings import register
from poscli.encodings.rope_linear import RoPELinear


@register("rope-ntk", paper="bloc97, NTK-aware scaled RoPE, 2023", family="rotary")
class RoPENTK(RoPELinear):
    """Rope with base' = base s^(D/(D-2)), s = L'/L: the fastest pair turns as in training, the slowest s times slower.

    Neighbouring tokens stay as far apart as in training, and the slowest pair stays within the angles of training.
    `factor` is s; if it is not given, s follows the current length. D is the number of channels that are rotated.
    """

    steady_keys = True

    def theta(self, pos: Tensor) -> Tensor:
        # a single pair (width 2) has theta 1 for any base, so the exponent does not matter
        base = self.base * self.s(pos) ** (self.width / max(self.width - 2, 1))
        return base ** -self.exponents(pos.device)
