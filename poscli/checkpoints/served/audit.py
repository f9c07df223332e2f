"""The audit of a served model: does it compute the positions that its config.json states, and how far does it read?

The same model is at hand, so that nothing is guessed. Both read short windows of text. If the server computes the
stated positions, its log-probabilities differ from those of the model at hand by rounding and quantisation. Every
theory of hypotheses.py is tried on half of the windows; the one that fits best is fitted further, and judged on the
other half. Then both read a passage behind growing amounts of other text: what breaks in both is the model's own limit,
and what breaks in one is the server's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import t, wilcoxon

from poscli.checkpoints.matrix import read_length
from poscli.checkpoints.models import checkpoint_at, load_checkpoint
from poscli.checkpoints.served.endpoint import Server, TooLongError, connect
from poscli.checkpoints.served.hypotheses import Theory, theories
from poscli.checkpoints.wanted import fixed
from poscli.config.run import RunConfig
from poscli.config.validate import LONGEST_WINDOW
from poscli.data import load_corpus
from poscli.evaluation.posthoc import spec_under, with_encoding
from poscli.model.language_model import LanguageModel
from poscli.system.device import device_of
from poscli.system.errors import DataError, UsageError
from poscli.system.progress import Meter

WINDOW = 512  # tokens that are read to compare log-probabilities, or the trained length if that is shorter
SCORED = 64  # of them at most, the last ones; also the tokens of the passage
SPARE = 8  # tokens by which an input is shorter than its length: SGLang takes no prompt within six of its context
FITTED, JUDGED = 2, 2  # windows on which theories are fitted, and others on which the best one is judged
STEPS = 24  # evaluations of a theory while its numbers are fitted
CHANCE = 1e-3  # the probability of chance below which another theory is preferred
CLEARER = 0.7  # ... and its residuals at most this share of those of the stated positions
ALIKE = 0.9  # the least correlation of log-probabilities of one model, however it is quantised
UNEXPLAINED = 0.5  # nats (root mean square): more than quantisation to 4 bits makes, which is 0.06 to 0.13
# A model breaks where the loss is this many nats per token above that in the shortest input (99 %, one-sided).
BREAK = 0.1
# Times the difference in short texts, and nats: rounding does not make more in long ones. llama.cpp's server with
# SmolLM2 at 4 bits has 0.10, 0.09 and 0.12 nats after 512, 2048 and 4096 tokens; if it cut them to 1024, 0.34.
LONGER, LEAST = 3, 0.1
BISECTIONS = 3
LEARNED = "learned"  # positions that end with the trained length, for the model at hand too

Windows = list[list[int]]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class LongRead:
    """A passage behind other text."""

    tokens: int  # in all, the passage's included
    served: float | None  # nats per token of the passage; None if the server refuses so many tokens
    own: float  # ... by the model at hand, under the positions that explain the server best
    refusal: str = ""


@dataclass(frozen=True)
class ServerFault:
    """What a server does otherwise than config.json says."""

    name: str
    said: str


@dataclass(frozen=True)
class Audit:
    """What was found."""

    url: str
    program: str
    served: str  # the server's name of the model
    model: str
    expected: str  # the spec that config.json states
    explains: str  # the spec that explains the server best
    residual: float  # nats: root mean square difference of the server from `expected`
    residual_explained: float  # ... from `explains`
    correlation: float  # of the log-probabilities of the server with those of `explains`
    length: int  # L
    target: int
    breaks: int | None  # tokens from which the passage's loss is higher, None if it is nowhere
    readings: tuple[LongRead, ...]
    faults: tuple[ServerFault, ...]


@dataclass(frozen=True, eq=False)
class Texts:
    """Text of the held-out part of a corpus, as tokens."""

    windows: Windows  # to compare
    passage: list[int]
    other: list[int]  # what is put in front of the passage
    opening: tuple[int, ...]  # the token that opens every text, if there is one

    def behind(self, tokens: int) -> list[int]:
        """Other text and then the passage, `tokens - SPARE` in all."""
        before = tokens - len(self.passage) - len(self.opening) - SPARE
        return [*self.opening, *self.other[:before], *self.passage]


def audit_texts(corpus: str, tokenizer: str, length: int, target: int) -> Texts:
    """The texts of an audit of inputs of `target` tokens; DataError if the corpus is too short."""
    built = load_corpus(corpus, tokenizer=tokenizer)
    opening = (built.tokenizer.end,) if built.tokenizer.opens else ()
    size = min(WINDOW, length)
    scored = min(SCORED, size // 4)
    count = FITTED + JUDGED
    tokens = built.valid.tokens
    needed = target + (count + 1) * size
    if len(tokens) < needed:
        raise DataError(
            f"the corpus {built.spec} holds out {len(tokens)} tokens, and an audit of {target} needs {needed}; give a "
            "longer text with --corpus, or a lower --target"
        )
    gap = (len(tokens) - target) // (count + 1)
    rest = tokens[target:]
    inside = size - len(opening) - SPARE
    windows = [[*opening, *rest[n * gap : n * gap + inside].tolist()] for n in range(count)]
    passage = rest[count * gap : count * gap + scored].tolist()
    return Texts(windows, passage, tokens[:target].tolist(), opening)


class Auditor:
    """A server, and the model at hand that it should be; inputs of up to `target` tokens are tried."""

    def __init__(
        self, server: Server, model: LanguageModel, config: RunConfig, expected: str, words: Texts, target: int
    ) -> None:
        """`config` is what the model was loaded by, and `expected` the spec that the server should have."""
        assert config.checkpoint is not None
        self.server, self.model, self.words, self.target = server, model, words, target
        self.config, self.name, self.expected = config, config.checkpoint.name, expected
        self.scored = len(words.passage)
        self._own: dict[tuple[str, tuple[int, ...]], Values] = {}

    @torch.inference_mode()
    def own(self, spec: str, tokens: Sequence[int]) -> Values:
        """The log-probabilities, in nats, of the last tokens of an input by the model at hand under a spec.

        They are computed once and kept.
        """
        key = spec, tuple(tokens)
        if key not in self._own:
            trained = self.config.encoding
            model = self.model if spec == trained else with_encoding(self.model, spec, trained)
            ids_1T = torch.tensor(tokens, device=model.device)[None]
            parts = [part for _, part in model.logits_in_slices(ids_1T[:, :-1], self.scored)]
            log_probs_TV = torch.cat(parts, dim=1)[0].double().log_softmax(-1)
            self._own[key] = log_probs_TV.gather(1, ids_1T[0, -self.scored :, None])[:, 0].cpu().numpy()
        return self._own[key]

    def served(self) -> list[Values]:
        """The server's log-probabilities of the last tokens of each window; UsageError if they are too long for it."""
        try:
            return [self.server.log_probs(window, self.scored) for window in self.words.windows]
        except TooLongError as error:
            needed = len(self.words.windows[0]) + SPARE
            raise UsageError(f"an audit needs a context of {needed} tokens: {error}") from error

    def explained(self, served: list[Values]) -> tuple[Theory | None, str, list[float]]:
        """The theory that explains the server better than the stated positions, its spec and its numbers.

        Without one the theory is None, and the spec that of the stated positions.
        """
        fitted, judged = served[:FITTED], served[FITTED:]
        first, others = self.words.windows[:FITTED], self.words.windows[FITTED:]

        def spec_of(theory: Theory, numbers: Sequence[float]) -> str:
            return spec_under(self.config, theory.spec(numbers))

        offered = []
        for theory in theories(self.expected, self.config.length):
            try:
                offered.append((theory, spec_of(theory, theory.start)))
            except UsageError:
                continue  # the model cannot read under it
        best, numbers = None, list[float]()
        least = rms(self.residuals(self.expected, first, fitted))
        with Meter("audit: compare", len(offered)) as progress:
            for theory, spec in offered:
                differ = rms(self.residuals(spec, first, fitted))
                progress.advance(1, theory.fault)
                if differ < least:
                    best, least = theory, differ
        if best is None:
            return None, self.expected, []
        if best.start:
            numbers = self.fit(lambda x: spec_of(best, x), best.start, fitted)
        spec = spec_of(best, numbers)
        before, after = self.residuals(self.expected, others, judged), self.residuals(spec, others, judged)
        chance = wilcoxon(np.abs(before), np.abs(after), alternative="greater").pvalue
        if rms(after) > CLEARER * rms(before) or chance > CHANCE:
            return None, self.expected, []
        return best, spec, numbers

    def residuals(self, spec: str, windows: Windows, served: list[Values]) -> Values:
        """The server's log-probabilities minus those of the model at hand under a spec, for all windows together."""
        pairs = zip(windows, served, strict=True)
        return np.concatenate([values - self.own(spec, window) for window, values in pairs])

    def fit(
        self, spec_of: Callable[[Sequence[float]], str], start: Sequence[float], served: list[Values]
    ) -> list[float]:
        """The numbers of a theory under which the residuals are smallest, to about one part in a hundred."""
        with Meter("audit: fit", STEPS) as progress:

            def loss(logs: Values) -> float:
                progress.advance(1, ", ".join(f"{number:.4g}" for number in np.exp(logs)))
                try:
                    spec = spec_of(np.exp(logs).tolist())
                except UsageError:  # a number that the encoding does not take, such as a factor below 1
                    return np.inf
                return float(np.log(rms(self.residuals(spec, self.words.windows[:FITTED], served))))

            options = {"maxfev": STEPS, "xatol": 0.01, "fatol": 1e-3, "initial_simplex": _simplex(np.log(start))}
            fitted = minimize(loss, np.log(start), method="Nelder-Mead", options=options)
        return [float(f"{number:.4g}") for number in np.exp(fitted.x)]

    def curve(self, spec: str) -> Iterator[tuple[LongRead, Values | None, Values]]:
        """Read the passage behind growing amounts of other text.

        With each come the server's log-probabilities, None if it refuses the input, and those of the model at hand.
        """
        lengths = self.lengths
        with Meter("audit: read", sum(lengths)) as progress:
            for tokens in lengths:
                ids = self.words.behind(tokens)
                served, refusal = None, ""
                try:
                    served = self.server.log_probs(ids, self.scored)
                except TooLongError as error:
                    refusal = str(error)
                own = self.own(spec, ids)
                progress.advance(tokens, f"{tokens} tokens")
                mean = None if served is None else -float(served.mean())
                yield LongRead(tokens, mean, -float(own.mean()), refusal), served, own

    @property
    def lengths(self) -> list[int]:
        """The lengths of the inputs that end with the passage, in tokens: a window, L/2, L and the target."""
        length, window = self.model.shape.length, len(self.words.windows[0]) + SPARE
        return sorted({n for n in (window, length // 2, length, self.target) if window <= n <= self.target})

    def broken(self, least: Values, whole: int, broken: int) -> int:
        """About how long inputs must be for the server to break, by bisection.

        `least` are its log-probabilities at the end of a short text. It does not break at `whole` tokens, and does at
        `broken`.
        """
        for _ in range(BISECTIONS):
            middle = (whole + broken) // 2
            if clearly_lower(self.server.log_probs(self.words.behind(middle), self.scored), least):
                broken = middle
            else:
                whole = middle
        return broken


def audited(auditor: Auditor) -> Audit:
    """Compare the server with the model at hand on short windows, then behind growing amounts of other text.

    UsageError if the server reads no window, DataError if it fails or serves another model on the way.
    """
    served = auditor.served()
    theory, spec, numbers = auditor.explained(served)
    server, words, expected = auditor.server, auditor.words, auditor.expected
    residual, explained = (rms(auditor.residuals(each, words.windows, served)) for each in (expected, spec))
    both = np.array([np.concatenate([auditor.own(spec, window) for window in words.windows]), np.concatenate(served)])
    correlation = float(np.corrcoef(both)[0, 1]) if np.ptp(both, axis=1).all() else 0.0
    faults = list[ServerFault]()
    if correlation < ALIKE:
        said = (
            f"its log-probabilities correlate by {correlation:.2f} with those of {auditor.name}, under the best of "
            "the positions that were tried: it serves another model, or reads other tokens"
        )
        faults.append(ServerFault("other weights", said))
    elif theory is not None:
        faults.append(ServerFault(theory.fault, theory.said(numbers)))
    elif explained > UNEXPLAINED:
        said = (
            f"its log-probabilities differ by {explained:.2f} nats from those of {auditor.name}, more than 4 bits "
            "per weight do, and no mistake in its positions that is known explains it"
        )
        faults.append(ServerFault("unexplained", said))
    read = list(auditor.curve(spec))
    again = server.log_probs(words.windows[0], auditor.scored)
    if np.abs(again - served[0]).max() > max(1.0, 10 * explained):
        raise DataError(f"{server.url} gives other log-probabilities than before: it changed its model")
    breaks = None
    (_, least, own_least), whole = read[0], read[0][0].tokens
    assert least is not None  # as long as a window, which it has read before
    for reading, values, ours in read:
        if values is None:
            faults.append(ServerFault("cap", f"it does not read {reading.tokens} tokens ({reading.refusal})"))
            break
        if not faults and (wrong := _of_long_inputs(reading, values, ours, own_least, explained)):
            faults.append(ServerFault("long inputs", wrong))
        if breaks is None and clearly_lower(values, least):
            breaks = auditor.broken(least, whole, reading.tokens)
        whole = reading.tokens
    return Audit(
        url=server.url,
        program=server.program,
        served=server.model,
        model=auditor.name,
        expected=expected,
        explains=spec,
        residual=residual,
        residual_explained=explained,
        correlation=correlation,
        length=auditor.model.shape.length,
        target=auditor.target,
        breaks=breaks,
        readings=tuple(reading for reading, _, _ in read),
        faults=tuple(faults),
    )


def _of_long_inputs(read: LongRead, served: Values, own: Values, least: Values, explained: float) -> str:
    """What is wrong with a server's log-probabilities at the end of a long input; "" if nothing is.

    `own` are those of the model at hand, and `least` its log-probabilities at the end of a short text, from which the
    server's differ by `explained` nats.
    """
    said = f"at the end of {read.tokens} tokens "
    if clearly_lower(own, least):  # the model itself breaks, and both are mostly chance
        if 2 * -served.mean() > -own.mean() - least.mean():
            return ""
        return f"{said}its loss is {read.served:.2f} nats, and should be {read.own:.2f}: it reads less than it was sent"
    differ = rms(served - own)
    if differ <= max(LONGER * explained, LEAST):
        return ""
    return (
        f"{said}its log-probabilities differ by {differ:.2f} nats from those here, and by {explained:.2f} in short "
        "texts: it reads less than it was sent, or computes other positions in long inputs"
    )


def _as_served(as_: str, spec: str, length: int, longest: int, *, named: bool) -> str:
    """The spec of `--as` with the factors that a server computes, which has one for inputs of all lengths.

    A factor that it leaves out is the one for `longest` tokens, if the user has `named` them and they are more than the
    trained `length`; else UsageError, for the factor would follow from a length that nobody had in mind.
    """
    written = fixed(spec, length, longest)
    if written != fixed(spec, length, 2 * longest) and (not named or longest <= length):
        raise UsageError(
            f"--as {as_} names no factor, and a server has one for inputs of all lengths; write the one that it was "
            f"started with, as in 'yarn(factor=4)', or give the length that it is for, a --target above {length}"
        )
    return written


def _simplex(start: Values) -> Values:
    """Where the search begins: the start, and a third more of each number."""
    return np.array([start, *(start + np.log(1.35) * row for row in np.eye(len(start)))])


def rms(values: Values) -> float:
    """The root mean square of some numbers."""
    return float(np.sqrt(np.square(values).mean()))


def clearly_lower(values: Values, least: Values) -> bool:
    """Whether log-probabilities are lower than others by `BREAK` nats on average, beyond doubt (99 %, one-sided)."""
    more = least - values
    return bool(more.mean() - t.ppf(0.99, len(more) - 1) * more.std(ddof=1) / len(more) ** 0.5 > BREAK)


def audit_verdict(audit: Audit) -> str:
    """The answer in a sentence or two."""
    if audit.faults:
        said = "; ".join(fault.said for fault in audit.faults)
        text = f"{audit.url} does not serve {audit.model} as it should: {said}."
    else:
        text = f"{audit.url} serves {audit.model} as it should, with {audit.expected}, and reads {audit.target} tokens."
    if audit.breaks is not None:
        text += f" From about {audit.breaks} tokens on it understands less; the model was trained on {audit.length}."
    return text


def open_audit(
    url: str, model: str, *, as_: str | None, target: str | None, served: str | None, corpus: str, device_name: str
) -> tuple[Auditor, float]:
    """The audit that a command line asks for, and about how many seconds it takes.

    UsageError, DataError or CorruptError, each in a line, for what cannot be audited.
    """
    server = connect(url, served)
    device = device_of(device_name)
    config = checkpoint_at(model, device, corpus=corpus).run
    assert config.checkpoint is not None
    length = config.length
    expected = config.encoding if as_ is None else spec_under(config, as_)
    least, most = min(WINDOW, length), length if expected == LEARNED else LONGEST_WINDOW
    # Unless it says otherwise, a server is to read what config.json promises.
    longest = read_length(target, length) if target else max(length, min(server.context or length, 2 * length, most))
    if not least <= longest <= most:
        end = ", where its learned positions end" if expected == LEARNED else ""
        raise UsageError(f"--target {target} is {longest} tokens, and must be between {least} and {most}{end}")
    if as_ is not None:
        expected = _as_served(as_, expected, length, longest, named=target is not None)
    words = audit_texts(config.corpus, config.tokenizer, length, longest)
    held = load_checkpoint(config, device)
    auditor = Auditor(server, held, config, expected, words, longest)
    start = time.perf_counter()
    auditor.own(expected, words.windows[0])
    measured = time.perf_counter() - start
    passes = 2 * (FITTED + JUDGED) + FITTED * len(theories(expected, length)) + 1
    window, parameters = len(words.windows[0]), config.checkpoint.parameters
    reach = config.model.layers * config.model.width  # multiplications per token of input and token that it sees
    effort = sum(n / window * (parameters + reach * n) / (parameters + reach * window) for n in auditor.lengths)
    # The server is taken to be as fast as this machine.
    return auditor, measured * (passes + 2 * effort)
