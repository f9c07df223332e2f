"""A checkpoint as a model: transformers' own layers, with poscli's encodings in the place of their positions.

Whatever a model type does with positions is switched off where it does it, and poscli's attention runs in the place of
its attention. So the weights, norms and layers are those of transformers, and every encoding that a model can take acts
on the outputs of its projections. Loading a checkpoint compares the logits of both.

Most model types call a function that is registered under a name, and get their rotations from a module, which is made
to return angles of zero. BLOOM, MPT and Falcon compute attention in their own code, one function per type below; they
also build masks of T x T numbers before the first layer, so that the loop over their layers is replaced as well.

Shapes: B windows, T tokens, H heads, G heads of keys and values, D head width, W model width, V vocabulary.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from poscli.attention import Choice, Engine, Place, attend, choose
from poscli.checkpoints.architecture import Architecture
from poscli.checkpoints.source import config_in
from poscli.checkpoints.spread import devices_of_layers, on_devices, placement, weight_of
from poscli.config.size import SLICE_NUMBERS
from poscli.equation import Encoding, Positions, Shape
from poscli.equation.composed import leaf_encodings
from poscli.model.cache import Cache, LayerCache
from poscli.specs import build, parse
from poscli.system.console import warn_once
from poscli.system.errors import DataError, UsageError

# Models whose fused attention does not read all keys of config.json in some versions. (Falcon's eager attention, by
# contrast, adds ALiBi twice in version 4.57.)
EAGER = ("gpt2",)
SINK = "sink-logit"  # the encoding whose numbers the attention modules of gpt-oss hold
MOST_SAID = 300  # characters of what transformers says of a checkpoint that it cannot load


def stock_model(folder: Path, dtype: torch.dtype | None, device: torch.device) -> Any:
    """The model as transformers loads it: safetensors only, no code from the checkpoint, nothing from the network.

    Where its weights do not fit on the GPU and any will do, its layers are spread over all. `dtype` None keeps the
    number format of its weights. DataError if transformers cannot load it, or if the weight files lack a tensor of the
    model or have it in another shape, where transformers would fill in random numbers.
    """
    import transformers

    kind, places = config_in(folder).get("model_type"), placement(folder, dtype, device)
    try:
        with quiet():
            loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                dtype="auto" if dtype is None else dtype,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused below
                **({"attn_implementation": "eager"} if kind in EAGER else {}),
                **places,
            )
            model, report = loaded
            model = (model if places else model.to(device)).eval().requires_grad_(False)
    except Exception as error:  # transformers checks little, and what a damaged file makes it raise can be anything
        raise _refusal(folder, error) from error
    missing, unused = report["missing_keys"], report["unexpected_keys"]
    if other_shapes := report["mismatched_keys"]:  # names, in transformers 5 together with both shapes
        names = [each if isinstance(each, str) else each[0] for each in other_shapes]
        raise DataError(
            f"{len(names)} of the tensors in the weight files of {folder} have other shapes than config.json "
            f"describes, such as {min(names)}: they do not belong together; fetch the checkpoint again"
        )
    if missing:
        raise DataError(
            f"the weight files of {folder} lack {len(missing)} of the tensors of the model that config.json describes, "
            f"such as {min(missing)}: they do not belong together, or a file is missing; fetch the checkpoint again"
        )
    if unused:
        warn_once(
            f"the model that config.json of {folder} describes has no use for {len(unused)} of the tensors in the "
            f"weight files, such as {min(unused)}"
        )
    return model


def stock_logits(stock: Any, tokens_BT: Tensor, folder: Path) -> Tensor:
    """The logits of a stock model as it was loaded; DataError if it cannot run, or if they are not finite."""
    try:
        with torch.inference_mode(), quiet():
            logits_BTV = stock(input_ids=tokens_BT, use_cache=False).logits.double()
    except Exception as error:  # of numbers in config.json that fit no model
        raise _refusal(folder, error) from error
    if not logits_BTV.isfinite().all():
        kind = str(next(stock.parameters()).dtype).removeprefix("torch.")
        cause = "its weights are damaged; fetch them again"
        if kind != "float32":
            cause = f"its weights are damaged, or too large for {kind}; try the precision float32"
        raise DataError(f"{folder} has logits that are no finite numbers: {cause}")
    return logits_BTV


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings and progress bars of transformers: poscli has its own words for what they say."""
    from transformers.utils import logging as theirs

    logger, bars = logging.getLogger("transformers"), theirs.is_progress_bar_enabled()
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    theirs.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
        if bars:
            theirs.enable_progress_bar()


