"""Named layouts: which encodings the layers of a known model have, one model, one file.

A layout is a spec with a name. Where a spec is read, the name stands for the spec, and everything that is trained,
measured or written to a file has the spec itself. Another package offers layouts through the entry-point group
`poscli.layouts`: instances of `Layout`.
"""

from __future__ import annotations

from dataclasses import dataclass

from poscli.system.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The encodings of a model's layers: as a spec without names of layouts, where it is from, and what to know of it.

    Lengths are in units of L, as in the proportion to the length of the training windows that the model had. `note`
    says in a sentence or two how these layers follow one another, and what the spec leaves out.
    """

    spec: str
    paper: str
    note: str


def _fault(layout: Layout) -> str:
    """What is wrong with a layout of another package; "" if nothing is."""
    texts = (layout.spec, layout.paper, layout.note)
    return "" if all(isinstance(text, str) for text in texts) else "its `spec`, `paper` and `note` must be texts"


EXPECTED = "it must be an instance of poscli.layouts.Layout"
LAYOUTS: Registry[Layout] = Registry(
    "layout", "poscli.layouts", lambda thing: isinstance(thing, Layout), EXPECTED, _fault
)
