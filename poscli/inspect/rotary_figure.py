"""Pictures of encodings that turn queries and keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from poscli.drawing.axes import name_axes, remark
from poscli.drawing.curves import binned, distance_axis, log_axis, mark_length, share_axes
from poscli.drawing.style import PALETTE, QUIET
from poscli.drawing.text import amount
from poscli.inspect.rotary import TURN, Decay, Scaling, Turning

SEEN, NEW = PALETTE[0], PALETTE[1]


def draw_turning(panels: Sequence[Axes], found: Sequence[Turning]) -> None:
    """The angle of every pair by position, in turns: dark up to the training length, orange where it is new."""
    for axes, each in zip(panels, found, strict=True):
        log_axis(axes)
        axes.set_xscale("log")
        new = each.new_angles()
        for n, (inside, omega) in enumerate(zip(each.omega_in_training, each.omega, strict=True)):
            start, end = np.array([1, each.length]), np.array([each.length, each.max_len])
            axes.plot(start, inside * start / TURN, color=SEEN, linewidth=1.3)
            axes.plot(end, omega * end / TURN, color=NEW if new[n] else SEEN, linewidth=2.2 if new[n] else 0.8)
        axes.axhline(1, color=QUIET, linewidth=0.9, linestyle=":")
        axes.set_xlim(1, each.max_len)
        _plain_ticks(axes, each.max_len)
        mark_length(axes, each.length, each.length)
        name_axes(axes, "position, in tokens", "turns of each pair of channels")
        axes.annotate("one turn", (1, 1), xytext=(3, 3), textcoords="offset points", fontsize=7.5, color=QUIET)
        if new.any():
            remark(axes, (each.max_len, 0), (-2, 14), "orange: angles never met in training", ha="right")
    share_axes(panels)


def draw_decay(panels: Sequence[Axes], found: Sequence[Decay]) -> None:
    """The product by distance: for q of ones a line, for random q a band and its mean."""
    for axes, each in zip(panels, found, strict=True):
        middle, rows, lowest, highest = binned(np.stack([each.ones, each.mean, each.low, each.high]))
        axes.fill_between(middle, rows[2], rows[3], color=QUIET, alpha=0.16, linewidth=0)
        axes.plot(middle, rows[1], color=QUIET, linewidth=1.2)
        axes.fill_between(middle, lowest[0], highest[0], color=SEEN, alpha=0.18, linewidth=0)
        axes.plot(middle, rows[0], color=SEEN, linewidth=1.5)
        axes.axhline(0, color=QUIET, linewidth=0.8)
        distance_axis(axes, len(each.ones), each.length)
        name_axes(axes, "distance d, in tokens", "q . R(d) q, relative")
        axes.set_ylim(min(-0.2, float(each.low.min()), float(each.ones.min())) - 0.15, 1.06)
        remark(axes, (1, 0), (2, 4), "blue: q of ones; grey: nine in ten random q")
    share_axes(panels)


def draw_scaling(panels: Sequence[Axes], found: Sequence[Scaling]) -> None:
    """The ratio of angular frequencies by the wavelength in the other encoding; nothing where they have other pairs."""
    shown = [(axes, each) for axes, each in zip(panels, found, strict=True) if len(each.ratio)]
    for axes in set(panels) - {axes for axes, _ in shown}:
        axes.set_axis_off()
    for axes, each in shown:
        axes.axhline(1, color=QUIET, linewidth=0.9, linestyle=":")
        axes.plot(TURN / each.omega, each.ratio, "o-", color=SEEN, linewidth=1.2, markersize=4)
        axes.set_xscale("log")
        log_axis(axes)
        axes.set_ylim(min(0.5, float(each.ratio.min()) / 1.5), max(1.5, float(each.ratio.max()) * 1.5))
        ticks = [tick for tick in (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4) if tick >= axes.get_ylim()[0]]
        ticks = [tick for tick in ticks if tick <= axes.get_ylim()[1]]
        axes.yaxis.set_major_locator(FixedLocator(ticks))
        axes.yaxis.set_major_formatter(FixedFormatter([f"{t:g}x" if t >= 1 else f"1/{1 / t:g}x" for t in ticks]))
        name_axes(axes, f"wavelength in {each.other}, in tokens", f"angular speed, relative to {each.other}")
        _plain_ticks(axes, int(TURN / each.omega[-1] * 1.2))
        mark_length(axes, each.length, each.length)
    if shown:
        share_axes([axes for axes, _ in shown])


def _plain_ticks(axes: Axes, most: int) -> None:
    """Powers of ten as plain numbers on the x axis."""
    ticks = [10**n for n in range(8) if 10**n <= most]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FixedFormatter([amount(tick) for tick in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
