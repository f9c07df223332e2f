"""How often --why names the cause of a failure whose cause is known: for maintainers.

    poscli run suites/planted.toml
    python benchmarks/planted.py results/planted

reads what --why measured of every run of suites/planted.toml (in results/runs, or another folder of runs as a second
argument) and writes to the folder verdicts.csv, a row for each run, and confusion.md, planted causes by found causes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from poscli.config.suite import load_suite
from poscli.encodings import get
from poscli.runs.results import explanations_of
from poscli.runs.run import Run, open_run
from poscli.specs import parse
from poscli.sweep.job import jobs_of
from poscli.why.attribution import CAUSES, causes, open_changes, what_breaks

SUITE = Path(__file__).parents[1] / "suites" / "planted.toml"
NOTHING = "nothing"


def in_order(names: list[str]) -> str:
    """Causes in the order of CAUSES, in words."""
    return " and ".join(cause for cause in CAUSES.values() if cause in names) or NOTHING


def planted_in(spec: str) -> str:
    """The causes of the plants in a spec, by their attribute `cause`."""
    (layer,) = parse(spec).layers
    return in_order([getattr(get(leaf.name), "cause", "") for leaf in layer])


def verdict(run: Run) -> dict[str, str | float]:
    """What was planted in a run, what --why says, the harm in nats, and the share of it that each change explains."""
    rows = explanations_of(run)["why/attribution"].to_dict("records")
    config, by_change = run.config, {row["change"]: row for row in rows}
    found = [] if (said := what_breaks(rows)) == "does not break" else causes(rows).enough
    shares = {change: by_change[change]["share"] for change in CAUSES}
    return {
        "encoding": config.encoding,
        "seed": config.seed,
        "planted": planted_in(config.encoding),
        "found": in_order(found),
        "open": in_order([CAUSES[change] for change in open_changes(rows)]),
        "harm": by_change["full"]["harm"],
        **shares,
        "said": said,
    }


def spread(values: pd.Series) -> str:
    """The mean over seeds, with the least and the most; `-` where a change is void."""
    least, mean, most = values.min(), values.mean(), values.max()
    return f"{mean:.2f} ({least:.2f} to {most:.2f})" if values.notna().all() else "-"


def table(rows: pd.DataFrame) -> str:
    """A table with its index as the first column, in Markdown."""
    lines = [[rows.index.name, *rows.columns], ["---", *["---:"] * len(rows.columns)]]
    lines += [[name, *values] for name, *values in rows.itertuples()]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def confusion(verdicts: pd.DataFrame) -> str:
    """Planted causes by found causes, in runs; then the harm, and the share of it that is of each change."""
    order = list(dict.fromkeys(verdicts["planted"]))
    found = [*order, *sorted(set(verdicts["found"]) - set(order))]
    counts = pd.crosstab(verdicts["planted"], verdicts["found"]).reindex(index=order, columns=found, fill_value=0)
    measured = ["harm", *CAUSES]
    shares = verdicts.groupby("planted")[measured].agg(spread).loc[order]
    return f"{table(counts.rename_axis('planted, found'))}\n{table(shares)}"


def main(to: Path, runs: Path = Path("results/runs")) -> None:
    """Write the verdicts on every run of the suite, and the table of them."""
    verdicts = pd.DataFrame([verdict(open_run(job.folder)) for job in jobs_of(load_suite(SUITE), "cpu", runs)])
    verdicts.to_csv(to / "verdicts.csv", index=False, float_format="%.4f")
    (to / "confusion.md").write_text(text := confusion(verdicts), encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
