"""Writes what became of a sample: a Markdown file with the survivors, and why each survived."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

from mutants.equivalent import KINDS, Equivalent, find
from mutants.run import Outcome

# What a change to such a line most often alters: nothing that a test could see.
HARMLESS = (
    (r"@(cache|cached_property|torch\.(no_grad|inference_mode))", "only speed or memory"),
    (r"(?i)block|chunk|_bytes|budget|memory|\bpart\b|at_once", "a size of blocks: perhaps only speed or memory"),
    (r"(?i)fontsize|pad=|alpha=|linewidth|colou?r|dpi|\binches\b|zorder", "how a picture looks"),
    (r"(?i)progress|notice|\bwarn|say\(|print\(|console", "a message"),
    (r"assert |strict=|frozen=", "an invariant, which never fails"),
    (r"timeout|sleep|interval=|pause", "only time"),
    (r"clamp|finfo|\beps|1e-\d+|tiny", "a bound that no usual number reaches"),
)


def guess(outcome: Outcome) -> str:
    """Why nothing noticed a mutant, as far as its line shows."""
    if not outcome.covering:
        return "no test in this process runs the line"
    if not outcome.ran:
        return "the tests that run the line vanish with the change"
    covered = f"covered by {outcome.covering} tests ({outcome.ran} ran), none looks at this value"
    harmless = next((why for pattern, why in HARMLESS if re.search(pattern, outcome.before)), "")
    return f"{covered}; may be equivalent: {harmless}" if harmless else covered


def write(outcomes: list[Outcome], path: Path, title: str, known: list[Equivalent]) -> str:
    """Write the summary and return its first lines, for the terminal."""
    survivors = [outcome for outcome in outcomes if not outcome.caught]
    survivors.sort(key=lambda outcome: (outcome.mutant.file, outcome.mutant.line))
    equivalent = [(outcome, entry) for outcome in survivors if (entry := find(outcome, known)) is not None]
    missed = [outcome for outcome in survivors if find(outcome, known) is None]
    caught = len(outcomes) - len(survivors)
    head = f"# {title}\n\n{count(len(outcomes), caught, len(survivors), len(equivalent))}\n"
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        rooms[outcome.mutant.file.split("/")[1]]["caught" if outcome.caught else "survived"] += 1
    for outcome, _ in equivalent:
        rooms[outcome.mutant.file.split("/")[1]]["equivalent"] += 1
    lines = [head, "| room | mutants | survived | of these equivalent |", "| --- | --- | --- | --- |"]
    for room, of in sorted(rooms.items()):
        lines.append(f"| {room} | {of['caught'] + of['survived']} | {of['survived']} | {of['equivalent']} |")
    lines += ["", "## Missed", "", "| place | line | change | why |", "| --- | --- | --- | --- |"]
    lines += [_row(outcome, guess(outcome)) for outcome in missed]
    for kind, meaning in KINDS.items():
        if rows := [_row(outcome, entry.because) for outcome, entry in equivalent if entry.kind == kind]:
            lines += ["", f"## Equivalent: {meaning}", "", "| place | line | change | equivalent, because |"]
            lines += ["| --- | --- | --- | --- |", *rows]
    if stale := [entry for entry in known if entry.is_stale()]:
        lines += ["", "## In equivalent.toml, but no longer in the source: to be removed there", ""]
        lines += [f"- {entry.file}: {_code(entry.before)}" for entry in stale]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return head


def count(tried: int, caught: int, survived: int, equivalent: int) -> str:
    """The line that says how a sample went; the share is that of the mutants a test could notice.

    >>> count(300, 240, 60, 50)
    '300 mutants: 240 caught, 60 survived, of which 50 are equivalent. Of the 250 with an effect 96.0 % are caught.'
    """
    effective = tried - equivalent
    share = f"{100 * caught / effective:.1f} %" if effective else "none"
    return (
        f"{tried} mutants: {caught} caught, {survived} survived, of which {equivalent} are equivalent. "
        f"Of the {effective} with an effect {share} are caught."
    )


def _row(outcome: Outcome, why: str) -> str:
    place = f"{outcome.mutant.file}:{outcome.mutant.line}"
    return f"| {place} | {_code(outcome.before)} | {_code(outcome.after)} | {why} |"


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|')}`"
