"""What every encoding must do.

checks.py has the encoding under test and its checks, and noise.py the differences to allow. All checks run on
the CPU on random input, with weights moved away from their initial values.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from poscli.encodings.registry import ENCODINGS
from poscli.specs import check, parse
from poscli.system.errors import PluginError, UsageError
from poscli.system.notebook import html_table
from poscli.verify.checks import CHECKS, Failed, Skipped, SpecUnderTest, shape_for

__all__ = ["CHECKS", "Finding", "Verdict", "verify"]

PASSED, FAILED, SKIPPED, UNAVAILABLE = "passed", "failed", "skipped", "unavailable"
COLORS = {PASSED: "green", FAILED: "red", SKIPPED: "gray", UNAVAILABLE: "darkorange"}
LOOK_AT_PLUGIN = "another package offers it: mend that package, or uninstall it"


@dataclass(frozen=True)
class Finding:
    """The result of one check, with a hint where to look if its rule was broken; an error says itself where it is."""

    check: str
    status: str
    detail: str
    look: str = ""


@dataclass(frozen=True, repr=False)
class Verdict:
    """The findings of all checks on one encoding."""

    encoding: str
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def status(self) -> str:
        """The worst status of the findings; `unavailable` if the encoding needs a package that is not installed."""
        statuses = {finding.status for finding in self.findings}
        return next((s for s in (UNAVAILABLE, FAILED) if s in statuses), PASSED)

    def __repr__(self) -> str:
        counts = {status: sum(f.status == status for f in self.findings) for status in (PASSED, SKIPPED)}
        failed = "".join(f"; {f.check}: {f.detail}" for f in self.findings if f.status in (FAILED, UNAVAILABLE))
        does_not = f", {counts[SKIPPED]} do not apply" if counts[SKIPPED] else ""
        return f"{self.encoding}: {self.status}, {counts[PASSED]} checks hold{does_not}{failed}"

    def _repr_html_(self) -> str:
        rows: list[tuple[str, str, str]] = []
        for finding in self.findings:
            rows.append((finding.check, finding.status, finding.detail))
            rows += [("", "", f"look at: {finding.look}")] if finding.look else []
        return html_table(f"{self.encoding}: {self.status}", rows, ("check", "", "what was found"), colors=COLORS)

    def record(self) -> dict[str, Any]:
        """The verdict as data for JSON."""
        return {"encoding": self.encoding, "status": self.status, "seconds": round(self.seconds, 2)} | {
            "findings": [asdict(finding) for finding in self.findings]
        }


def verify(text: str, seed: int = 0) -> Verdict:
    """Run all checks on a spec; UsageError if the spec is wrong. `seed` draws the input and the weights."""
    start = time.perf_counter()
    if why := ENCODINGS.missing(text):
        look = LOOK_AT_PLUGIN if (broken := ENCODINGS.broken(text)) else ""
        return Verdict(text, [Finding("available", FAILED if broken else UNAVAILABLE, why, look)])
    try:
        spec = str(check(text, shape_for(parse(text))))
    except PluginError:  # the checks below say more about it
        spec = str(parse(text))
    findings = list(_findings(SpecUnderTest(spec, seed)))
    return Verdict(spec, findings, time.perf_counter() - start)


def _findings(tested: SpecUnderTest) -> Iterator[Finding]:
    for check_ in CHECKS:
        try:
            yield Finding(check_.name, PASSED, check_.run(tested))
        except Skipped as reason:
            yield Finding(check_.name, SKIPPED, str(reason))
        except Failed as reason:
            yield Finding(check_.name, FAILED, str(reason), check_.look)
        except UsageError:  # a mistake in the spec, not in the encoding
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - any failure of the encoding is a finding
            yield Finding(check_.name, FAILED, _described(error))


def _described(error: BaseException) -> str:
    """The error, and the line that raised it: outside installed packages, unless poscli is one of them itself."""
    if isinstance(error, PluginError):
        return str(error)
    every = traceback.extract_tb(error.__traceback__)
    frames = [f for f in every if "site-packages" not in f.filename] or every
    cause = str(error).splitlines()[0] if str(error) else "no message"
    return f"{type(error).__name__}: {cause} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
