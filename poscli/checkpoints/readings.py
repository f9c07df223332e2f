"""A checkpoint's positions in numbers, as config.json states them and as the installed transformers computes them.

The numbers of a layer are the speed at which each pair of channels turns, the factor on cos and sin, and the window.

The same numbers are taken from encodings of poscli and from transformers, so that they can be compared. No weights are
needed: transformers reads config.json and builds the model without memory for them. Only the modules that compute
rotations are then built once more, with memory, for each length of text, because some keep what they computed for the
last text.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from poscli.checkpoints.architecture import LOCAL, Architecture, LayerPositions
from poscli.checkpoints.checkpoint_model import LearnedPositions, own_encodings, quiet
from poscli.checkpoints.scalings import ORIGINAL
from poscli.checkpoints.values import Config, section
from poscli.equation import Encoding
from poscli.equation.composed import leaf_encodings
from poscli.system.errors import UsageError

FAR_APART = 2.0  # between factor * original and the stated length; both are rounded by people
FAR = 4  # times the trained length: the text in which scalings that depend on the length are compared
ROUNDING = 1e-5  # relative: transformers computes in float32, whose error is below 2e-6 for any theta


@dataclass(frozen=True)
class Turns:
    """What a layer does to queries and keys in a text of some length."""

    speeds: tuple[float, ...]  # radians per token of each pair of channels; none without rotations
    amplitude: float = 1.0  # the factor on cos and sin

    def difference(self, other: Turns, length: int) -> str:
        """How the turns of `other` differ from these, in words, for texts of `length` tokens; "" if they do not."""
        if len(self.speeds) != len(other.speeds):
            return f"{len(other.speeds)} pairs of channels turn where config.json states {len(self.speeds)}"
        words, pairs = [], list(zip(self.speeds, other.speeds, strict=True))
        if any(abs(turned - pair) > ROUNDING * pair for pair, turned in pairs):
            furthest = max(
                (turned / pair for pair, turned in pairs if pair), key=lambda ratio: abs(ratio - 1), default=1
            )
            radians = length * max(abs(turned - pair) for pair, turned in pairs)
            words.append(
                f"a pair of channels turns {furthest:.4g} times as fast as config.json states, so that angles are off "
                f"by up to {radians:.3g} radians at {length}"
            )
        if abs(self.amplitude - other.amplitude) > ROUNDING * self.amplitude:
            words.append(f"cos and sin are multiplied by {other.amplitude:.4g} in place of {self.amplitude:.4g}")
        return ", and ".join(words)


@dataclass(frozen=True)
class LayerNumbers:
    """The positions of one layer in numbers."""

    short: Turns  # in a text of one token
    long: Turns  # in a text of FAR times the trained length
    window: int | None  # the last tokens that a query sees; None for all


@dataclass(frozen=True)
class OwnLayer:
    """A layer's positions as config.json states them, and the encoding of poscli that computes them."""

    layer: LayerPositions
    encoding: Encoding

    @cached_property
    def rotation(self) -> Any:
        """The part of the encoding that turns queries and keys; None without rotations."""
        parts = leaf_encodings(self.encoding)
        return next((part for part in parts if hasattr(part, "theta") and hasattr(part, "amplitude")), None)

    @cached_property
    def measured(self) -> LayerNumbers:
        return LayerNumbers(self.turns(1), self.turns(FAR * self.encoding.shape.length), self.window)

    @property
    def window(self) -> int | None:
        return self.encoding.reach if "reach" in self.encoding.blanks else None

    def turns(self, tokens: int) -> Turns:
        """The speeds of the pairs and the factor on cos and sin, in a text of this many tokens."""
        if self.rotation is None:
            return Turns(())
        last = torch.tensor([tokens - 1])
        amplitude = torch.as_tensor(self.rotation.amplitude(last), dtype=torch.float64)
        return Turns(tuple(self.rotation.theta(last).tolist()), float(amplitude.flatten()[0]))

    @property
    def theta(self) -> float | None:
        """The base of the rotations."""
        return None if self.rotation is None else float(self.rotation.base)

    @property
    def factor(self) -> float:
        """How many times longer a text may be than before the scaling; 1 without one."""
        return float(getattr(self.rotation, "factor", None) or 1.0)

    @property
    def original(self) -> int:
        """The trained length before the scaling."""
        return int(getattr(self.rotation, "original", None) or self.encoding.shape.length)

    @property
    def never_turning(self) -> int:
        """The number of pairs that do not turn once within the trained length: longer texts have angles new to them."""
        length = self.encoding.shape.length
        return sum(speed * length < 2 * math.pi for speed in self.turns(length).speeds)

    @property
    def slowest_wavelength(self) -> float | None:
        """The number of tokens in which the slowest pair turns once; None without rotations, or if it never turns."""
        speeds = self.turns(self.encoding.shape.length).speeds
        return 2 * math.pi / min(speeds) if speeds and min(speeds) > 0 else None


