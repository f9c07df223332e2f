"""Positions as points on the path of a dynamical system (Liu et al., 2020)."""

import math

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Length, Shape, above, at_least, register


class Dynamics(nn.Module):
    """h(t, p): one layer of tanh, or linear where `hidden` is 0."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(width + 1, hidden or width)
        self.last = nn.Sequential(nn.Tanh(), nn.Linear(hidden, width)) if hidden else nn.Identity()

    def forward(self, t: Tensor, p: Tensor) -> Tensor:
        """dp/dt `[..., W]` at times `[..., 1]`, or at one time `[]`."""
        t = t.to(p.dtype).expand(*p.shape[:-1], 1)
        return self.last(self.first(torch.cat([p, t], dim=-1)))


@register("floater", paper="arXiv:2003.09229", family="absolute", needs=("torchdiffeq", "ode"))
class Floater(Encoding):
    """x_k + p(t_k), p(t) = p(0) + integral of h(tau, p(tau)) over [0, t], t_k = k dt: h is a small net, p(0) learned.

    The integral is computed from 0 by Runge-Kutta 4 (the 3/8 rule) in steps of `step` positions, with a cubic between
    steps. Its cost grows with the position, even for a single token. `hidden` is W unless given; 0 makes h linear. The
    authors' code has the same `dt`, but ReLUs in h, and three p per layer, which are added to queries, keys and values.
    Here h is bounded, so p grows at most linearly past the training length, where a ReLU's grows exponentially.
    """

    shared = True
    relative = False

    def __init__(self, shape: Shape, *, hidden: int | None = None, step: Length[int] = 8, dt: float = 0.01) -> None:
        super().__init__(shape)
        at_least(0, hidden=hidden)
        at_least(1, step=step)
        above(0, dt=dt)
        self.step, self.dt = step, dt
        self.p_0 = nn.Parameter(torch.randn(shape.width))
        self.h = Dynamics(shape.width, shape.width if hidden is None else hidden)

    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        return x_BTW + self.path(pos).to(x_BTW.dtype)

    def path(self, pos: Tensor) -> Tensor:
        """The path p `[T, W]` at positions `[T]` in ascending order."""
        from torchdiffeq import odeint

        # The grid does not depend on the positions asked for, because a token's p must not depend on other tokens.
        steps = max(1, math.ceil(float(pos[-1]) / self.step))
        t = self.dt * self.step * torch.arange(steps + 1, device=pos.device, dtype=torch.float64)
        p = odeint(self.h, self.p_0, t, method="rk4")
        dp = self.h(t[:, None], p) * (self.dt * self.step)
        n = (pos / self.step).floor().long().clamp(max=steps - 1)
        return cubic(p[n], p[n + 1], dp[n], dp[n + 1], (pos.double() / self.step - n)[:, None].to(p.dtype))


def cubic(a: Tensor, b: Tensor, da: Tensor, db: Tensor, u: Tensor) -> Tensor:
    """The Hermite polynomial that is a at u = 0 and b at u = 1, with slopes da and db."""
    return a + u * (da + u * (3 * (b - a) - 2 * da - db + u * (2 * (a - b) + da + db)))
