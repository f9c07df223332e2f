"""FoPE, Fourier position embedding (Hua et al., 2024)."""

import math

import torch
from torch import Tensor, nn

from poscli.encodings import Shape, at_least, register
from poscli.encodings.rope import Layout, RoPE


@register("fope", paper="arXiv:2412.17739", family="rotary")
class FoPE(RoPE):
    """Complex pair m of q_n and k_n times f_m(n) = e^(i w_m n) + sum_w a_wm e^(i w n), w_m = base^(-2m/D), w any w_m.

    Frequencies below 2 pi / L complete no period in training; they get f = 1 (1 + i in the authors' code, which doubles
    their scores) and are left out of the sum. Coefficients of cos and sin are drawn separately, per head, with standard
    deviation `sigma` / sqrt(N) for N frequencies. At equal sigma (theirs is 0.3, 0.4 or 0.6, by model size) the
    authors' coefficients are 3.4 to 4.8 times smaller, and fill at most D/4 series. Coefficients are not trained, as in
    their code, unless `learned`; without `learned` every layer and run has the same ones. A product of two series
    depends on sums of positions, not only on distances.
    """

    steady_keys = True
    facts = ("fope(sigma=0) is rope with the frequencies below 2 pi / L set to 0",)
    a: Tensor

    def __init__(
        self,
        shape: Shape,
        *,
        sigma: float = 0.3,
        learned: bool = False,
        base: float = 10000.0,
        layout: Layout = "half",
    ) -> None:
        super().__init__(shape, base=base, layout=layout)
        at_least(0, sigma=sigma)
        count = len(self.trained(torch.device("cpu")))
        draw = torch.randn(2, shape.heads, count, count, generator=torch.Generator().manual_seed(0))
        self.relative = sigma == 0 and not learned
        a = sigma * draw / math.sqrt(max(count, 1))
        if learned:
            self.a = nn.Parameter(a)
        else:
            self.register_buffer("a", a, persistent=False)

    def trained(self, device: torch.device) -> Tensor:
        """The frequencies that complete a period within L, `[N]` in float64."""
        w = self.base ** -self.exponents(device)
        return w[w >= 2 * math.pi / self.shape.length]

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        f = self.series(pos)
        return self.rotate(q_BHTD, f.angle(), f.abs())  # times f, as complex numbers

    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        f = self.series(pos)
        return self.rotate(k_BHSD, f.angle(), f.abs())

    def series(self, pos: Tensor) -> Tensor:
        """The series f_m(n), `[H, T, pairs]` in complex128."""
        angle = pos[:, None] * self.trained(pos.device)
        real, imaginary = (wave + wave @ a for wave, a in zip((angle.cos(), angle.sin()), self.a.double(), strict=True))
        f = torch.complex(real, imaginary)
        constant = f.new_ones(*f.shape[:2], self.width // 2 - f.shape[-1])
        return torch.cat([f, constant], dim=-1)
