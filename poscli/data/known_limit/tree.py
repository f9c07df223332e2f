"""`tree(depth=3, symbols=4, alpha=0.5)`: every document has its own Markov chain of variable order."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from poscli.data.known_limit import (
    DOCUMENT_TOKENS,
    LARGEST_ALPHA,
    MOST_SYMBOLS,
    SMALLEST_ALPHA,
    SOURCES,
    Draw,
    KnownLimit,
    as_bytes,
    as_symbols,
)
from poscli.data.tokenizers.bytes import END

MOST_CONTEXTS = 4096  # of `depth` symbols
CHUNK_COUNTS = 1 << 20  # counts of symbols after contexts that are held at once


@SOURCES.register("tree")
class Tree(KnownLimit):
    """p_s(x) = w_s (n_sx + alpha) / (n_s + symbols alpha) + (1 - w_s) p_xs(x), where xs is a longer context than s.

    Every document draws a tree of contexts: beginning with the empty context, each context splits with probability 1/2
    into those that are longer by one earlier symbol, unless it has `depth` symbols. The leaves, which do not split,
    have distributions of the next symbol drawn from a symmetric Dirichlet(alpha). A document begins as if `depth` times
    the symbol "!" stood before it.

    The optimum is context tree weighting (Willems, Shtarkov and Tjalkens, 1995, doi:10.1109/18.382012) over `symbols`
    symbols: n_s counts the symbols seen after the context s, n_sx those of them that were x, and w_s is the probability
    that s is a leaf, given these symbols and that s is in the tree. The prediction is that of the empty context.

    If a window begins inside a document, its first `depth` tokens are context only: they are predicted evenly, because
    what stands before them is not known, and nothing is learned from them. The best reader of such a window would also
    weigh how probable each tree makes these tokens, an integral over stationary distributions that has no closed form.
    It would win depth log(symbols) nats at most, on average and over all targets of a window together, most of them on
    the first ones: p(first tokens, rest) <= p(rest | first tokens), and the loss given here is that of the right side.
    Windows that show the beginning of the document lose nothing.

    No position-blind limit is known: the posterior given the counts of symbols is a sum over all orders, which has no
    short form.
    """

    summary = "every document has its own Markov chain of variable order"

    def __init__(self, *, depth: int = 3, symbols: int = 4, alpha: float = 0.5) -> None:
        if depth < 1:
            raise ValueError(f"depth must be 1 or more, got {depth}")
        if not 2 <= symbols <= MOST_SYMBOLS:
            raise ValueError(f"symbols must be from 2 to {MOST_SYMBOLS}, got {symbols}")
        if depth * math.log(symbols) > math.log(MOST_CONTEXTS) * (1 + 1e-9):
            raise ValueError(
                f"{symbols} symbols at depth {depth} have more than {MOST_CONTEXTS} contexts; ask for fewer"
            )
        if not SMALLEST_ALPHA <= alpha <= LARGEST_ALPHA:
            raise ValueError(f"alpha must be from {SMALLEST_ALPHA:g} to {LARGEST_ALPHA:g}, got {alpha:g}")
        self.depth, self.symbols, self.alpha = depth, symbols, alpha
        # The contexts of d symbols have the numbers from starts[d] on: the digits to the base `symbols` of what is
        # added to that are the symbols, the latest one in the lowest digit.
        self.starts = np.cumsum([0, *(symbols**d for d in range(depth + 1))])

    def document(self, draw: Draw) -> bytes:
        """Symbols are drawn from a leaf's posterior mean, as in bigram.py, instead of a distribution that is drawn."""
        splits = draw.units(int(self.starts[self.depth])) < 0.5
        contexts = np.arange(self.symbols**self.depth)
        leaves = self.starts[self.depth] + contexts
        for d in reversed(range(self.depth)):
            nodes = self.starts[d] + contexts % self.symbols**d
            leaves = np.where(splits[nodes], leaves, nodes)
        written: list[list[int]] = [[] for _ in range(int(self.starts[-1]))]  # after each leaf
        after = [written[leaf] for leaf in leaves.tolist()]  # each context of `depth` symbols
        text, context, rest = list[int](), 0, self.symbols * self.alpha
        drawn = draw.below(self.symbols, DOCUMENT_TOKENS).tolist()
        for symbol, unit in zip(drawn, draw.units(DOCUMENT_TOKENS).tolist(), strict=True):
            earlier = after[context]
            place = int(unit * (len(earlier) + rest))
            text.append(earlier[place] if place < len(earlier) else symbol)
            earlier.append(text[-1])
            context = (context * self.symbols + text[-1]) % len(after)
        return as_bytes(np.array(text))

    def optimum(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        rows = CHUNK_COUNTS // (int(self.starts[-1]) * self.symbols)
        return self.in_chunks(self._optimum, tokens, tokens.shape[1] - 1, rows)

    def _optimum(self, tokens_BN: NDArray[np.int64]) -> NDArray[np.float64]:
        """The best possible losses of a few windows, `[B, T]`."""
        symbols_BN, place = as_symbols(tokens_BN), np.arange(tokens_BN.shape[1])
        end_BN = np.maximum.accumulate(np.where(tokens_BN == END, place, -1), axis=1)  # before the document; or -1
        is_known_BN = (symbols_BN >= 0) & ((end_BN >= 0) | (place >= self.depth))
        codes_BN = np.zeros_like(symbols_BN)
        nodes_BND = np.zeros((*symbols_BN.shape, self.depth + 1), dtype=np.int64)
        for d in range(1, self.depth + 1):
            codes_BN[:, d:] += np.where(place[d:] - d > end_BN[:, d:], symbols_BN[:, :-d], 0) * self.symbols ** (d - 1)
            nodes_BND[:, :, d] = self.starts[d] + codes_BN
        windows = np.arange(len(tokens_BN))
        counts = np.zeros((len(tokens_BN), int(self.starts[-1]), self.symbols))
        odds = np.zeros(counts.shape[:2])  # log of w / (1 - w)
        losses_BN = np.where(symbols_BN >= 0, math.log(self.symbols), np.nan)
        for t in range(tokens_BN.shape[1]):
            ended, known = tokens_BN[:, t] == END, windows[is_known_BN[:, t]]
            if ended.any():
                counts[ended], odds[ended] = 0, 0
            nodes_D, symbols = nodes_BND[known, t].T, symbols_BN[known, t]
            seen_D = counts[known, nodes_D]  # [D + 1, windows, symbols]
            of_symbol_D = np.take_along_axis(seen_D, symbols[None, :, None], axis=2)[:, :, 0]
            shares_D = (of_symbol_D + self.alpha) / (seen_D.sum(axis=2) + self.symbols * self.alpha)
            mixed = shares_D[self.depth]
            for d in reversed(range(self.depth)):
                is_leaf = (1 + np.tanh(odds[known, nodes_D[d]] / 2)) / 2  # the logistic function, which never overflows
                odds[known, nodes_D[d]] += np.log(shares_D[d]) - np.log(mixed)
                mixed = is_leaf * shares_D[d] + (1 - is_leaf) * mixed
            counts[known, nodes_D, symbols] += 1
            losses_BN[known, t] = -np.log(mixed)
        return losses_BN[:, 1:]
