"""A peer: another implementation of Transformers, in which the model of a run is rebuilt, to be timed beside poscli."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from poscli.bench.conditions import Row
from poscli.config.needs import Needs
from poscli.config.run import RunConfig


@dataclass(frozen=True)
class PeerModel:
    """The model of one encoding in a peer."""

    title: str  # of the peer
    model: nn.Module
    attention: str  # fused or eager
    differs: str  # how the model and its version of the encoding differ from poscli's; "" if they do not
    needs: Needs
    attention_in_training: str = ""  # if it is another one than in evaluation

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.model.parameters())

    def columns(self, training: bool) -> Row:
        """The columns that describe the model, in a training step or in an evaluation."""
        return {
            "peer": self.title,
            "peer_attention": (training and self.attention_in_training) or self.attention,
            "peer_differs": self.differs,
            "peer_parameters": self.size,
        }


class Peer(ABC):
    """Another implementation. `name` is what `--against` calls it."""

    name: str

    @property
    def title(self) -> str:
        """The name, with the version if it has one."""
        return self.name

    def check_installed(self) -> None:  # noqa: B027 - what needs no package has nothing to check
        """UsageError if a package is missing."""

    @abstractmethod
    def encodings(self) -> list[str]:
        """Canonical specs of the encodings that the peer has too."""

    @abstractmethod
    def build(self, config: RunConfig, device: torch.device) -> PeerModel:
        """The model of a run, whose encoding is one of `encodings`, on a device."""


class InPrecision(nn.Module):
    """A model in the precision of a run: torch's autocast where that is lower than float32."""

    def __init__(self, model: nn.Module, precision: str, device: torch.device) -> None:
        super().__init__()
        self.model, self.device, self.dtype = model, device.type, getattr(torch, precision)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        lower = self.dtype != torch.float32
        with torch.autocast(self.device, self.dtype) if lower else contextlib.nullcontext():
            return self.model(tokens_BT)
