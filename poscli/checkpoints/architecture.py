"""What the config.json of a checkpoint says about its positions, in poscli's terms: the sizes, and each layer's spec.

Nothing here imports torch or transformers. The file itself is read, and not what the installed version of transformers
makes of it: versions drop keys that others have written. `poscli card` compares the two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from poscli.checkpoints.scalings import DEFAULT, ORIGINAL, Rope, rope_of, spec_of_rope
from poscli.checkpoints.values import Config, items, positive_number, section, whole
from poscli.system.errors import DataError, UsageError

if TYPE_CHECKING:
    from poscli.equation import Shape


# The names under which model types know the same number.
WIDTH = ("n_embed", "hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
LENGTH = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
DUAL_CHUNKS = "dual_chunk_attention_config"  # of Qwen's models of a million tokens: attention in chunks, by vLLM alone


def lengths_of(model_type: str) -> tuple[str, ...]:
    """The keys of the trained length, the first that is there before the others.

    Command-R states a shorter length beside that of its training.
    """
    return ("model_max_length", *LENGTH) if model_type == "cohere" else LENGTH


def quantization_of(config: Config) -> str:
    """How the weights are quantised, such as `gptq, 4 bits`; "" if they are not."""
    by = section(config, "quantization_config")
    bits = by.get("bits") or (4 if by.get("load_in_4bit") else 8 if by.get("load_in_8bit") else None)
    return f"{by.get('quant_method', 'unknown method')}{f', {bits} bits' if bits else ''}" if by else ""


MOST_SIZE, MOST_LAYERS = 2**20, 10_000  # far above every published model; a larger number is a mistake
GLOBAL, LOCAL = "full_attention", "sliding_attention"  # the two values in `layer_types`
Types = Callable[[Config, int], list[str]]  # from a config.json and the number of layers to the type of each layer
Rotated = Callable[[Config, Sequence[str]], list[bool]]  # from these to whether each layer has rotations


@dataclass(frozen=True)
class LayerPositions:
    """The positions of one layer: a spec of poscli, and numbers that are too many for a spec, by name."""

    spec: str
    numbers: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PositionKind(ABC):
    """How model types state their positions in config.json."""

    name: str = "rotary"  # for people
    # What transformers takes where config.json has no such key.
    length: int | None = None  # tokens of the longest input
    heads_of_keys: int | None = None  # None: as many as heads of queries
    head_width: int | None = None  # None: the model's width over its heads

    @property
    def ropes_by_type(self) -> bool:
        """Whether config.json has a rope for each type of layer, and not one for all layers."""
        return False

    @abstractmethod
    def layers(self, config: Config, count: int, head_width: int, length: int) -> list[LayerPositions]:
        """The positions of each of `count` layers; DataError for values that cannot be, UsageError for unknown ones.

        `length` is L, the trained length, which may be another than config.json states.
        """

    def kv_heads(self, config: Config, heads: int) -> int:
        """The number of heads of keys and values, each of which serves several heads of queries."""
        key = "num_key_value_heads"  # null means as many as heads of queries, also where there is a default
        return whole({key: self.heads_of_keys, **config}, (key,), heads)


@dataclass(frozen=True, kw_only=True)
class Uniform(PositionKind):
    """One spec for all layers."""

    spec: Callable[[Config], str]

    def layers(self, config: Config, count: int, head_width: int, length: int) -> list[LayerPositions]:
        return [LayerPositions(self.spec(config))] * count


def alibi_of_mpt(config: Config) -> str:
    """ALiBi with slopes down to 2^-alibi_bias_max.

    transformers adds ALiBi to every MPT model, also where `attn_config.alibi` says that it has none, and always with
    slopes down to 2^-8.
    """
    return f"alibi(most={positive_number(section(config, 'attn_config'), 'alibi_bias_max', 8)})"


def without_window(config: Config, count: int) -> list[str]:
    """No layer has a window, whatever config.json says."""
    return [GLOBAL] * count


def everywhere(config: Config, count: int) -> list[str]:
    """Every layer has the window, if there is one; `layer_types` is not read."""
    return [LOCAL if config.get("sliding_window") else GLOBAL] * count


def where_used(config: Config, count: int) -> list[str]:
    """Qwen 3 with experts: every layer has the window, if it is switched on."""
    return (everywhere if config.get("use_sliding_window", False) else without_window)(config, count)


def listed_or_everywhere(config: Config, count: int) -> list[str]:
    """Ministral: `layer_types`, or every layer has the window, if there is one."""
    return items(config, "layer_types") or everywhere(config, count)


def _listed_or(config: Config, local: Iterable[bool]) -> list[str]:
    """`layer_types`; where config.json lists none, `local` says of each layer whether it has the window."""
    return items(config, "layer_types") or [LOCAL if each else GLOBAL for each in local]


def _all_but_every_nth(config: Config, count: int, n: int) -> list[str]:
    """`layer_types`, or all layers but every n-th have the window; `sliding_window_pattern` replaces n."""
    n = whole(config, ("sliding_window_pattern",), n)
    return _listed_or(config, ((layer + 1) % n != 0 for layer in range(count)))


def from_max_window_layers(config: Config, count: int) -> list[str]:
    """Qwen: if the window is switched on, layers have it from `max_window_layers` on, or those of `layer_types`."""
    if not (config.get("use_sliding_window", False) and config.get("sliding_window", 4096)):
        return [GLOBAL] * count
    first = whole(config, ("max_window_layers",), 28, least=0)
    return _listed_or(config, (n >= first for n in range(count)))


def every_sixth_global(config: Config, count: int) -> list[str]:
    """Gemma 3: five local layers, then a global one, or `layer_types`; another rhythm is `sliding_window_pattern`."""
    return _all_but_every_nth(config, count, 6)  # `_sliding_window_pattern` is written, and not read


def where_not_rotated(config: Config, count: int) -> list[str]:
    """SmolLM3: if the window is switched on, layers without rotations have it, or those of `layer_types`."""
    if not (config.get("use_sliding_window", False) and config.get("sliding_window")):
        return [GLOBAL] * count
    return items(config, "layer_types") or [
        GLOBAL if flag else LOCAL for flag in rotated_layers(config, [GLOBAL] * count)
    ]


def every_fourth_global(config: Config, count: int) -> list[str]:
    """Cohere 2, EXAONE 4, OLMo 3: three local layers, then a global one; a rhythm such as LLLG; or `layer_types`."""
    if config.get("sliding_window") is None:
        return _listed_or(config, [False] * count)
    rhythm = config.get("sliding_window_pattern")
    if isinstance(rhythm, str) and rhythm and set(rhythm) <= {"L", "G"}:
        return _listed_or(config, (rhythm[n % len(rhythm)] == "L" for n in range(count)))
    return _all_but_every_nth(config, count, 4)


def every_second_global(config: Config, count: int) -> list[str]:
    """gpt-oss: a local layer, then a global one; or `layer_types`."""
    return _listed_or(config, (n % 2 == 0 for n in range(count)))


def even_below_max_window_layers(config: Config, count: int) -> list[str]:
    """Qwen 2 with experts: if the window is on, every second layer before `max_window_layers`; or `layer_types`."""
    last = whole(config, ("max_window_layers",), 28, least=0) if config.get("use_sliding_window", False) else 0
    return _listed_or(config, (n % 2 == 0 and n < last for n in range(count)))


def from_max_window_layers_on(config: Config, count: int) -> list[str]:
    """dots.llm1: layers have the window from `max_window_layers` on, or those of `layer_types`."""
    first = whole(config, ("max_window_layers",), 62, least=0) if config.get("sliding_window") else count
    return _listed_or(config, (n >= first for n in range(count)))


@dataclass(frozen=True, kw_only=True)
class RotaryKind(PositionKind):
    """Rope on all layers, but for those that a model type leaves out."""

    rope: Rope = DEFAULT  # what transformers takes where config.json is silent
    local_theta: float | None = None  # theta of the layers with a window, where it is another one
    types: Types = without_window
    window: int | None = None  # where config.json has no `sliding_window`
    rotated: Rotated = lambda config, types: [True] * len(types)
    scales_windows: bool = True  # whether layers with a window are scaled too
    sinks: bool = False  # whether the softmax of every layer has a learned logit beside the keys
    refused: tuple[str, ...] = ()  # keys that change the scores in a way that poscli's attention does not

    @property
    def ropes_by_type(self) -> bool:
        return self.local_theta is not None or not self.scales_windows

    def layers(self, config: Config, count: int, head_width: int, length: int) -> list[LayerPositions]:
        if key := next((key for key in self.refused if config.get(key)), ""):
            raise UsageError(f"config.json says {key} = {config[key]!r}, which poscli's attention does not compute")
        config = config if self.window is None else {"sliding_window": self.window, **config}
        types = self.types(config, count)
        if len(types) != count:
            raise DataError(f"config.json lists {len(types)} layer_types for {count} layers; list one for each layer")
        rotated = self.rotated(config, types)
        return [self._layer(config, types[n], rotated[n], head_width, length) for n in range(count)]

    def _layer(self, config: Config, type_: str, rotated: bool, head_width: int, length: int) -> LayerPositions:
        if type_ not in (GLOBAL, LOCAL):
            raise UsageError(f"config.json has a layer of type {type_!r}; poscli knows {GLOBAL} and {LOCAL}")
        parts: list[str] = []
        numbers: Mapping[str, Sequence[float]] = {}
        if rotated:
            parameters = rope_of(config, self.rope, type_, self.local_theta if type_ == LOCAL else None)
            if type_ == LOCAL and not self.scales_windows:
                parameters = {key: parameters[key] for key in ("rope_theta", "partial_rotary_factor")}
                parameters["rope_type"] = "default"
            stated = whole(config, LENGTH, self.length)
            if self.local_theta is not None and parameters["rope_type"] == "linear":  # it is in the stated length
                before = stated / positive_number(parameters, "factor", 1.0)
                parameters = {ORIGINAL: max(1, round(before)), **parameters}
            spec, numbers = spec_of_rope(parameters, head_width, stated, length, self.rope.layout)
            parts.append(spec)
        if type_ == LOCAL:
            parts.append(f"window({whole(config, ('sliding_window',))})")
        if self.sinks:
            parts.append("sink-logit")
        return LayerPositions("+".join(parts) or "none", numbers)


def rotated_layers(config: Config, types: Sequence[str]) -> list[bool]:
    """SmolLM3: `no_rope_layers` has 1 for a layer with rotations, else 0; without this list every fourth has none."""
    flags, count = items(config, "no_rope_layers"), len(types)
    if flags is not None:
        if len(flags) < count:
            raise DataError(
                f"config.json lists {len(flags)} no_rope_layers for {count} layers; list one for each layer"
            )
        return [bool(flag) for flag in flags[:count]]
    interval = whole(config, ("no_rope_layer_interval",), 4)
    return [(n + 1) % interval != 0 for n in range(count)]


def where_windowed(config: Config, types: Sequence[str]) -> list[bool]:
    """EXAONE 4: only layers with a window are rotated, or all if there is no window."""
    return [type_ == LOCAL or config.get("sliding_window") is None for type_ in types]


@dataclass(frozen=True, kw_only=True)
class Falcon(RotaryKind):
    """ALiBi divided by sqrt(D), because it is added before the scale of the scores, or else rope."""

    def layers(self, config: Config, count: int, head_width: int, length: int) -> list[LayerPositions]:
        if config.get("alibi"):
            return [LayerPositions("alibi(before_scale=true)")] * count
        return super().layers(config, count, head_width, length)

    def kv_heads(self, config: Config, heads: int) -> int:
        if config.get("new_decoder_architecture"):
            return whole(config, ("num_kv_heads",), heads)
        return 1 if config.get("multi_query", True) else heads


# By model_type.
KINDS: dict[str, PositionKind] = {
    "llama": RotaryKind(length=2048),
    "mistral": RotaryKind(length=131072, heads_of_keys=8, types=everywhere, window=4096),
    "qwen2": RotaryKind(length=32768, heads_of_keys=32, types=from_max_window_layers, window=4096),
    "qwen3": RotaryKind(length=32768, heads_of_keys=32, head_width=128, types=from_max_window_layers, window=4096),
    "gemma": RotaryKind(length=8192, heads_of_keys=16, head_width=256),
    "gemma3_text": RotaryKind(
        length=131072, heads_of_keys=4, head_width=256, rope=Rope(theta=1e6), local_theta=1e4,
        types=every_sixth_global, window=4096,
        refused=("attn_logit_softcapping", "use_bidirectional_attention"),
    ),
    "olmo": RotaryKind(length=2048),
    "olmo2": RotaryKind(length=2048),
    "phi": RotaryKind(length=2048, rope=Rope(fraction=0.5)),
    "phi3": RotaryKind(length=4096, types=everywhere),
    "gpt_neox": RotaryKind(length=2048, rope=Rope(fraction=0.25)),
    "smollm3": RotaryKind(
        length=32768, heads_of_keys=4, rope=Rope(theta=2e6), types=where_not_rotated,
        rotated=rotated_layers,
    ),
    "starcoder2": RotaryKind(length=4096, heads_of_keys=2, types=everywhere),
    "granite": RotaryKind(length=2048),
    "arcee": RotaryKind(length=4096),
    "seed_oss": RotaryKind(length=524288, heads_of_keys=8, head_width=128),
    "ernie4_5": RotaryKind(length=131072, heads_of_keys=2, head_width=128, rope=Rope(theta=5e5, layout="interleaved")),
    "cohere": RotaryKind(length=8192, rope=Rope(layout="interleaved")),
    "cohere2": RotaryKind(
        length=8192, rope=Rope(layout="interleaved"), types=every_fourth_global, window=4096,
        rotated=lambda config, types: [type_ == LOCAL for type_ in types],
    ),
    "glm": RotaryKind(length=131072, heads_of_keys=2, head_width=128, rope=Rope(fraction=0.5, layout="interleaved")),
    "glm4": RotaryKind(length=131072, heads_of_keys=2, head_width=128, rope=Rope(fraction=0.5, layout="interleaved")),
    "helium": RotaryKind(length=4096, heads_of_keys=20, head_width=128, rope=Rope(theta=1e5, layout="interleaved")),
    "exaone4": RotaryKind(
        length=2048, heads_of_keys=32, types=every_fourth_global, window=4096, rotated=where_windowed,
    ),
    "olmo3": RotaryKind(length=2048, types=every_fourth_global, window=4096, scales_windows=False),
    "flex_olmo": RotaryKind(length=4096, rope=Rope(theta=5e5)),
    "mixtral": RotaryKind(length=131072, heads_of_keys=8, rope=Rope(theta=1e6), types=everywhere),
    "qwen3_moe": RotaryKind(length=32768, heads_of_keys=4, types=where_used, window=4096),
    "granitemoe": RotaryKind(length=2048),
    "gpt_oss": RotaryKind(
        length=131072, heads_of_keys=8, head_width=64, types=every_second_global, window=128, sinks=True,
        rope=Rope(
            theta=150000,
            scaling={
                "rope_type": "yarn", "factor": 32.0, ORIGINAL: 4096, "beta_fast": 32.0, "beta_slow": 1.0,
                "truncate": False,
            },
        ),
    ),
    "apertus": RotaryKind(
        length=65536,
        rope=Rope(
            theta=12e6,
            scaling={
                "rope_type": "llama3", "factor": 8.0, ORIGINAL: 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            },
        ),
    ),
    "dots1": RotaryKind(length=2048, heads_of_keys=32, types=from_max_window_layers_on, window=4096),
    "ministral": RotaryKind(length=131072, heads_of_keys=8, types=listed_or_everywhere, window=4096),
    "stablelm": RotaryKind(length=4096, heads_of_keys=32, rope=Rope(fraction=0.25)),
    "nemotron": RotaryKind(length=4096, rope=Rope(fraction=0.5)),
    "olmoe": RotaryKind(length=4096),
    "qwen2_moe": RotaryKind(length=32768, heads_of_keys=16, types=even_below_max_window_layers, window=4096),
    "bloom": Uniform(name="alibi", length=2048, spec=lambda config: "alibi"),
    "mpt": Uniform(name="alibi", length=2048, spec=alibi_of_mpt),
    "falcon": Falcon(name="alibi or rotary", length=2048),
    "gpt2": Uniform(name="learned", length=1024, spec=lambda config: "learned"),
    "opt": Uniform(name="learned", length=2048, spec=lambda config: "learned"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The sizes of a checkpoint's model, and the positions of each of its layers."""

    model_type: str
    kind: PositionKind
    layers: tuple[LayerPositions, ...]
    width: int  # of the residual stream
    heads: int
    kv_heads: int
    head_width: int
    vocab: int
    length: int  # L, the trained length in tokens: the one that was given, else the one that config.json promises

    @property
    def spec(self) -> str:
        """The positions as a spec of poscli: the encodings of the layers, in the shortest period that they have."""
        specs = [layer.spec for layer in self.layers]
        lengths = range(1, len(specs) + 1)
        period = next(length for length in lengths if all(spec == specs[n % length] for n, spec in enumerate(specs)))
        return "|".join(specs[:period])

    @property
    def shape(self) -> Shape:
        """The shape of poscli's encodings on all layers; its width is that of all heads together."""
        from poscli.equation import Shape  # imports torch

        return Shape(
            width=self.heads * self.head_width,
            heads=self.heads,
            layers=len(self.layers),
            length=self.length,
            vocab=self.vocab,
        )


