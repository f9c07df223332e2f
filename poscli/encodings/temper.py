"""A tuned logit scale beyond the training length, for any encoding, as DroPE is evaluated (Gelberg et al., 2025)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from poscli.encodings import Encoding, Length, Shape, at_least, register


@register("temper", paper="arXiv:2512.12167", family="wrapper")
class Temper(Encoding):
    """softmax(beta s_ij), beta = 1 + c ln s, s = max(1, n/L), n the number of keys that query i sees.

    Nothing is learned, and up to the training length L nothing changes; L is that of the model unless `length` is
    given. The paper tunes c on held-out texts of the target length, and applies one s, that of the whole text, to all
    its queries: it reports c = 0.412 for a model trained from scratch, the default, and 0.103 for SmolLM. `search` is
    the number of values of c to try on a trained model, evenly from 0 to 1, 0 for no search. The factor multiplies
    every term of the scores. (`logn` is another factor of this kind, without a constant.)
    """

    shared = True  # all layers of a model have the same c
    wraps = True
    facts = ("c = 0 is none",)

    def __init__(self, shape: Shape, *, c: float = 0.412, length: Length[int] | None = None, search: int = 0) -> None:
        super().__init__(shape)
        if c < 0:
            raise ValueError(f"c cannot be negative, got {c:g}")
        self.c, self.length = c, shape.length if length is None else length
        at_least(1, length=self.length)
        if search < 0 or search == 1:
            raise ValueError(f"search must be 0, for no search, or at least 2 values, got {search}")
        self.evaluations = search

    def temperature(self, n: Tensor) -> Tensor:
        s = (n.double() / self.length).clamp(min=1)
        return (1 + self.c * s.log())[None]

    def search(
        self, loss: Callable[[], float], evaluations: int, draw: torch.Generator, factor: float | None = None
    ) -> float:
        """Set c to the value with the smallest loss among `evaluations` from 0 to 1; returns that loss."""
        tried = []
        for self.c in torch.linspace(0, 1, evaluations, dtype=torch.float64).tolist():
            value = float(loss())
            tried.append((value if math.isfinite(value) else math.inf, self.c))
        least, self.c = min(tried)
        return least
