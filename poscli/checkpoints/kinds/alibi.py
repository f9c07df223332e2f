"""Model types with ALiBi. Their slopes differ where the number of heads is not a power of two."""

from __future__ import annotations

from dataclasses import dataclass

from poscli.checkpoints.fields import Config, number
from poscli.checkpoints.kinds.kind import Kind, Layer
from poscli.checkpoints.kinds.rotary import FALCON


@dataclass(frozen=True, kw_only=True)
class Bloom(Kind):
    """ALiBi as its authors have it."""

    name = "alibi"

    def layers(self, config: Config, count: int, head_width: int, length: int) -> list[Layer]:
        return [Layer("alibi")] * count


@dataclass(frozen=True, kw_only=True)
class Mpt(Kind):
    """ALiBi with slopes in another order, down to 2^-alibi_bias_max.

    transformers adds ALiBi to every MPT model, also where `attn_config.alibi` says that it has none.
    """

    name = "alibi"

    def layers(self, config: Config, count: int, head_width: int, length: int) -> list[Layer]:
        attention = config.get("attn_config") or {}
        most = number(attention, "alibi_bias_max", 8)
        return [Layer(f"alibi(order=mpt, most={most})")] * count


@dataclass(frozen=True, kw_only=True)
class Falcon(Kind):
    """ALiBi divided by sqrt(D), because it is added before the scale of the scores, or else rope."""

    name = "alibi or rotary"

    def layers(self, config: Config, count: int, head_width: int, length: int) -> list[Layer]:
        if config.get("alibi"):
            return [Layer("alibi(scaled=true)")] * count
        return FALCON.layers(config, count, head_width, length)

    def kv_heads(self, config: Config, heads: int) -> int:
        if config.get("new_decoder_architecture"):
            return int(config.get("num_kv_heads") or heads)
        return 1 if config.get("multi_query", True) else heads


ALIBI: dict[str, Kind] = {"bloom": Bloom(length=2048), "mpt": Mpt(length=2048), "falcon": Falcon(length=2048)}
