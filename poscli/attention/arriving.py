"""Attention to keys that arrive in parts, each of which can be forgotten before the next one comes; CPU, no gradient.

The tiles of tiled.py are computed for one part after the other, and merged by their log-sum-exp.

Shapes: B batch, T queries, which are the last T of S tokens, C tokens of a part, H heads, D and E head widths of keys
and values, F features.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from poscli.attention.sizes import DEFAULT_SIZES, BlockSizes
from poscli.attention.tile_inputs import ScoreBounds, TileInputs, norms, potential_of
from poscli.attention.tiled import merged, partials
from poscli.equation import Encoding, Operands, Positions
from poscli.equation.reference import temperature


class ArrivingKeys:
    """One call of attention. `positions` and features are those of all S tokens, and q the output of the projection."""

    def __init__(
        self,
        encoding: Encoding,
        q_BHTD: Tensor,
        positions: Positions,
        features_BHSF: Tensor | None,
        sizes: BlockSizes = DEFAULT_SIZES,
    ) -> None:
        self.encoding, self.raw_q_BHTD, self.positions, self.sizes = encoding, q_BHTD, positions, sizes
        self.queries, self.tokens = q_BHTD.shape[2], len(positions.pos)
        self.pos_T = positions.pos[self.tokens - self.queries :]
        self.q_BHTD = encoding.query(encoding.content_query(q_BHTD), self.pos_T)
        self.potential_BHS = potential_of(encoding, features_BHSF)
        self.own_norm_H: Tensor | None = None
        self.last_key: Tensor | None = None
        exact = torch.promote_types(q_BHTD.dtype, torch.float32)
        self.lse_BHT = torch.full(q_BHTD.shape[:3], -math.inf, dtype=exact, device=q_BHTD.device)
        self.out_BHTE: Tensor | None = None

    def take(self, first: int, k_BHCD: Tensor, v_BHCE: Tensor) -> None:
        """Attend to one part of the keys and values, as they leave the projection; `first` is its first token.

        The first call must bring the keys of the queries' own tokens.
        """
        x = self._operands(first, k_BHCD, v_BHCE)
        potential_BHS = None if self.potential_BHS is None else self.potential_BHS[:, :, first:]
        inputs = TileInputs.of(self.encoding, x, self.tokens - first - x.keys, potential_BHS)
        bounds = ScoreBounds.of(inputs, self.own_norm_H)
        if self.out_BHTE is None:
            self.out_BHTE = x.v_BHSE.new_zeros(*self.lse_BHT.shape, x.v_BHSE.shape[-1])
            self.own_norm_H = norms(x.k_BHSD)
        for start in range(0, self.queries, self.sizes.tile_queries):
            queries = slice(start, min(start + self.sizes.tile_queries, self.queries))
            for first_key, heads in bounds.first_keys(queries, self.sizes.skip_multiple):
                found = list(partials(inputs.of_heads(heads), queries, first_key, self.sizes))
                so_far = self.out_BHTE[:, heads, queries], self.lse_BHT[:, heads, queries]
                self.out_BHTE[:, heads, queries], self.lse_BHT[:, heads, queries] = merged([so_far, *found])

    def output(self) -> Tensor:
        """Attention output `[B, H, T, E]`, once all parts have been taken."""
        assert self.out_BHTE is not None
        return self.encoding.output(self.out_BHTE, self.pos_T)

    def _operands(self, first: int, k_BHCD: Tensor, v_BHCE: Tensor) -> Operands:
        """The inputs of an engine, with the keys of one part."""
        encoding, positions, count = self.encoding, self.positions, k_BHCD.shape[2]
        own = positions.of_keys[first : first + count]
        # A blank may take pos[-1] as the position of the last key of all: that key stands behind every part.
        pos, k, v = own, k_BHCD, v_BHCE
        if self.last_key is None:
            self.last_key, self.last_value = k_BHCD[:, :, -1:].clone(), v_BHCE[:, :, -1:].clone()
        else:
            pos = torch.cat([own, positions.of_keys[-1:]])
            k, v = torch.cat([k_BHCD, self.last_key], dim=2), torch.cat([v_BHCE, self.last_value], dim=2)
        return Operands(
            q_BHTD=self.q_BHTD,
            k_BHSD=encoding.key(k, pos)[:, :, :count],
            v_BHSE=encoding.value(v, pos)[:, :, :count],
            raw_q_BHTD=self.raw_q_BHTD,
            raw_k_BHSD=k_BHCD,
            pos_S=own,
            pos_of_queries_T=self.pos_T,
            step=positions.step,
            columns=positions.columns,
            reach=encoding.reach,
            temperature_HT=temperature(encoding, self.queries, self.tokens, k_BHCD.device),
        )
