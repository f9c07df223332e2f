"""Whether the code that made a result is still the code of today."""

from __future__ import annotations

import pandas as pd

from poscli.config.code import MEASURING, TRAINING, code_of
from poscli.drawing.text import listed
from poscli.report.catalogue import spec_in_label
from poscli.runs.run import AS

SHOWN = 6  # encodings that are named


def age_note(rows: pd.DataFrame) -> list[str]:
    """One sentence that names the encodings whose results are older than the code, and why; none if no result is."""
    encodings, engines, unknown = list[str](), list[str](), list[str]()
    names = list(map(str, rows["encoding"].unique()))
    for name in names:
        part, spec = rows[rows["encoding"] == name], spec_in_label(name)
        measured = set(part["measured_code"].fillna("")) if "measured_code" in part else {""}
        trained = set(part["trained_code"].fillna("")) - {""} if "trained_code" in part else set[str]()
        if "" in measured:
            unknown.append(name)
            continue
        for then, now in ((trained, code_of(spec, TRAINING)), (measured, code_of(spec, MEASURING))):
            own, rooms = now.split("-")
            # A model that is evaluated under another encoding was trained with the code of its own.
            if AS not in name and any(each.split("-")[0] != own for each in then if own) and name not in encodings:
                encodings.append(name)
            if any(each.split("-")[1] != rooms for each in then) and name not in engines:
                engines.append(name)

    def whose(part: list[str]) -> str:
        return "all" if len(part) == len(names) > 1 else listed(part, SHOWN)

    reasons = [
        (unknown, "made before results said by which code"),
        (encodings, "the code of the encoding has changed since"),
        (engines, "the code that trains or measures has changed since"),
    ]
    found = [f"{whose(part)} ({why})" for part, why in reasons if part]
    if not found:
        return []
    again = "Train and evaluate them again, with --force, to see whether the numbers have"
    return [f"Older than the code: {'; '.join(found)}. {again}."]
