"""Names in pictures of one model under many encodings: the model is named once, and not before every encoding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pandas as pd

from poscli.report.sections import Group

AS = " as "  # between what was trained and the encoding that it is evaluated under
MODEL = "model"  # a column of rows in which the model is named once


def named_once(group: Group, summary: pd.DataFrame) -> tuple[Group, pd.DataFrame, str]:
    """The group, its summary and the model, with `yarn` in the place of `rope as yarn` if all rows are of one model.

    Otherwise they stay as they are, and the model is "". Renamed rows have a further column `model`, so that footnotes
    can say what was left out.
    """
    model = the_model(summary["encoding"])
    if not model:
        return group, summary, ""

    def shortened(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(encoding=table["encoding"].str.removeprefix(model + AS))

    rows = shortened(group.rows).assign(**{MODEL: model})
    details = {name: shortened(table) for name, table in group.details.items()}
    return replace(group, rows=rows, positions=shortened(group.positions), details=details), shortened(summary), model


def the_model(names: Iterable[str]) -> str:
    """The model that is in every name, by itself or before an encoding; "" if there is none, or nothing to shorten.

    >>> the_model(["rope", "rope as yarn", "rope as none"]), the_model(["rope", "rope as yarn", "yarn"])
    ('rope', '')
    """
    every = set(names)
    model = min(every, key=len, default="")
    others = [name for name in every if name != model]
    alone = all(name.startswith(model + AS) for name in others)
    short = {name.removeprefix(model + AS) for name in others}
    return model if others and alone and model not in short else ""
