"""The grammar of hub corpora.

    hf:REPO[:CONFIG][@TRAIN[,VALID]][#COLUMN][?bytes=50M]

    hf:wikitext                        Salesforce/wikitext, wikitext-103-raw-v1, with its own validation split
    hf:wikitext:wikitext-2-raw-v1      another configuration of it
    hf:pg19?bytes=50M                  the first 50 MB of emozilla/pg19, streamed: the rest is not downloaded
    hf:org/set@train                   held-out documents are taken from the split `train`
    hf:org/set@train,test#content      held-out documents are the split `test`; the text is in the column `content`

Without @, the split `train` is for training and the split `validation`, if there is one, is held out. COLUMN is `text`
by default. `bytes` takes a number with K, M or G (powers of 1000): nine tenths are read from TRAIN and one tenth from
VALID, each up to the end of the document that reaches its share.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from poscli.data.fields import DEFAULT_FIELD
from poscli.system.errors import UsageError

GRAMMAR = "hf:REPO[:CONFIG][@TRAIN[,VALID]][#COLUMN][?bytes=50M]"
ALIASES = {"wikitext": "Salesforce/wikitext", "pg19": "emozilla/pg19"}
CONFIGS = {"Salesforce/wikitext": "wikitext-103-raw-v1"}  # the default

_SPEC = re.compile(
    r"(?P<repo>[^:@#?]+)(:(?P<config>[^@#?]+))?(@(?P<splits>[^,#?]+(,[^,#?]+)?))?(#(?P<column>[^?]+))?"
    r"(\?bytes=(?P<number>\d+)(?P<unit>[KMG]?))?"
)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class HubSpec:
    """One data set of the hub.

    >>> spec = HubSpec.parse("wikitext@train?bytes=2M")
    >>> str(spec), spec.budget
    ('hf:Salesforce/wikitext:wikitext-103-raw-v1@train?bytes=2000000', 2000000)
    """

    repo: str
    config: str | None = None  # None: the only one there is
    splits: tuple[str, ...] = ()  # (train,) or (train, valid); () for the usual ones
    column: str = DEFAULT_FIELD
    budget: int | None = None  # bytes to stream; None: download all of it

    @classmethod
    def parse(cls, text: str) -> HubSpec:
        """What follows `hf:`; UsageError if the grammar does not allow it."""
        match = _SPEC.fullmatch(text)
        if match is None or match["number"] == "0":
            raise UsageError(f"'hf:{text}' is not of the form {GRAMMAR}")
        repo = ALIASES.get(match["repo"], match["repo"])
        return cls(
            repo,
            match["config"] or CONFIGS.get(repo),
            tuple(match["splits"].split(",")) if match["splits"] else (),
            match["column"] or DEFAULT_FIELD,
            int(match["number"]) * _UNITS[match["unit"]] if match["number"] else None,
        )

    def __str__(self) -> str:
        return (
            f"hf:{self.repo}"
            + (f":{self.config}" if self.config else "")
            + (f"@{','.join(self.splits)}" if self.splits else "")
            + (f"#{self.column}" if self.column != DEFAULT_FIELD else "")
            + (f"?bytes={self.budget}" if self.budget else "")
        )
