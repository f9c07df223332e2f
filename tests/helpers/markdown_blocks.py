"""The code blocks of a document, which tests run."""

from __future__ import annotations

import re
from pathlib import Path


def blocks(document: Path, language: str) -> list[str]:
    """The fenced blocks of a language, in order; the language is the first word after the fence."""
    text = document.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
