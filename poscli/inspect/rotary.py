"""Encodings of queries and keys: how fast their channels turn with the position, and what that does to scores.

Frequencies are measured, so that neither the layout of pairs nor a scaling need be known. If the queries at the next
position are a linear map of those at this one, whatever the query, the angles of the map's eigenvalues are the angles
by which pairs of channels turn. Otherwise the query of a token of ones is a table, whose columns are analysed as those
of a table of sinusoids are (absolute.py).

Shapes: n positions, H heads, D head width, C channels of a query that has been turned.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from poscli.drawing.text import amount, number
from poscli.equation import Encoding, Unsupported
from poscli.inspect.absolute import EXACT, fitted, frequencies
from poscli.inspect.numbers import Array, Record, in_tokens, sampled, without_nan
from poscli.inspect.subject import CPU, Subject, constant_operands
from poscli.verify.noise import draw

RANDOM_TOKENS = 8  # each of which is one random query per head, over which the decay is averaged
PLACES = 5  # in the window, at which the map from one position to the next is measured
STILL = 1e-13  # radians per token; what turns less does not turn
TURN = 2 * np.pi
NULL = 0.5  # the size of an eigenvalue that is no rotation: of a rotation it is 1
SAME_PAIR = 1e-3  # relative: two channels whose frequencies differ by less belong to one pair


def _of_first_head(heads: int) -> str:
    """What a sentence about the first head begins with where the heads differ."""
    return f"In head 1 of {heads}, which differ: " if heads > 1 else ""


@dataclass(frozen=True, eq=False)
class Turning(Record):
    """The angular frequency of each pair of channels, in radians per token, fastest first."""

    omega: Array  # [pairs] in a window of the longest length
    omega_in_training: Array  # [pairs] in a training window; differs if frequencies follow the length
    still: int  # channels that do not turn
    length: int
    max_len: int
    clipped: bool = False  # the encoding multiplies queries and keys in its own way, which may change distances
    drawn: bool = False  # training draws positions at random
    heads: int = 1  # more than 1 if they differ; the frequencies are then those of the first one

    @property
    def turns(self) -> Array:
        """Turns of each pair within a training window."""
        return self.omega_in_training * self.length / TURN

    @property
    def finding(self) -> str:
        """How many pairs meet angles beyond the training length that they have not met in training."""
        if not len(self.omega):
            return _of_first_head(self.heads) + "No channel turns with the position"
        waves = f"avelengths {number(TURN / self.omega[0])} to {amount(TURN / self.omega[-1])}"
        if self.clipped:
            words = f"W{waves} tokens; its own product of q and k decides which distances they turn by"
        elif self.drawn:
            words = f"W{waves} positions; training draws positions at random, which decide what angles are new"
        else:
            new = int(self.new_angles().sum())
            pairs = f"{new} of {len(self.omega)} pairs meet new angles" if new else "No pair meets a new angle"
            words = f"{pairs} beyond {self.length} tokens; w{waves}"
        return _of_first_head(self.heads) + words

    def new_angles(self) -> np.ndarray:
        """Which pairs turn farther in the longest window than in training, where they have not turned once."""
        before, after = self.omega_in_training * self.length, self.omega * self.max_len
        return (not (self.clipped or self.drawn)) & (before < TURN) & (after > before * 1.001)

    def record(self) -> dict[str, object]:
        return {
            "radians_per_token": self.omega.tolist(),
            "radians_per_token_in_training": self.omega_in_training.tolist(),
            "turns_in_training": self.turns.tolist(),
            "pairs_with_new_angles": int(self.new_angles().sum()),
            "channels_that_do_not_turn": self.still,
        }


@dataclass(frozen=True, eq=False)
class Decay(Record):
    """q . R(d) q over its value at distance 0, by distance d: for a q of ones, and for random q."""

    ones: Array  # [n]
    mean: Array  # [n], over random q
    low: Array  # [n], of nine in ten random q, the smallest
    high: Array  # [n], of nine in ten random q, the largest
    length: int

    @property
    def finding(self) -> str:
        """Where the product first falls below a half, and how large it gets again beyond the training length."""
        fallen = np.flatnonzero(self.ones < 0.5)
        where = f"falls to a half {in_tokens(int(fallen[0]))} away" if len(fallen) else "never falls to a half"
        if not len(fallen) or len(self.ones) <= self.length:
            return f"q . R q {where}"
        again = float(self.ones[self.length :].max())
        return f"q . R q {where}, and beyond {self.length} tokens reaches {again:.2f} again"

    def record(self) -> dict[str, object]:
        rows = np.stack([self.ones, self.mean, self.low, self.high])
        return sampled(np.arange(len(self.ones)), rows, ("ones", "random", "random_low", "random_high"))


@dataclass(frozen=True, eq=False)
class SpeedRatio(Record):
    """The angular frequency of each pair as a share of that of another encoding, or of its own in training."""

    omega: Array  # [pairs] of the other encoding
    ratio: Array  # [pairs]
    other: str
    length: int  # of the other's training windows
    heads: int = 1  # as in Turning

    @property
    def new_from(self) -> int | None:
        """The tokens from which on angles are new to a model of the other encoding trained on windows of L tokens.

        None if there are no such angles, because all pairs of the other encoding turn at least once in training.
        """
        slow = self.omega * self.length < TURN
        return round(self.length / float(self.ratio[slow].max())) if slow.any() else None

    @property
    def finding(self) -> str:
        """Which pairs are slowed down, and by how much."""
        if not len(self.ratio):
            return f"Its pairs and those of {self.other} cannot be compared"
        same = np.abs(self.ratio - 1) < SAME_PAIR
        if same.all():
            return f"Every pair turns as fast as in {self.other}"
        pairs = "All pairs" if not same.any() else f"{int((~same).sum())} of {len(same)} pairs"
        changed = self.ratio[~same]
        low, high = f"{changed.min():.3g}", f"{changed.max():.3g}"
        speeds = f"{low} to {high} times" if low != high else f"{low} times"
        new = f"; angles new to {self.other} begin at {amount(self.new_from)} tokens" if self.new_from else ""
        return f"{_of_first_head(self.heads)}{pairs} turn {speeds} as fast as in {self.other}{new}"

    def record(self) -> dict[str, object]:
        return {
            "compared_with": self.other,
            "radians_per_token": self.omega.tolist(),
            "ratio": self.ratio.tolist(),
            "new_angles_from": self.new_from if len(self.ratio) else None,
        }


def turning(subject: Subject) -> Turning:
    """The frequencies of the subject's queries, in training and in the longest window that it can read."""
    every = [_speeds(subject, subject.length, head) for head in range(subject.heads)]
    (in_training, still), *others = every
    omega = in_training
    if any(part.rescales for part in subject.leaves):
        omega, still = subject.at_longest(partial(_speeds, subject))[0]
    alike = all(len(each) == len(in_training) and np.allclose(each, in_training, rtol=SAME_PAIR) for each, _ in others)
    return Turning(
        omega,
        in_training if len(in_training) == len(omega) else omega,
        still,
        subject.length,
        subject.max_len,
        clipped=subject.fills("similarity"),
        drawn=_draws_positions(subject),
        heads=1 if alike else subject.heads,
    )


