"""Complex embeddings, each word with frequencies of its own (Wang et al., 2019)."""

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Shape, register


@register("complex", paper="arXiv:1912.12333", family="absolute")
class Complex(Encoding):
    """f(token, k) = r e^{i (theta + omega k)} in place of x_k, with r, theta and omega learned per token and pair.

    Channels 2m and 2m + 1 of the token embedding hold r cos theta and r sin theta, so r and theta are learned there,
    and omega `[vocab, W/2]` here. The layers are real, where the paper's are complex. Every token's omega starts at the
    frequencies of the sinusoids, 10000^(-2m/W), and positions start at 0. In the authors' models of language and of
    translation positions start at 1, neighbouring channels start with one frequency, and theta is 0; in that of
    translation the frequencies are frozen.
    """

    shared = True
    relative = False
    facts = ("omega = 0 is none",)

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        if shape.width % 2:
            raise ValueError(f"complex numbers take two channels, so the width must be even; got {shape.width}")
        m = torch.arange(0, shape.width, 2) / shape.width
        self.omega = nn.Parameter((10000.0**-m).repeat(shape.vocab, 1))

    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        turn = self.omega[ids_BT].double() * pos[:, None]  # omega k, [B, T, W/2]
        cos, sin = turn.cos().to(x_BTW.dtype), turn.sin().to(x_BTW.dtype)
        real, imaginary = x_BTW[..., 0::2], x_BTW[..., 1::2]
        turned = real * cos - imaginary * sin, real * sin + imaginary * cos
        return torch.stack(turned, dim=-1).flatten(-2)
