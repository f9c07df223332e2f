"""report.html: one self-contained page with every number of a report, for a browser.

`data` gathers the numbers as one structure, `render` fills the template with it, and the scripts of this folder draw
tables and charts from it. They draw in the browser, because the reader's choices (the encoding to compare with, the
protocol, an encoding under the pointer) change every number and every line: the numbers then travel once instead of
once per choice.
"""

from __future__ import annotations

from poscli.report.page.render import page_html

__all__ = ["page_html"]
