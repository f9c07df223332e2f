"""Selective RoPE: rotations by angles that the tokens add up (Movahedi et al., 2025)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from poscli.encodings import Encoding, Shape, above, at_least, register


@register("selective-rope", paper="arXiv:2511.17388", family="content")
class SelectiveRoPE(Encoding):
    """q_i . R(phi_j - phi_i) k_j, phi_i = theta_m sum_{l<=i} omega(x_l): each token adds its angle to every pair.

    omega is a causal convolution over `tokens` tokens, per head and pair, of B A x_l / |x_l|, the norm taken per head,
    A and B of rank `rank`; theta_m = base^(-2m/D) is not learned. With `bias`, e^b is added to omega: b starts at 0,
    where the angles are those of rope and what the tokens add. As in the authors' code, which was read, with its
    defaults; the gates that it can multiply omega by are left out. Angles are summed in float64.
    """

    def __init__(
        self, shape: Shape, *, rank: int = 16, tokens: int = 4, base: float = 500000.0, bias: bool = False
    ) -> None:
        super().__init__(shape)
        at_least(1, rank=rank, tokens=tokens)
        above(1, base=base)
        if shape.head_width % 2:
            raise ValueError(f"rotations need an even number of channels per head, got {shape.head_width}")
        self.feature_width = pairs = shape.head_width // 2
        self.base = base
        self.down = nn.Linear(shape.width, rank, bias=False)
        self.up = nn.Linear(rank, shape.heads * pairs, bias=False)
        self.w = nn.Parameter(torch.empty(tokens, shape.heads, 1, pairs).uniform_(-1, 1) * tokens**-0.5)
        self.b = nn.Parameter(torch.zeros(shape.heads, 1, pairs)) if bias else None

    def features(self, x_BTW: Tensor) -> Tensor:
        x_BTHD = x_BTW.to(self.up.weight.dtype).unflatten(2, (self.shape.heads, -1))
        unit = x_BTHD * (x_BTHD.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
        y: Tensor = self.up(self.down(unit.flatten(2)))
        return y.unflatten(2, (self.shape.heads, -1)).transpose(1, 2)

    def phase(self, f_BHSF: Tensor) -> Tensor:
        before, count = len(self.w) - 1, f_BHSF.shape[2]
        padded = pad(f_BHSF, (0, 0, before, 0))
        omega = sum(w * padded[:, :, before - k : before - k + count] for k, w in enumerate(self.w))
        omega = omega if self.b is None else omega + self.b.exp()
        m = torch.arange(self.feature_width, device=f_BHSF.device, dtype=torch.float64)
        return omega.double().cumsum(2) * self.base ** (-m / self.feature_width)