def _refusal(folder: Path, error: Exception) -> DataError:
    """The error for a checkpoint with which transformers fails."""
    import transformers

    said = " ".join(str(error).split())[:MOST_SAID] or "it gives no reason"
    return DataError(f"transformers {transformers.__version__} cannot use {folder}: {type(error).__name__}: {said}")


@dataclass
class Seats:
    """Where attention of the stock model finds the encoding of its layer, and the positions of the current input.

    With `past`, the input goes on after tokens whose keys and values it holds, one part per layer; those of the input
    are added to it. The positions are those of all tokens.
    """

    head_width: int
    encodings: Sequence[Encoding] = ()
    positions: dict[int, Positions] = field(default_factory=dict)
    tokens: int = 0  # of the input
    past: Sequence[LayerCache] = ()
    wanted: Engine | None = None  # the engine to use; None: the fastest that can run an encoding

    def attend(self, layer: int, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, scaling: float) -> Tensor:
        """Attention output `[B, H, T, D]` from the outputs of the projections; `scaling` is the factor on q . k."""
        encoding, dtype = self.encodings[layer], q_BHTD.dtype
        shared = q_BHTD.shape[1] // k_BGTD.shape[1]
        q_BHTD, k_BGTD, v_BGTD = (x.to(attention_dtype(x)) for x in (q_BHTD, k_BGTD, v_BGTD))
        if (ratio := scaling / encoding.scale) != 1:
            q_BHTD = q_BHTD * ratio
        engine, positions = self.choice(encoding, q_BHTD).engine, self.positions[id(encoding)]
        if self.past:
            new = (q_BHTD, k_BGTD, v_BGTD)
            return self.past[layer].attend(engine, encoding, new, None, positions, shared).to(dtype)
        k_BHTD, v_BHTD = (x.repeat_interleave(shared, dim=1) for x in (k_BGTD, v_BGTD))
        return attend(engine, encoding, q_BHTD, k_BHTD, v_BHTD, positions).to(dtype)

    def choice(self, encoding: Encoding, like: Tensor) -> Choice:
        """The engine that runs an encoding where a tensor is."""
        device, dtype = like.device, attention_dtype(like)
        place = Place(device.type, dtype, self.head_width, gradient=False, here=device)
        return choose(encoding, self.wanted, place)


def attention_dtype(like: Tensor) -> torch.dtype:
    """The number format of attention: float32 on CPU, where kernels in half precision are slow, else the model's."""
    return torch.float32 if like.device.type == "cpu" else like.dtype


def trunk_of(stock: Any) -> Any:
    """The stock model without its head.

    (Gemma 3 in version 4 of transformers calls itself its base model, and the head of OPT calls a part of it.)
    """
    trunk = stock.base_model
    trunk = stock.model if trunk is stock else trunk
    return getattr(trunk, "decoder", trunk)


def head(stock: Any, tokens_BT: Tensor, states_BTW: Any) -> Tensor:
    """The logits of the stock model for states that its layers have computed.

    This is the model's own code after its layers, whatever it is (a factor, a cap, a norm): only the layers are
    replaced, by a function that returns the states.
    """
    from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions as Output

    output = Output(last_hidden_state=states_BTW)
    output.router_logits = None  # models with experts ask for it
    with replaced(trunk_of(stock), "forward", lambda *_, **__: output):
        return stock(input_ids=tokens_BT, use_cache=False).logits


@contextmanager
def replaced(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    """Replace a method of one module in a block."""
    before = vars(module).get(name)
    setattr(module, name, value)
    try:
        yield
    finally:
        if before is None:
            delattr(module, name)
        else:
            setattr(module, name, before)


NAME = "poscli"  # of the attention function registered with transformers
SEATS = "poscli_seats"  # the attribute under which an attention module finds the encodings

Trunk = Callable[[Any, Tensor], Tensor]  # from a model without its head and token ids [B, T] to states [B, T, W]


def install(stock: Any, seats: Seats) -> None:
    """Make a stock model run on the encodings of `seats`; UsageError if its attention cannot be replaced."""
    model_type, trunk = stock.config.model_type, trunk_of(stock)
    if model_type in OWN_ATTENTION:
        attention, run = OWN_ATTENTION[model_type]
        for n, layer in enumerate(trunk.blocks if hasattr(trunk, "blocks") else trunk.h):
            module = layer.self_attention if hasattr(layer, "self_attention") else layer.attn
            module.forward = partial(attention, module, seats, n)
        trunk.forward = partial(_without_masks, trunk, run)
        return
    from transformers import AttentionInterface, AttentionMaskInterface, __version__

    if not hasattr(import_module(type(trunk).__module__), "ALL_ATTENTION_FUNCTIONS"):
        raise UsageError(
            f"transformers {__version__} computes attention of models of type {model_type} in their own code, which "
            "poscli cannot replace; transformers 5 does not: pip install 'transformers>=5'"
        )
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, lambda *_, **__: None)  # attention is causal without a mask
    stock.config._attn_implementation = NAME
    for module in trunk.modules():
        if hasattr(module, "layer_idx") and "Attention" in type(module).__name__:
            setattr(module, SEATS, seats)
        if type(module).__name__.endswith("RotaryEmbedding"):
            module.forward = partial(_unrotated, module.forward)
        if hasattr(module, "_update_causal_mask"):  # OPT in version 4 builds a mask of T x T numbers
            module._update_causal_mask = lambda *_, **__: None
    if (table := _table_of(trunk)) is not None:
        table.forward = partial(_embedded, table, seats)


