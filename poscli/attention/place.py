"""What engines are told beside an encoding and its operands: the circumstances of a call, and the sizes of blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from poscli.equation import Encoding
from poscli.equation.blanks import not_computed_by
from poscli.equation.reference import TERMS

# The refusal of engines that hide every key beyond the reach.
SINKS_REFUSED = "the first tokens stay visible beyond the reach (sinks)"
ON_GRID_REFUSED = "its distances are those of a grid, of rows and of columns"


@dataclass(frozen=True)
class Place:
    """A device, a dtype, the head width of the model, and whether a gradient is needed."""

    device: str = "cpu"  # torch's type of device
    dtype: torch.dtype = torch.float32
    width: int = 16  # D, numbers per head of the model
    gradient: bool = True
    here: torch.device | None = None  # the device itself, to try kernels on; None: it need not be at hand


def blanks_refused(encoding: Encoding, engine: str) -> str:
    """Why an engine refuses an encoding that fills a blank that the engine does not compute; '' if it computes all.

    Sinks are left out: they matter only beside a reach, and an engine that cannot keep them says SINKS_REFUSED then.
    """
    blanks = [blank for blank in not_computed_by(engine, encoding.blanks) if blank != "sinks"]
    if rows := [blank for blank in blanks if blank not in TERMS]:
        return f"needs whole rows of scores ({', '.join(rows)})"
    return f"the {blanks[0]} of a pair is no function of its distance" if blanks else ""


def added_refused(encoding: Encoding) -> str:
    """Why an engine of terms by even distances refuses what an encoding adds to scores and values; '' if it does not.

    A potential depends on features alone, so it may stand on a grid and beside uneven positions.
    """
    by_distance = encoding.blanks & ({*TERMS, "relative_values"} - {"potential"})
    if encoding.axes == 2 and by_distance:
        return ON_GRID_REFUSED
    if "temperature" in encoding.blanks and encoding.blanks & TERMS.keys():
        return "a temperature multiplies what is added to the scores"
    return "distances may be uneven" if "positions" in encoding.blanks and by_distance else ""


@dataclass(frozen=True, kw_only=True)
class BlockSizes:
    """Sizes in queries, keys or entries (numbers of a tensor). Tests pass small ones, to cut up short inputs."""

    # Blocks of queries with their bias: biases.py.
    # torch's CPU kernel works through 256 queries at a time if it is given 768 or more, 64 or 32 otherwise, so long
    # inputs take 4 blocks at once: 767 ms against 1,037 at 16384 tokens and 8 heads of 16.
    block_queries: int = 256
    block_entries: int = 2**21  # entries that a block may materialise: 8 MiB of float32; 2**23 is no faster

    # Training on CPU: sdpa.py.
    # Small blocks, each with the keys it sees and a mask, are faster than one causal call up to 1024 tokens. A step of
    # the preset `tiny` took 281 ms against 329 at 512 tokens, 387 against 404 at 1024 and 582 against 553 at 2048. A
    # bias needs blocks anyway, and small ones are faster at any length: 155 ms against 224 for t5 at 2048 tokens.
    training_queries: int = 128
    training_tokens: int = 1024  # the longest input without a bias for which training takes these small blocks

    native_queries: int = 8  # queries from which on our own kernels are used: native.py

    # The backward pass of a learned bias: sdpa.py.
    backward_entries: int = 2**19  # scores held at once: 2 MiB of float32, about the cache of one core
    backward_queries: int = 128  # queries of a chunk of causal attention, which skips the keys after its queries

    # Tiles of queries and keys in evaluation on CPU: tiles.py.
    tile_queries: int = 1024  # enough for torch's kernel to take 256 at a time
    tile_keys: int = 1024  # keys of a tile whose bias is not a view: 8 MiB of float32 for one head and its distances
    tile_entries: int = 2**21  # entries of biases held at once: one head, or several heads of a small tile
    weighted_queries: int = 128  # queries of a tile that needs the attention weights themselves, for relative values
    skip_multiple: int = 256  # keys are skipped in multiples of it, so that heads can share a tile


DEFAULT_SIZES = BlockSizes()
# On a GPU one large block is faster than many small ones: a layer of fox took 8 ms instead of 132. 2**28 is faster
# still for a few encodings, and needs up to twice the memory.
GPU_SIZES = BlockSizes(block_entries=2**26, backward_entries=2**26)
