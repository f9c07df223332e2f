"""LongRoPE: a rescale factor for each pair, searched for a model (Ding et al., 2024)."""

import math
from collections.abc import Callable
from typing import Literal, Unpack

import torch
from torch import Tensor

from poscli.encodings import Encoding, Length, Shape, above, register
from poscli.encodings.rope import RoPE
from poscli.encodings.rope_linear import RoPELinear, Scaled
from poscli.encodings.rope_ntk import RoPENTK
from poscli.encodings.yarn import YaRN

SEEDS: dict[str, type[RoPELinear]] = {"yarn": YaRN, "ntk": RoPENTK, "pi": RoPELinear}


@register("longrope", paper="arXiv:2402.13753", family="rotary")
class LongRoPE(RoPELinear):
    """Rope with theta_m / lambda_m, 1 <= lambda_m <= lambda_m+1, and cos and sin times sqrt(1 + ln s / ln L), s = L'/L.

    lambda is searched for a trained model by its loss on long texts; `search` is the number of losses that may be
    measured, 0 for no search. Before a search lambda is that of `start`, one of the three seeds of the paper's search;
    the authors' code starts from YaRN's ramp, but blends the factors with it, where YaRN blends the frequencies. A
    lambda found for one s is used for another s' as 1 + (lambda - 1) (s' - 1) / (s - 1), as the authors do. The first
    `keep_first` positions keep rope's angles. The factor on cos and sin is in the authors' code (and Phi-3), not in the
    paper; `attention` replaces it. L is the training length, or `original`. A checkpoint may bring its own lambda, one
    list for texts of up to L tokens and one for longer texts (`use_factors`).
    """

    shared = True  # all layers of a model have the same lambda
    facts = ("start = pi is rope-linear, ntk rope-ntk and yarn yarn, with another temperature",)
    factors: Tensor | None  # the lambda found by a search, `[pairs]` in float64; None before a search
    short_factors: Tensor | None  # the lambda of a checkpoint, `[pairs]`, up to `original` tokens; None: it has no list
    long_factors: Tensor | None  # and those for longer texts

    def __init__(
        self,
        shape: Shape,
        *,
        factor: float | None = None,
        start: Literal["yarn", "ntk", "pi"] = "yarn",
        keep_first: Length[int] = 0,
        search: int = 0,
        attention: float | None = None,
        **rotary: Unpack[Scaled],
    ) -> None:
        super().__init__(shape, factor=factor, **rotary)
        if keep_first < 0 or search < 0:
            raise ValueError(f"keep_first and search cannot be negative, got {keep_first} and {search}")
        above(0, attention=attention)
        self.start, self.keep_first, self.evaluations, self.attention = start, keep_first, search, attention
        self.relative = keep_first == 0
        self.seeds = {n: cls(shape, factor=factor, **rotary) for n, cls in SEEDS.items()}
        for name in ("factors", "short_factors", "long_factors"):
            self.register_buffer(name, None, persistent=False)

    def use_factors(self, short: Tensor, long: Tensor) -> None:
        """Use the lambda `[pairs]` of a checkpoint: `short` for texts of up to `original` tokens, `long` beyond."""
        pairs = (self.width // 2,)
        for factors in (short, long):
            if factors.shape != pairs or not (factors > 0).all():
                raise ValueError(f"needs {pairs[0]} factors above 0, one for each pair, got {factors.tolist()}")
        self.short_factors, self.long_factors = short.double(), long.double()
        self.rescales = True

    def take_over(self, trained: Encoding) -> None:
        super().take_over(trained)
        if isinstance(trained, LongRoPE) and trained.short_factors is not None and trained.long_factors is not None:
            self.use_factors(trained.short_factors, trained.long_factors)

    def theta(self, pos: Tensor) -> Tensor:
        if self.factors is not None:
            extent = (self.s(pos) - 1) / (self.found_at - 1)
            return RoPE.theta(self, pos) / (1 + (self.factors.to(pos.device) - 1) * extent)
        if self.short_factors is None or self.long_factors is None:
            return self.seeds[self.start].theta(pos)
        short, long = self.short_factors.to(pos.device), self.long_factors.to(pos.device)
        return RoPE.theta(self, pos) / torch.where(pos[-1] + 1 > self.original, long, short).double()

    def angles(self, pos: Tensor) -> Tensor:
        kept = pos[:, None].double() * RoPE.theta(self, pos)
        return torch.where(pos[:, None] < self.keep_first, kept, super().angles(pos))

    def amplitude(self, pos: Tensor) -> Tensor:
        sharper = (1 + self.s(pos).log() / math.log(max(2, self.original))).sqrt()
        if self.attention is not None:
            sharper = torch.full_like(sharper, self.attention)
        return torch.where(pos[:, None] < self.keep_first, 1.0, sharper)

    def search(
        self, loss: Callable[[], float], evaluations: int, draw: torch.Generator, factor: float | None = None
    ) -> float:
        """Store in `factors` the lambda of smallest loss that an evolutionary search finds; returns that loss.

        `loss` measures the model under the current `factors`, on texts `factor` times as long as the training windows,
        and is called `evaluations` times. The spec's option `factor`, if given, replaces the argument.
        """
        s = self.factor or (factor or 1.0) * self.shape.length / self.original
        if s <= 1 or evaluations < 1:
            raise ValueError(f"a search needs a factor above 1 and an evaluation, got {s:g} and {evaluations}")
        self.found_at, end = s, torch.tensor([s * self.original - 1], dtype=torch.float64)
        order = sorted(self.seeds, key=lambda name: name != self.start)
        seeds = [RoPE.theta(self, end) / self.seeds[name].theta(end) for name in order]
        # the paper's 64 individuals, 32 parents, 16 mutations and 16 crossovers, scaled down for a small budget
        size = min(64, max(8, evaluations // 8))
        generation = seeds + [_mutated(seeds[n % len(seeds)], s, draw) for n in range(size - len(seeds))]
        tried: list[tuple[float, Tensor]] = []
        while len(tried) < evaluations:
            if tried:
                parents = [factors for _, factors in sorted(tried, key=lambda pair: pair[0])[: size // 2]]
                generation = _children(parents, size // 4, s, draw)
            for self.factors in generation[: evaluations - len(tried)]:
                value = float(loss())
                tried.append((value if math.isfinite(value) else math.inf, self.factors))
        best, self.factors = min(tried, key=lambda pair: pair[0])
        return best


def _children(parents: list[Tensor], each: int, s: float, draw: torch.Generator) -> list[Tensor]:
    """`each` children by mutation and as many by crossover."""
    couples = [torch.randperm(len(parents), generator=draw)[:2].tolist() for _ in range(each)]
    mutated = [_mutated(parents[i], s, draw) for i, _ in couples]
    return mutated + [_crossed(parents[i], parents[j], draw) for i, j in couples]


def _mutated(factors: Tensor, s: float, draw: torch.Generator) -> Tensor:
    """Draw each factor again with probability 0.3, between its neighbours and within 1 and 1.25 s."""
    bounded = torch.cat([factors.new_tensor([1.0]), factors, factors.new_tensor([1.25 * s])])
    for m in range(1, len(bounded) - 1):
        pick, where = torch.rand(2, generator=draw, dtype=torch.float64).tolist()
        if pick < 0.3:
            bounded[m] = bounded[m - 1] + where * (bounded[m + 1] - bounded[m - 1])
    return bounded[1:-1]


def _crossed(a: Tensor, b: Tensor, draw: torch.Generator) -> Tensor:
    """Take each factor from a random parent, then sort; the paper draws again until the factors do not decrease."""
    return torch.where(torch.rand(len(a), generator=draw) < 0.5, a, b).sort().values