def _attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **given: Any) -> tuple[Tensor, None]:
    """The function that model types call in the place of their attention; returns `[B, T, H, D]`."""
    if given.get("softcap") is not None:
        raise UsageError(f"{type(module).__name__} caps its scores, which poscli does not compute")
    scaling = given.get("scaling")
    if scaling is None:  # GPT-2 before version 5.4 applies its own factors in its eager attention only
        scaling = query.shape[-1] ** -0.5 if getattr(module, "scale_attn_weights", True) else 1.0
        scaling /= module.layer_idx + 1 if getattr(module, "scale_attn_by_inverse_layer_idx", False) else 1
    o_BHTD = getattr(module, SEATS).attend(module.layer_idx, query, key, value, scaling)
    return o_BHTD.transpose(1, 2).contiguous(), None


def _unrotated(forward: Callable[..., tuple[Tensor, Tensor]], *given: Any, **named: Any) -> tuple[Tensor, Tensor]:
    """The cos and sin of angles of zero, in the shape that a rotary module returns."""
    cos, sin = forward(*given, **named)
    return torch.ones_like(cos), torch.zeros_like(sin)


def _table_of(trunk: Any) -> Any:
    """The module of learned positions that GPT-2 (`wpe`) and OPT add to the token embeddings; others have None."""
    return getattr(trunk, "wpe", None) or getattr(trunk, "embed_positions", None)


def _embedded(table: nn.Embedding, seats: Seats, *_: Any, **__: Any) -> Tensor:
    """What the first encoding's blank `embed` adds to every token's embedding, `[1, T, W]`; zeros if it has none."""
    first = seats.encodings[0]
    pos = seats.positions[id(first)].pos[-seats.tokens :]
    nothing = torch.zeros(1, len(pos), table.embedding_dim, dtype=table.weight.dtype, device=pos.device)
    ids = torch.zeros(1, len(pos), dtype=torch.long, device=pos.device)
    return first.embed(nothing, pos, ids) if "embed" in first.blanks else nothing


@dataclass(frozen=True, eq=False)
class LearnedPositions:
    """The numbers among a checkpoint's weights that belong to its positions."""

    table: Tensor | None = None  # the rows of learned positions, [L, W]
    sinks: Sequence[Tensor] = ()  # of each layer, the logit [H] beside the keys


def learned_of(stock: Any) -> LearnedPositions:
    """What the layers of a stock model have learned of positions."""
    trunk = trunk_of(stock)
    if (table := _table_of(trunk)) is not None:
        rows = weight_of(table, "weight")
        return LearnedPositions(rows[getattr(table, "offset", 0) :])  # OPT has rows before the first position
    attentions: list[Any] = [getattr(layer, "self_attn", None) for layer in getattr(trunk, "layers", ())]
    return LearnedPositions(sinks=[weight_of(each, "sinks") for each in attentions if hasattr(each, "sinks")])


def _without_masks(trunk: Any, run: Trunk, input_ids: Tensor, **_: Any) -> Any:
    """What the model without its head returns, computed by `run`, which builds no masks."""
    from transformers.modeling_outputs import BaseModelOutputWithPast

    states: Any = run(trunk, input_ids)
    return BaseModelOutputWithPast(last_hidden_state=states)


def _bloom_or_falcon(trunk: Any, ids_BT: Tensor) -> Tensor:
    x_BTW = trunk.word_embeddings(ids_BT)
    if hasattr(trunk, "word_embeddings_layernorm"):  # of BLOOM
        x_BTW = trunk.word_embeddings_layernorm(x_BTW)
    for block in trunk.h:
        x_BTW = block(x_BTW, alibi=None, attention_mask=None)[0]
    return trunk.ln_f(x_BTW)


