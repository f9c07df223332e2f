"""Model types with ALiBi. They differ in the smallest slope, and in where the penalty is added."""

from __future__ import annotations

from dataclasses import dataclass

from poscli.checkpoints.fields import Config, number, section, whole
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
    """ALiBi with slopes down to 2^-alibi_bias_max.

    transformers adds ALiBi to every MPT model, also where `attn_config.alibi` says that it has none, and always with
    slopes down to 2^-8.
    """

    name = "alibi"

    def layers(self, config: Config, count: int, head_width: int, length: int) -> list[Layer]:
        most = number(section(config, "attn_config"), "alibi_bias_max", 8)
        return [Layer(f"alibi(most={most})")] * count


@dataclass(frozen=True, kw_only=True)
class Falcon(Kind):
    """ALiBi divided by sqrt(D), because it is added before the scale of the scores, or else rope."""

    name = "alibi or rotary"

    def layers(self, config: Config, count: int, head_width: int, length: int) -> list[Layer]:
        if config.get("alibi"):
            return [Layer("alibi(before_scale=true)")] * count
        return FALCON.layers(config, count, head_width, length)

    def kv_heads(self, config: Config, heads: int) -> int:
        if config.get("new_decoder_architecture"):
            return whole(config, ("num_kv_heads",), heads)
        return 1 if config.get("multi_query", True) else heads


ALIBI: dict[str, Kind] = {"bloom": Bloom(length=2048), "mpt": Mpt(length=2048), "falcon": Falcon(length=2048)}
