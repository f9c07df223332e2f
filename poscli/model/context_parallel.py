"""One long window that several ranks read together: each has the queries of some of its tokens.

The ranks form a chain. Each reads a consecutive part of the tokens, and attention is causal: a token needs the keys,
values and features of the tokens of its own rank and of the ranks before. So the parts travel up the chain, layer by
layer: a rank sends its own part to the next rank, then passes on those that it receives.

Shapes: B batch, T tokens of a part, H heads, D head width, F features, S tokens up to the last one of a rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from poscli.attention import Choice, Engine, Place, engines_for
from poscli.attention.arriving import ArrivingKeys
from poscli.config.run import ModelConfig
from poscli.equation import Encoding, Positions
from poscli.equation.grids import columns_of
from poscli.model.cache import Cache, LayerCache
from poscli.model.transformer import Model
from poscli.system.ranks import ranks

TOKENS_OF_FULL_ATTENTION = 2048  # attention to so many tokens costs as much as the rest of the model

Part = list[Tensor]  # keys, values, and features where the encoding has them, of the tokens of one rank


def refusal(config: ModelConfig, encodings: Iterable[Encoding]) -> str:
    """Why several ranks cannot read a window of a model together; '' if they can."""
    if config.memory:
        return "a model with a memory reads a window segment by segment, each after the one before"
    if rescaling := dict.fromkeys(encoding.name for encoding in encodings if encoding.rescales):
        return f"under {', '.join(rescaling)}, the keys of a token change with the number of tokens after it"
    return ""


def boundaries(tokens: int, count: int) -> list[int]:
    """The first token of each of `count` parts of a window, and its end, so that all parts take equally long.

    A token costs a constant, and attention to all tokens before it: the first a tokens cost a + a^2 / c, where c is
    `TOKENS_OF_FULL_ATTENTION`. Each part has at least one token.
    """
    assert tokens >= count
    c = TOKENS_OF_FULL_ATTENTION
    whole, ends = tokens + tokens**2 / c, [0]
    for part in range(1, count + 1):
        end = round((math.sqrt(c**2 + 4 * c * whole * part / count) - c) / 2)
        ends.append(min(max(end, ends[-1] + 1), tokens - (count - part)))
    return ends


def by_parts(choice: Choice, encoding: Encoding, place: Place) -> Choice:
    """The first engine that attends to the keys part by part as they come, or the given choice if none can."""
    found = [engine for engine in engines_for(encoding, place) if engine.in_parts and not choice.asked]
    return Choice(found[0]) if found else choice


@dataclass(frozen=True)
class Chain:
    """The ranks that read a window together, as one of them sees them.

    `ends` are the `boundaries` of their parts. `ready` is called before each exchange; it raises on all ranks if one of
    them cannot go on, so that none waits for ever.
    """

    rank: int
    ends: Sequence[int]
    ready: Callable[[], None]

    @property
    def own(self) -> slice:
        """The tokens of this rank."""
        return slice(self.ends[self.rank], self.ends[self.rank + 1])

    def exchange(self, own: Part, use: Callable[[int, Part], None]) -> None:
        """Call `use(first, part)` with the part of this rank, and then with that of each rank before it, nearest first.

        `first` is the first token of the part, which is valid during the call only. An error of `use` is raised at the
        end, because other ranks wait for the parts.
        """
        largest = max(b - a for a, b in zip(self.ends, self.ends[1:], strict=False))
        shared = [[x.new_empty(x[:, :, :1].numel() * largest) for x in own] for _ in range(min(2, self.rank))]
        self.ready()  # after the memory for all parts has been found
        part, failed = [x.contiguous() for x in own], None
        for source in range(self.rank, -1, -1):
            arriving = self._views(own, shared[source % len(shared)], source - 1) if source else []
            works = _post(part, self.rank + 1 if self.rank + 2 < len(self.ends) else None, arriving, self.rank - 1)
            try:
                if failed is None:
                    use(self.ends[source], part)
            except Exception as error:  # noqa: BLE001 - raised below, once the other ranks have the parts
                failed = error
            for work in works:
                work.wait()
            part = arriving
        if failed is not None:
            raise failed

    def _views(self, own: Part, shared: Part, source: int) -> Part:
        """Tensors for the part of another rank, in memory that is used again for others."""
        tokens = self.ends[source + 1] - self.ends[source]
        shapes = [(*x.shape[:2], tokens, *x.shape[3:]) for x in own]
        return [x[: math.prod(shape)].view(shape) for x, shape in zip(shared, shapes, strict=True)]


def _post(sent: Part, to: int | None, arriving: Part, source: int) -> list:
    """Begin to send tensors to a rank, if there is one, and to receive others from a rank."""
    import torch.distributed as dist

    posted = [dist.P2POp(dist.isend, x, to) for x in sent] if to is not None else []
    posted += [dist.P2POp(dist.irecv, x, source) for x in arriving]
    return dist.batch_isend_irecv(posted) if posted else []


@dataclass
class SharedLayer(LayerCache):
    """Keys, values and features of one layer, each rank's own and those that come up the chain. Nothing is kept."""

    chain: Chain = field(kw_only=True)

    def attend(
        self, engine: Engine, encoding: Encoding, new: Sequence[Tensor], features: Tensor | None, positions: Positions
    ) -> Tensor:
        """Attention output `[B, H, T, E]` of the tokens of this rank.

        Where the engine can, keys and values are used part by part as they come; features are few numbers.
        """
        q, k, v = new
        if not by_parts(
            Choice(engine), encoding, Place(q.device.type, q.dtype, q.shape[-1], gradient=False)
        ).engine.in_parts:
            return super().attend(engine, encoding, new, features, positions)
        f = None if features is None else self._gathered([features])[0]
        keys = ArrivingKeys(encoding, q, positions, f)
        self.chain.exchange([k, v], lambda first, part: keys.take(first, *part))
        return keys.output()

    def extend(self, k: Tensor, v: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """The keys, values and features of all tokens up to the last one of this rank, `[B, H, S, ...]`."""
        whole = self._gathered([k, v] if features is None else [k, v, features])
        return whole[0], whole[1], None if features is None else whole[2]

    def _gathered(self, own: Part) -> Part:
        """Tensors of all tokens up to the last one of this rank."""
        whole = [x.new_empty(*x.shape[:2], self.chain.own.stop, *x.shape[3:]) for x in own]

        def put(first: int, part: Part) -> None:
            for x, y in zip(whole, part, strict=True):
                x[:, :, first : first + y.shape[2]] = y

        self.chain.exchange(own, put)
        return whole


class ContextParallel:
    """A model of which this rank computes a part of every window, with the keys that come from the ranks before."""

    def __init__(self, model: Model, ready: Callable[[], None]) -> None:
        self.model, self.ready = model, ready

    @property
    def engine(self) -> str:
        """The engines that run, and the number of ranks."""
        names = [by_parts(a.choice, a.encoding, replace(a.place, gradient=False)).name for a in self.model.attention]
        return f"{'+'.join(dict.fromkeys(names))} ({ranks().count} ranks)"

    @property
    def engine_reason(self) -> str:
        """Why no faster engine runs; empty if the fastest one does."""
        return self.model.engine_reason

    def logits_in_slices(self, tokens_BT: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Logits `[B, T, V]` of the tokens of this rank, as one slice of those of the window."""
        tokens = tokens_BT.shape[1]
        chain = Chain(ranks().rank, boundaries(tokens, ranks().count), self.ready)
        layers: list[LayerCache] = [SharedLayer(chain=chain) for _ in self.model.layers]
        first = chain.own.start
        cache = Cache(layers, tokens=first, held=first, columns=columns_of(tokens))
        yield chain.own, self.model(tokens_BT[:, chain.own], cache=cache)
