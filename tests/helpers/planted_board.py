"""Cells of a made-up board: encodings whose losses are planted, with the noise of seeds and of documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from poscli.board.cells import PER_NAT, Cell, MadeBy, Scored, documents_file, write_kept
from poscli.board.scaling import Size, size_of
from poscli.board.season import STAR, Season, current_season, season_of
from poscli.statistics.comparison import LN2

TOKENS, BYTES = 16, 36  # of each document
ORIGIN = MadeBy(
    poscli="0", commit="c0ffee", code="a b", machine="here", cpu="cpu", torch="2", date="2026-01-01T00:00:00Z"
)
SEED_SD, DOCUMENT_SD = 0.01, 0.2  # bits per byte


def plant(
    folder: Path,
    losses: Mapping[str, Sequence[float]],
    *,
    seeds: int = 3,
    documents: int = 40,
    trained_long: float = 1.5,
    seed_sd: float = SEED_SD,
    document_sd: float = DOCUMENT_SD,
    draw: int = 0,
    table: str = "",
    texts: Sequence[str] = (),
    season: Season | None = None,
    date: str = ORIGIN.date,
    source: str = "5eed",
) -> Season:
    """Write cells of encodings with these losses in bits per byte, at L and at 16 L, and of one model trained at 16 L.

    Losses at the lengths between lie between, or are given too. `trained_long` is the loss of the model that was
    trained at 16 L, by the name of `rope`, if the table has such. The season is the current one unless another is
    given; it is returned.
    """
    season = season or current_season()
    of_table = season.table_named(table or season.table[0].name)
    short = season.training_of(of_table).length
    assert short is not None
    long = season.extrapolate.max_len if of_table.ceilings else 16 * short
    assert isinstance(long, int)
    doublings = tuple(short << n for n in range((long // short).bit_length()))
    random = np.random.default_rng(draw)
    for text in texts or season.scored:
        scored = Scored(
            season=season.name,
            text=text,
            fingerprint=text,
            units=tuple(map(str, range(documents))),
            tokens=(TOKENS,) * documents,
            bytes=(BYTES,) * documents,
        )
        write_kept(folder / documents_file(scored), scored)
        hard = random.normal(0, 0.5, documents)
        for seed in season.seeds(seeds):
            luck = random.normal(0, seed_sd)
            planted = [(name, short, losses[name]) for name in losses]
            planted += [("rope", long, (trained_long,))] if of_table.ceilings else []
            for name, at, bits in planted:
                lengths = doublings if at == short else (long,)
                own = luck + random.normal(0, seed_sd) + random.normal(0, document_sd, documents) + hard
                levels = np.interp(np.arange(len(lengths)), np.linspace(0, len(lengths) - 1, len(bits)), bits)
                nats = (levels[:, None] + own) * BYTES * LN2
                cell = Cell(
                    season=season.name,
                    table=of_table.name,
                    configuration=f"at{at}",
                    encoding=name,
                    source=source,
                    trained_at=at,
                    seed=seed,
                    text=text,
                    documents=scored.key,
                    lengths=lengths,
                    status=("ok",) * len(lengths),
                    hundredths=tuple(tuple(round(PER_NAT * n) for n in line) for line in nats.tolist()),
                    parameters=1000,
                    origin=ORIGIN.model_copy(update={"date": date}),
                )
                write_kept(folder / cell.file, cell)
    return season


def plant_star(folder: Path, losses: Callable[[Size], Mapping[str, Sequence[float]]], documents: int = 4) -> None:
    """Write cells of the star without noise: `losses` are those of models of a size, as in `plant`."""
    star = season_of(STAR)
    for table in star.table:
        planted = losses(size_of(star, table))
        plant(folder, planted, table=table.name, season=star, seeds=1, documents=documents, seed_sd=0, document_sd=0)
