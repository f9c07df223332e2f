"""Failures of known cause, to add to an encoding that holds: `alibi(most=4)+suites/planted.py:Distance`.

Each changes nothing in windows of the training length L, and one thing beyond it. Its `cause` names that in the words
of `poscli extrapolate --why`. suites/planted.toml trains them; benchmarks/planted.py says how often --why is right.

B batch, T queries, S keys, H heads, W model width, n distances.
"""

import torch
from torch import Tensor

from poscli.encodings import Encoding, Shape


class Distance(Encoding):
    """s_ij += `rate` (i - j) where i - j >= L: keys at distances that training never shows draw the attention."""

    cause = "distance"

    def __init__(self, shape: Shape, *, rate: float = 0.5) -> None:
        super().__init__(shape)
        self.rate = rate

    def distance_bias(self, d: Tensor) -> Tensor:
        return (self.rate * d * (d >= self.shape.length))[None]


class Position(Encoding):
    """x_i += `size` cos(i w) where i >= L, one frequency w for each channel: a token stands where none stood before."""

    cause = "position"
    relative = False

    def __init__(self, shape: Shape, *, size: float = 2.0) -> None:
        super().__init__(shape)
        self.size = size

    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        w = torch.linspace(0, torch.pi, self.shape.width, device=pos.device)
        beyond = self.size * torch.cos(pos[:, None] * w) * (pos >= self.shape.length)[:, None]
        return x_BTW + beyond.to(x_BTW.dtype)


class Keys(Encoding):
    """s_ij *= (L / n)^`power` for a query that sees n > L keys: the more keys, the more even its attention."""

    cause = "number of keys"

    def __init__(self, shape: Shape, *, power: float = 1.0) -> None:
        super().__init__(shape)
        self.power = power

    def temperature(self, n: Tensor) -> Tensor:
        return (self.shape.length / n.double()).clamp(max=1)[None] ** self.power


class SinkLost(Encoding):
    """s_i0 = log(sum_j exp s_ij) + `sink`, and s_ij = -inf where i - j >= L: most attention goes to a token soon lost.

    The first token has e^sink / (1 + e^sink) of the attention, which falls to the others once it is out of reach.
    """

    cause = "loss of the first tokens"

    def __init__(self, shape: Shape, *, sink: float = 2.0) -> None:
        super().__init__(shape)
        self.sink = sink

    @property
    def reach(self) -> int:
        return self.shape.length

    def weights(self, s_BHTS: Tensor) -> Tensor:
        first = (torch.arange(s_BHTS.shape[-1], device=s_BHTS.device) == 0) & s_BHTS.isfinite()
        return torch.softmax(torch.where(first, s_BHTS.logsumexp(-1, keepdim=True) + self.sink, s_BHTS), dim=-1)
