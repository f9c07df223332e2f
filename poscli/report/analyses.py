"""The analyses of a section, in the order in which a report shows them."""

from __future__ import annotations

import pandas as pd

from poscli.report.accuracy import answered, placed, wrong_answers
from poscli.report.analysis import Analysis
from poscli.report.audit import audit
from poscli.report.compared import compared
from poscli.report.key_tokens import on_key_tokens
from poscli.report.known_limit import known_limit
from poscli.report.pooling import headline
from poscli.report.recalled import recalled
from poscli.report.sections import Group
from poscli.report.spread import spread
from poscli.report.summary import is_answered
from poscli.report.why import broken_by, used_window


def analyses(group: Group, summary: pd.DataFrame, baseline: str = "") -> tuple[Analysis, ...]:
    """What a section can say beside its summary; `baseline` names the encoding that all others are compared with."""
    rows, found = group.rows, list[Analysis | None]()
    details = {name: table for name, table in group.details.items() if len(table)}
    if "answers" in details:
        answers = details["answers"]
        wrong = wrong_answers(answers, headline(rows).perplexity)
        found += [answered(answers, summary), placed(answers, summary)]
        found.append(compared(rows, summary, wrong, baseline) if baseline else None)
    elif group.units is not None:
        found += [compared(rows, summary, group.units, baseline) if baseline else None, spread(rows, group.units)]
    found.append(known_limit(rows, summary))
    if "recall" in details:
        found.append(recalled(details["recall"], summary))
    if "why/attribution" in details:
        found.append(broken_by(details["why/attribution"], rows, summary))
    if "why/saturation" in details:
        found.append(used_window(group.details, summary))
    if "why/key_tokens" in details:
        found.append(on_key_tokens(details["why/key_tokens"], summary))
    if not is_answered(summary):
        found.append(audit(rows, summary))
    return tuple(analysis for analysis in found if analysis is not None)