def own_layers(architecture: Architecture) -> list[OwnLayer]:
    """Each layer of the checkpoint; layers with equal positions are one object."""
    made: dict[str, OwnLayer] = {}
    for layer in architecture.layers:
        key = repr(layer)
        if key not in made:
            (encoding,) = own_encodings(replace(architecture, layers=(layer,)), torch.device("cpu"), LearnedPositions())
            made[key] = OwnLayer(layer, encoding)
    return [made[repr(layer)] for layer in architecture.layers]


@dataclass(frozen=True)
class Stock:
    """The reading of the installed transformers."""

    version: str
    layers: tuple[LayerNumbers, ...] = ()
    refusal: str = ""  # why it cannot make a model of the file, in which case there are no layers

    @property
    def name(self) -> str:
        return f"transformers {self.version}"

    def before(self, *version: int) -> bool:
        """Whether it is older than a version, such as 5, 4."""
        return tuple(int(part) for part in self.version.split(".")[:2]) < version


def stock_reading(folder: Path, length: int) -> Stock:
    """How transformers reads the config.json of a folder; `length` is the trained length.

    UsageError if transformers is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise UsageError(
            "poscli card compares with transformers, which is missing: pip install transformers"
        ) from error
    try:
        with quiet():
            return Stock(transformers.__version__, tuple(_read_layers(folder, length)))
    except Exception as error:  # noqa: BLE001 - whatever a library raises on a configuration is the finding
        said = " ".join(str(error).split()) or "no message"
        return Stock(transformers.__version__, refusal=f"{type(error).__name__}: {said}")


def _read_layers(folder: Path, length: int) -> Iterator[LayerNumbers]:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"), _GivenNumbers():
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    known: dict[tuple[str, str], tuple[Turns, Turns]] = {}
    for attention in attentions(model):
        name, layer_type = rotation_of(model, attention)
        if (name, layer_type) not in known:
            module = model.get_submodule(name) if name else None
            known[name, layer_type] = (_turns(module, layer_type, 1), _turns(module, layer_type, FAR * length))
        yield LayerNumbers(*known[name, layer_type], window_of(attention))


class _GivenNumbers(TorchFunctionMode):
    """Tensors made of given numbers have memory: Apertus in version 4 reads one again while it is built."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return func(*args, **({"device": "cpu"} | kwargs if func is torch.tensor else kwargs))


def attentions(model: Any) -> list[Any]:
    """The attention modules of a stock model, one for each layer, in order."""
    modules = [module for module in model.modules() if type(module).__name__.endswith("Attention")]
    return [module for module in modules if hasattr(module, "layer_idx")] or modules


def rotation_of(model: Any, attention: Any) -> tuple[str, str]:
    """The name of the module that turns a layer's queries and keys, and the layer's type if the module asks for it.

    Both are "" for a layer without rotations.
    """
    rotations = {name: each for name, each in model.named_modules() if type(each).__name__.endswith("RotaryEmbedding")}
    if not rotations or getattr(model.config, "alibi", False) or not _rotates(attention):
        return "", ""
    local = LOCAL in (getattr(attention, "attention_type", ""), getattr(attention, "layer_type", ""))
    local = bool(getattr(attention, "is_sliding", local))
    # Gemma 3 and OLMo 3 in version 4 have two modules.
    by_locality = {name.endswith(("_local", f".{LOCAL}")): name for name in rotations}
    name = by_locality.get(local) or next(iter(rotations))
    asks = "layer_type" in inspect.signature(inspect.unwrap(type(rotations[name]).forward)).parameters
    return name, getattr(attention, "layer_type", "") or attention.attention_type if asks else ""


def _rotates(attention: Any) -> bool:
    """Whether a layer uses the rotations that it is given."""
    name = type(attention).__name__
    if name == "Cohere2Attention":
        return attention.sliding_window is not None
    if name == "Exaone4Attention":
        return attention.sliding_window is None or bool(attention.is_sliding)
    return bool(getattr(attention, "use_rope", True))


def turns_now(module: Any, layer_type: str) -> Turns:
    """The numbers that a module of rotations holds at the moment."""
    prefix = f"{layer_type}_" if layer_type else ""
    speeds, amplitude = getattr(module, f"{prefix}inv_freq"), getattr(module, f"{prefix}attention_scaling")
    return Turns(tuple(speeds.double().tolist()), float(amplitude))


def window_of(attention: Any) -> int | None:
    """The window of a layer, which some classes hold themselves and others look up in the configuration."""
    if hasattr(attention, "sliding_window"):
        window = attention.sliding_window if getattr(attention, "is_sliding", True) else None
    else:
        types = getattr(getattr(attention, "config", None), "layer_types", None)
        reads = types[attention.layer_idx] == LOCAL if types else "sliding_window" in inspect.getsource(type(attention))
        window = getattr(attention.config, "sliding_window", None) if reads else None
    return None if window is None else int(window)


