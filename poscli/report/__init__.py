"""What was found: verdicts, tables, pictures and pages.

`collect` reads the rows, `build_report` writes the files and returns a `Report`, `terminal.print_report` prints it, and
`records` turns its summary into JSON.
"""

from __future__ import annotations

from poscli.report.build import build_report
from poscli.report.collect import collect, trained_runs
from poscli.report.data import About, Report, Section
from poscli.report.page.site import write_site
from poscli.report.summary import records, summarize

__all__ = [
    "About", "Report", "Section", "build_report", "collect", "records", "summarize", "trained_runs",
    "write_site",
]  # fmt: skip