def decay(subject: Subject) -> Decay:
    """The product of a query and keys at growing distances, by the formula of the reference, without terms of it."""
    (ones, *_), tokens, _ = subject.at_longest(partial(_products, subject))
    width = subject.encoding.shape.width
    seeds = range(RANDOM_TOKENS)
    random = np.concatenate([_products(subject, tokens, draw(width, seed=n, dtype=torch.float64)) for n in seeds])
    low, high = np.quantile(random, (0.05, 0.95), axis=0)
    return Decay(ones, random.mean(axis=0), low, high, subject.length)


def scaling(subject: Subject, other: Subject) -> SpeedRatio:
    """The frequencies of a subject in its longest window, as shares of those of another one."""
    ours, theirs = turning(subject), turning(other)
    if len(ours.omega) != len(theirs.omega):
        return SpeedRatio(theirs.omega, np.zeros(0), other.spec, other.length)
    of_other = theirs.omega_in_training
    heads = max(ours.heads, theirs.heads)
    return SpeedRatio(of_other, ours.omega / of_other, other.spec, other.length, heads)


def _draws_positions(subject: Subject) -> bool:
    """Whether training draws the positions of a text at random."""
    parts = (part for part in subject.leaves if "positions" in part.blanks)
    return any(type(part).begin_step is not Encoding.begin_step for part in parts)


def _speeds(subject: Subject, tokens: int, head: int = 0) -> tuple[Array, int]:
    """Frequencies `[pairs]` above zero in a window, fastest first, and the number of channels that do not turn."""
    encoding, shape = subject.encoding, subject.encoding.shape
    places = np.linspace(0, subject.length - 2, PLACES).astype(np.int64)
    order = np.unique([*places, *(places + 1), tokens - 1])  # the last position tells the length of the window
    places_of = torch.from_numpy(order)
    pos = places_of.double() if _draws_positions(subject) else encoding.locate(tokens, CPU).pos[places_of]
    units = torch.eye(shape.head_width, dtype=torch.float64)[:, None, None, :]
    q_DHTD = units.expand(-1, shape.heads, len(order), -1)
    q_DTC = encoding.query(encoding.content_query(q_DHTD), pos)[:, head].numpy()  # for each unit vector
    at, after = (q_DTC[:, np.searchsorted(order, each)].reshape(-1, q_DTC.shape[-1]) for each in (places, places + 1))
    step = fitted(at, after, k=1)
    if step.error <= EXACT:
        values = np.linalg.eigvals(step.map)
        turned = values[np.abs(values) > NULL]  # the others are of channels that the encoding leaves empty
        angles = np.sort(np.angle(turned))[::-1]  # of every pair, one above zero and one below
        return angles[angles > STILL], int((np.abs(angles) <= STILL).sum())
    if subject.fills("similarity"):  # such an encoding may begin anew with each chunk: that is no sum of sinusoids
        raise Unsupported("queries do not turn by the same angle from each position to the next")
    table = constant_operands(encoding, tokens, queries=tokens).q_BHTD[0, head].numpy()[: subject.length]
    waves = frequencies(table)
    omega = np.sort(waves.omega[(waves.omega > 0) & (waves.share > 0.5)])[::-1]
    first, second = omega[0::2], omega[1::2]
    paired = len(omega) % 2 == 0 and np.allclose(first, second, rtol=SAME_PAIR, atol=0)
    return first if paired else omega, int((waves.omega == 0).sum())


def _products(subject: Subject, tokens: int, token: torch.Tensor | None = None) -> Array:
    """Products of the last query with keys by distance, relative to its own key's, `[H, n]`."""
    x = constant_operands(subject.encoding, tokens, token=token)
    s_HS = (subject.encoding.fast_similarity(x) if subject.fills("similarity") else x.q_BHTD @ x.k_BHSD.mT)[0, :, 0]
    return without_nan((s_HS.flip(1) / s_HS[:, -1:]).numpy(), "q . k relative to its value at distance 0")
