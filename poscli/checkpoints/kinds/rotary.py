"""Model types with rotary positions: what differs between them, and the layers without rotations or with a window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from poscli.checkpoints.fields import Config, items, whole
from poscli.checkpoints.kinds.kind import Kind, Layer
from poscli.checkpoints.kinds.scaling import DEFAULT, Rope, rope_of, scaled
from poscli.system.errors import DataError, UsageError

GLOBAL, LOCAL = "full_attention", "sliding_attention"  # the two values in `layer_types`
Types = Callable[[Config, int], list[str]]  # the type of each of so many layers


def everywhere(config: Config, count: int) -> list[str]:
    """Every layer has the window, if there is one; `layer_types` is not read."""
    return [LOCAL if config.get("sliding_window") else GLOBAL] * count


def from_max_window_layers(config: Config, count: int) -> list[str]:
    """Qwen: the window is switched off by default; it begins at a certain layer, or where `layer_types` says."""
    if not (config.get("use_sliding_window", False) and config.get("sliding_window", 4096)):
        return [GLOBAL] * count
    first = config.get("max_window_layers", 28)
    return items(config, "layer_types") or [LOCAL if n >= first else GLOBAL for n in range(count)]


def every_sixth_global(config: Config, count: int) -> list[str]:
    """Gemma 3: five local layers, then a global one, or `layer_types`; another rhythm is `sliding_window_pattern`."""
    pattern = whole(config, ("sliding_window_pattern",), 6)  # `_sliding_window_pattern` is written, and not read
    return items(config, "layer_types") or [LOCAL if (n + 1) % pattern else GLOBAL for n in range(count)]


def where_not_rotated(config: Config, count: int) -> list[str]:
    """SmolLM3: the window is switched off by default; the layers without rotations have it, or those of a list."""
    if not (config.get("use_sliding_window", False) and config.get("sliding_window")):
        return [GLOBAL] * count
    return items(config, "layer_types") or [GLOBAL if flag else LOCAL for flag in rotated_layers(config, count)]


def without_window(config: Config, count: int) -> list[str]:
    """No layer has a window, whatever config.json says."""
    return [GLOBAL] * count


@dataclass(frozen=True, kw_only=True)
class Rotary(Kind):
    """Rope on all layers, but for those that a model type leaves out."""

    name = "rotary"
    rope: Rope = DEFAULT  # what transformers takes where config.json is silent
    local_theta: float | None = None  # theta of the layers with a window, where it is another one
    types: Types = everywhere
    window: int | None = None  # where config.json has no `sliding_window`
    skips: bool = False  # whether some layers may have no rotation: `no_rope_layers`
    refused: tuple[str, ...] = ()  # keys that change the scores in a way that poscli's attention does not

    def layers(self, config: Config, count: int, head_width: int, length: int) -> list[Layer]:
        self._refuse(config)
        config = config if self.window is None else {"sliding_window": self.window, **config}
        types = self.types(config, count)
        rotated = rotated_layers(config, count) if self.skips else [True] * count
        if len(types) != count:
            raise DataError(f"config.json lists {len(types)} layer_types for {count} layers; list one for each layer")
        return [self._layer(config, types[n], rotated[n], head_width, length) for n in range(count)]

    def _layer(self, config: Config, type_: str, rotated: bool, head_width: int, length: int) -> Layer:
        if type_ not in (GLOBAL, LOCAL):
            raise UsageError(f"config.json has a layer of type {type_!r}; poscli knows {GLOBAL} and {LOCAL}")
        found = Layer("none")
        if rotated:
            local = type_ == LOCAL and self.local_theta is not None
            parameters = rope_of(config, self.rope, type_, self.local_theta if local else None)
            found = scaled(parameters, self.rope.layout, head_width, length)
        if type_ == GLOBAL:
            return found
        window = whole(config, ("sliding_window",))
        return Layer(f"{found.spec}+window({window})" if rotated else f"window({window})", found.numbers)

    def _refuse(self, config: Config) -> None:
        if key := next((key for key in self.refused if config.get(key)), ""):
            raise UsageError(f"config.json says {key} = {config[key]!r}, which poscli's attention does not compute")


def rotated_layers(config: Config, count: int) -> list[bool]:
    """SmolLM3: 1 for a layer with rotations, 0 for one without; every fourth has none unless config.json says more."""
    given = items(config, "no_rope_layers")
    if given is not None:
        if len(given) < count:
            raise DataError(
                f"config.json lists {len(given)} no_rope_layers for {count} layers; list one for each layer"
            )
        return [bool(flag) for flag in given[:count]]
    interval = whole(config, ("no_rope_layer_interval",), 4)
    return [(n + 1) % interval != 0 for n in range(count)]


FALCON = Rotary(length=2048, types=without_window)

ROTARY: dict[str, Kind] = {
    "llama": Rotary(length=2048, types=without_window),
    "mistral": Rotary(length=131072, heads_of_keys=8, window=4096),
    "qwen2": Rotary(length=32768, heads_of_keys=32, types=from_max_window_layers, window=4096),
    "qwen3": Rotary(
        length=32768, heads_of_keys=32, head_width=128, types=from_max_window_layers, window=4096,
    ),
    "gemma": Rotary(length=8192, heads_of_keys=16, head_width=256, types=without_window),
    "gemma3_text": Rotary(
        length=131072, heads_of_keys=4, head_width=256, rope=Rope(theta=1e6), local_theta=1e4,
        types=every_sixth_global, window=4096,
        refused=("attn_logit_softcapping", "use_bidirectional_attention"),
    ),
    "olmo": Rotary(length=2048, types=without_window),
    "olmo2": Rotary(length=2048, types=without_window),
    "phi": Rotary(length=2048, rope=Rope(fraction=0.5), types=without_window),
    "phi3": Rotary(length=4096),
    "gpt_neox": Rotary(length=2048, rope=Rope(fraction=0.25), types=without_window),
    "smollm3": Rotary(length=32768, heads_of_keys=4, rope=Rope(theta=2e6), types=where_not_rotated, skips=True),
    "starcoder2": Rotary(length=4096, heads_of_keys=2),
    "granite": Rotary(length=2048, types=without_window),
}  # fmt: skip