def _turns(module: Any, layer_type: str, tokens: int) -> Turns:
    """What a fresh module of this class does in a text of this many tokens."""
    if module is None:
        return Turns(())
    typed = "rope_type" in inspect.signature(type(module)).parameters  # OLMo 3 in version 4
    fresh = type(module)(config=module.config, **({"rope_type": module.rope_type} if typed else {}))
    fresh(torch.zeros(1), torch.tensor([[tokens - 1]]), *([layer_type] if layer_type else []))
    return turns_now(fresh, layer_type)


@dataclass(frozen=True)
class Scaling:
    """One object with parameters of rope in config.json."""

    where: str  # such as `rope_scaling` or `rope_parameters.full_attention`
    parameters: dict[str, Any]
    original: float | None  # the trained length before the scaling, wherever config.json has it
    length: int  # that config.json states

    @property
    def kind(self) -> str:
        return str(self.parameters.get("rope_type") or self.parameters.get("type") or "default")

    @property
    def layer_type(self) -> str:
        """The type of layer that has these parameters; "" for those of all layers."""
        return self.where.partition(".")[2]

    def number(self, key: str) -> float | None:
        """The value of a key; None if it is not a number."""
        return number_in(self.parameters, key)

    @property
    def factor(self) -> float | None:
        return self.number("factor")

    @property
    def theta(self) -> float | None:
        return self.number("rope_theta")

    @property
    def reach(self) -> float:
        """The length after the scaling: the factor times the one before it; 0 if one of these is not stated."""
        return (self.factor or 0) * (self.original or 0)

    @property
    def growth(self) -> float:
        """The stated length divided by the one before the scaling."""
        return self.length / (self.original or self.length)

    @property
    def contradicts_length(self) -> bool:
        """Whether the stated length is far from the factor times the length before the scaling."""
        if not self.reach or self.length == self.original:
            return False
        if self.kind == "yarn" and (self.original or 0) < self.length < self.reach:
            return False  # Qwen's pages ask for it, and leave the length between the two as it is
        return not 1 / FAR_APART <= self.length / self.reach <= FAR_APART


@dataclass(frozen=True)
class Readings:
    """A checkpoint as three readers see it: config.json as written, poscli's reading of it, and transformers'."""

    config: Config
    architecture: Architecture
    layers: tuple[OwnLayer, ...]
    stock: Stock
    tokenizer_limit: int | None = None

    @cached_property
    def scalings(self) -> list[Scaling]:
        at_top, scalings = number_in(self.config, ORIGINAL), []
        for where, parameters in rope_dictionaries(self.config).items():
            original = number_in(parameters, ORIGINAL) if at_top is None else at_top
            scalings.append(Scaling(where, parameters, original, self.length))
        return scalings

    @property
    def model_type(self) -> str:
        return self.architecture.model_type

    @property
    def length(self) -> int:
        return self.architecture.length

    @property
    def promised(self) -> int:
        """The longest text for which the positions are made: a scaling reaches beyond the trained length."""
        scaled = [layer for layer in self.layers if "llama3" not in layer.layer.spec]  # whose factor is for slow pairs
        return max([self.length, *(round(layer.factor * layer.original) for layer in scaled)])

    @property
    def layer_types(self) -> tuple[str, ...]:
        """`layer_types` of config.json; empty if it is not a list of words."""
        types = self.config.get("layer_types")
        return tuple(each for each in types if isinstance(each, str)) if isinstance(types, list) else ()

    @property
    def window_switch(self) -> Any:
        return self.config.get("use_sliding_window", False)

    @property
    def attn_config(self) -> dict[str, Any]:
        """The object in which MPT has the parameters of attention."""
        return section(self.config, "attn_config")

    @property
    def writer(self) -> str:
        """The version of transformers that wrote config.json."""
        return str(self.config.get("transformers_version", "VERSION"))

    @property
    def rotates(self) -> bool:
        """Whether any layer turns queries and keys."""
        return any(layer.rotation is not None for layer in self.layers)

    @property
    def windowed(self) -> bool:
        """Whether any layer has a window."""
        return any(layer.window for layer in self.layers)


def number_in(values: Mapping[str, Any], key: str) -> float | None:
    """The value of a key; None if it is not a number."""
    value = values.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def rope_dictionaries(config: Config) -> dict[str, dict[str, Any]]:
    """Every object with parameters of rope in config.json, by the name under which it stands.

    transformers 4 has `rope_scaling`, version 5 `rope_parameters`, which may hold one object for each type of layer.
    """
    dictionaries: dict[str, dict[str, Any]] = {}
    for name in ("rope_scaling", "rope_parameters"):
        parameters = config.get(name)
        if not isinstance(parameters, dict):
            continue
        nested = {key: value for key, value in parameters.items() if isinstance(value, dict)}
        dictionaries |= {f"{name}.{key}": value for key, value in nested.items()}
        if flat := {key: value for key, value in parameters.items() if key not in nested}:
            dictionaries[name] = flat
    return dictionaries


def ranges(numbers: Sequence[int]) -> str:
    """Numbers in order as ranges.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
