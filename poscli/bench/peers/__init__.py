"""What poscli can be compared with: other implementations of a model with the same shape.

    peer.py             what a peer says, and its model of one encoding
    x_transformers.py   the library x-transformers; x_transformers.toml has the arguments of its constructors
    nanogpt_like.py     a GPT as people write it, which is here: the model in plain_pytorch.py, its position
                        encodings in plain_positions.py
    step.py             a peer's training step

A further peer is one file, and a row of `PEERS`.
"""

from __future__ import annotations

from poscli.bench.peers.nanogpt_like import NanoGPTLike
from poscli.bench.peers.peer import Peer, PeerModel
from poscli.bench.peers.x_transformers import XTransformers
from poscli.system.errors import UsageError, near

__all__ = ["PEERS", "Peer", "PeerModel", "find_peer"]

PEERS: dict[str, Peer] = {peer.name: peer for peer in (XTransformers(), NanoGPTLike())}


def find_peer(name: str) -> Peer:
    """The peer with a name; UsageError if there is none, or if it is not installed."""
    if name not in PEERS:
        raise UsageError(f"--against {name!r} is nothing to compare with: {near(name, PEERS)}")
    PEERS[name].check_installed()
    return PEERS[name]