def architecture(config: Config, length: int | None = None) -> Architecture:
    """What a config.json says; `length` is the trained length where that is another than it states.

    UsageError for a model type whose positions poscli does not know, DataError for numbers that make no model.
    """
    name = config.get("model_type")
    if not isinstance(name, str) or not name:
        raise UsageError("config.json has no model_type: it belongs to no model of transformers")
    if name not in KINDS:
        raise UsageError(
            f"poscli does not know the positions of models of type {name!r}; it knows {', '.join(sorted(KINDS))}"
        )
    kind = KINDS[name]
    width, heads = whole(config, WIDTH, most=MOST_SIZE), whole(config, HEADS, most=MOST_SIZE)
    head_width = whole(config, ("head_dim",), kind.head_width or width // heads, MOST_SIZE)
    if not head_width:
        raise DataError(f"config.json says {width} channels and {heads} heads, which leaves no channel for a head")
    length = length or whole(config, lengths_of(name), kind.length)
    layers = kind.layers(config, whole(config, LAYERS, most=MOST_LAYERS), head_width, length)
    return Architecture(
        model_type=name,
        kind=kind,
        layers=tuple(layers),
        width=width,
        heads=heads,
        kv_heads=kind.kv_heads(config, heads),
        head_width=head_width,
        vocab=whole(config, ("vocab_size",)),
        length=length,
    )
