"""What the pages of the board say of an encoding beside its numbers: family, tier, kernels, options, and commands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from poscli.attention import Place
from poscli.attention.engines import engine_named
from poscli.board.season import Season, SeasonTable
from poscli.board.standings import Row
from poscli.config.request import TrainRequest
from poscli.config.run import PRESETS
from poscli.config.validate import write_count
from poscli.encodings import get
from poscli.equation.blanks import TIERS, not_computed_by
from poscli.report.catalogue import OTHER, Described, describe_spec, spec_in_label
from poscli.runs.repair import command_line, evaluation_options
from poscli.specs import parse
from poscli.specs.build import abstract
from poscli.specs.grammar import text_of
from poscli.system.errors import UsageError

FLASH, FLEX = "FlashAttention", "FlexAttention"
WINDOWED = {"reach"}  # what kernels of flash attention have beside queries, keys and values: a sliding window
ON_GPU = Place(device="cuda", gradient=False)


@dataclass(frozen=True)
class KnownOfSpec:
    """What is known of a spec from the classes that it names.

    `tier` is the highest that a layer touches, and `kernels` are those that compute every layer of it on a GPU; both
    are empty for an encoding that is not registered. `options` are those that differ from their defaults.
    """

    described: Described
    tier: str
    kernels: tuple[str, ...]
    options: tuple[str, ...]


@cache
def about(spec: str, length: int) -> KnownOfSpec:
    """What is known of a spec at a training length L; one that names a file is not parsed, so that no file is run."""
    described = describe_spec(spec)
    if described.family == OTHER:
        return KnownOfSpec(described, "", (), ())
    try:
        parsed = parse(spec)
        model = PRESETS["copy"].model_copy(update={"layers": len(parsed.layers)})
        layers = abstract(parsed, model.shape(length))
    except UsageError:  # an option that this version does not have
        return KnownOfSpec(described, "", (), ())
    filled = [layer.blanks for layer in layers]
    kernels = [FLASH] if all(set(not_computed_by(FLASH, blanks)) <= WINDOWED for blanks in filled) else []
    if not any(engine_named("flex").refuses(layer, ON_GPU) for layer in layers):
        kernels.append(FLEX)
    options = dict.fromkeys(
        f"{leaf.name}: {key} = {text_of(value)}, by default {text_of(get(leaf.name).options()[key].default)}"
        for leaves in parsed.layers
        for leaf in leaves
        for key, value in leaf.options
    )
    tier = max((layer.tier for layer in layers), key=TIERS.index)
    return KnownOfSpec(described, tier, tuple(kernels), tuple(options))


def commands_of(row: Row, season: Season, table: SeasonTable) -> str:
    """The commands that train the models of a row of a table and score them on the season's texts."""
    words = _options(season.training_of(table))
    for name, value in sorted(row.rates.items()):
        words += ["--set", f"{name}={value!r}"]
    train = command_line("poscli", "train", "--enc", row.trained_as, *words)
    seeds = " ".join(map(str, season.seeds(max(1, row.seeds))))
    asked = season.scoring_of(table).model_dump(include={"max_len", "tokens", "stride", "ngram"})
    scored = evaluation_options(asked, spec_in_label(row.encoding) if row.is_reading else "")
    texts = [word for text in season.scored for word in ("--on", text)]
    return (
        f"for seed in {seeds}; do {train} --seed $seed; done && "
        f"{command_line('poscli', 'extrapolate', '--enc', row.trained_as, *scored, *texts)}"
    )


def _options(request: TrainRequest) -> list[object]:
    """The options of `poscli train` for what a request sets."""
    words: list[object] = []
    for name in TrainRequest.model_fields:
        value = getattr(request, name)
        if name not in request.model_fields_set or value is None:
            continue
        if isinstance(value, dict):
            flag = "--set {}={}" if name == "recipe" else "--{} {}"
            words += [word for key, each in value.items() for word in flag.format(key, each).split(" ")]
        else:
            words += [f"--{name}", write_count(value) if name == "tokens" else value]
    return words
