"""Writes what became of a sample: a Markdown file with the survivors, and a guess why each survived."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

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


def write(outcomes: list[Outcome], path: Path, title: str) -> str:
    """Write the summary and return its first lines, for the terminal."""
    survivors = [outcome for outcome in outcomes if not outcome.caught]
    head = (
        f"# {title}\n\n{len(outcomes)} mutants, {len(outcomes) - len(survivors)} caught, {len(survivors)} survived.\n"
    )
    rooms: dict[str, Counter[bool]] = defaultdict(Counter)
    for outcome in outcomes:
        rooms[outcome.mutant.file.split("/")[1]][outcome.caught] += 1
    lines = [head, "| room | mutants | survived |", "| --- | --- | --- |"]
    lines += [f"| {room} | {count.total()} | {count[False]} |" for room, count in sorted(rooms.items())]
    lines += ["", "| place | line | change | why |", "| --- | --- | --- | --- |"]
    for outcome in sorted(survivors, key=lambda outcome: (outcome.mutant.file, outcome.mutant.line)):
        code = (f"`{text.replace('|', chr(92) + '|')}`" for text in (outcome.before, outcome.after))
        lines.append(f"| {outcome.mutant.file}:{outcome.mutant.line} | {' | '.join(code)} | {guess(outcome)} |")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return head