def _bloom_attention(
    module: Any, seats: Seats, layer: int, hidden_states: Tensor, residual: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, None]:
    q, k, v = module._reshape(module.query_key_value(hidden_states))
    o_BHTD = seats.attend(layer, q, k, v, module.inv_norm_factor)
    return module.dense(_merged(o_BHTD)) + residual, None


def _mpt(trunk: Any, ids_BT: Tensor) -> Tensor:
    x_BTW = trunk.wte(ids_BT)
    for block in trunk.blocks:
        x_BTW = block(x_BTW, position_bias=None, attention_mask=None)[0]
    return trunk.norm_f(x_BTW)


def _mpt_attention(module: Any, seats: Seats, layer: int, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
    mixed = module.Wqkv(hidden_states)
    if module.clip_qkv:
        mixed = mixed.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    q, k, v = (x.unflatten(2, (module.n_heads, -1)).transpose(1, 2) for x in mixed.chunk(3, dim=2))
    return module.out_proj(_merged(seats.attend(layer, q, k, v, module.softmax_scale))), None


def _falcon_attention(module: Any, seats: Seats, layer: int, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
    q, k, v = (x.transpose(1, 2) for x in module._split_heads(module.query_key_value(hidden_states)))
    o_BHTD = seats.attend(layer, q, k, v, 1 / math.sqrt(module.head_dim))
    return module.dense(_merged(o_BHTD)), None


def _merged(o_BHTD: Tensor) -> Tensor:
    """The outputs of all heads beside each other, `[B, T, HD]`."""
    return o_BHTD.transpose(1, 2).flatten(2)


# By model type: the attention of a layer, and the model without its head, in the place of transformers' own code.
OWN_ATTENTION: dict[str, tuple[Callable[..., Any], Trunk]] = {
    "bloom": (_bloom_attention, _bloom_or_falcon),
    "mpt": (_mpt_attention, _mpt),
    "falcon": (_falcon_attention, _bloom_or_falcon),
}


CHECKED_TOKENS = 48  # of the text on which both are compared, at most; never above the trained length
# The largest difference that is taken for rounding, as root mean square over the standard deviation of the logits: 16
# times the machine epsilon of the number format, at least 0.001. Layers amplify rounding; a wrong base of rope changes
# logits by a tenth and more.
ROUNDING_UNITS, LEAST = 16, 1e-3


class CheckpointModel:
    """A loaded checkpoint under one encoding per layer. Several of them may share a stock model."""

    def __init__(
        self,
        stock: Any,
        seats: Seats,
        architecture: Architecture,
        encodings: Sequence[Encoding],
        wanted: Engine | None = None,
    ) -> None:
        self.stock, self.architecture, self._seats = stock, architecture, seats
        self._devices = devices_of_layers(trunk_of(stock))
        self.encodings, self.wanted = on_devices(encodings, self._devices), wanted

    @property
    def shape(self) -> Shape:
        return self.architecture.shape

    @property
    def device(self) -> torch.device:
        return next(self.stock.parameters()).device

    @property
    def attention_dtype(self) -> torch.dtype:
        return attention_dtype(next(self.stock.parameters()))

    @property
    def engine(self) -> str:
        return "+".join(dict.fromkeys(choice.name for choice in self._choices()))

    @property
    def engine_reason(self) -> str:
        return "; ".join(dict.fromkeys(choice.reason for choice in self._choices() if choice.reason))

    def _choices(self) -> list[Choice]:
        like = next(self.stock.parameters())
        return [self._seats.choice(encoding, like) for encoding in self.encodings]

    def under(self, encodings: Sequence[Encoding], engine: Engine | None = None) -> Self:
        return type(self)(self.stock, self._seats, self.architecture, encodings, engine)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The weights of the stock model."""
        yield from self.stock.parameters()

    def __call__(self, tokens_BT: Tensor, *, cache: Cache | None = None) -> Tensor:
        """Logits `[B, T, V]` of all tokens."""
        return torch.cat([logits for _, logits in self.logits_in_slices(tokens_BT, cache=cache)], dim=1)

    def logits_in_slices(
        self, tokens_BT: Tensor, last: int | None = None, *, cache: Cache | None = None
    ) -> Iterator[tuple[slice, Tensor]]:
        first_of_last = 0 if last is None else -last
        states_BTW, tokens_BT = self.states(tokens_BT, cache)[:, first_of_last:], tokens_BT[:, first_of_last:]
        step = max(1, SLICE_NUMBERS // (len(tokens_BT) * self.architecture.vocab))
        for first in range(0, tokens_BT.shape[1], step):
            part = slice(first, first + step)
            yield part, head(self.stock, tokens_BT[:, part], states_BTW[:, part])

    def states(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """The last layer's output `[B, T, W]`, as the head takes it; with a cache, of tokens that continue its text.

        Keys in a cache have no positions until an encoding of this model gives them some. In a copy of another model's
        cache (`Cache.for_others`), keys and values were computed from hidden states under that model's encodings, and
        only the positions are those of this model.
        """
        places = zip(self.encodings, self._devices, strict=True)
        distinct = {id(encoding): (encoding, device) for encoding, device in places}
        seats, tokens = self._seats, tokens_BT.shape[1]
        seats.encodings, seats.tokens, seats.wanted = self.encodings, tokens, self.wanted
        seats.past = () if cache is None else cache.extended(len(self.encodings), tokens)
        held = tokens if cache is None else cache.held
        seats.positions = {key: encoding.locate(held, device) for key, (encoding, device) in distinct.items()}
        try:
            return trunk_of(self.stock)(input_ids=tokens_BT, use_cache=False).last_hidden_state
        finally:
            seats.past = ()


def refuse_other_layers(stock: Any, known: Architecture, folder: Path) -> None:
    """DataError if transformers has made another number of layers than the config.json in a folder states."""
    if (made := len(devices_of_layers(trunk_of(stock)))) != (stated := len(known.layers)):
        raise DataError(
            f"the config.json of {folder} states {stated} layers, and transformers makes {made}; keep one key for the "
            "number of layers, with that of the layers in the weights"
        )


def load_checked(
    folder: Path, architecture: Architecture, device: torch.device, dtype: torch.dtype | None
) -> CheckpointModel:
    """The checkpoint in a folder, under its own positions; `dtype` None keeps the number format of its weights.

    DataError if transformers cannot read it, or if its logits are others once poscli computes the positions.
    """
    stock = stock_model(folder, dtype, device)
    count = min(CHECKED_TOKENS, architecture.length)
    tokens_BT = torch.arange(count, device=device)[None] * 37 % architecture.vocab
    refuse_other_layers(stock, architecture, folder)
    expected = stock_logits(stock, tokens_BT, folder)
    model = converted(stock, architecture)
    with torch.inference_mode():
        difference = relative_difference(model(tokens_BT).double(), expected)
    allowed = max(LEAST, ROUNDING_UNITS * torch.finfo(next(stock.parameters()).dtype).eps)
    if not difference <= allowed:
        raise DataError(
            f"{folder}: with the positions that config.json states, {architecture.spec}, the logits differ from those "
            f"of transformers by {difference:.2g} of their spread, where rounding explains {allowed:.2g}; "
            "`poscli card` says what transformers reads otherwise"
        )
    return model


def converted(stock: Any, architecture: Architecture) -> CheckpointModel:
    """A stock model of transformers under its own positions, computed by poscli from now on."""
    seats = Seats(architecture.head_width)
    install(stock, seats)
    model = CheckpointModel(stock, seats, architecture, ())
    return model.under(own_encodings(architecture, model.device, learned_of(stock)))


def own_encodings(architecture: Architecture, device: torch.device, learned: LearnedPositions) -> list[Encoding]:
    """The encodings of a checkpoint's layers, with the numbers that config.json and the weights give them."""
    built = build(parse(architecture.spec), architecture.shape, seed=0)
    for n, (encoding, layer) in enumerate(zip(built, architecture.layers, strict=True)):
        part: Any
        for part in leaf_encodings(encoding):
            if layer.numbers and hasattr(part, "use_factors"):
                part.use_factors(*(torch.tensor(layer.numbers[name]) for name in ("short_factor", "long_factor")))
            if learned.table is not None and hasattr(part, "table"):
                part.table = nn.Parameter(learned.table[: architecture.length], requires_grad=False)
            if learned.sinks and part.name == SINK:
                part.b = nn.Parameter(learned.sinks[n].to(attention_dtype(learned.sinks[n])), requires_grad=False)
    return [encoding.to(device).eval().requires_grad_(False) for encoding in built]


def relative_difference(logits: Tensor, expected: Tensor) -> float:
    """The root mean square of the difference over the standard deviation of what is expected."""
    return float((logits - expected).square().mean().sqrt() / (expected.std() + 1e-30))
