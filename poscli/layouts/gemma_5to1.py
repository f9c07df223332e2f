"""Gemma 3: five local layers for each global one (Gemma Team, 2025).

As in the code of Gemma 3 in transformers: order, bases, and a window of a 32nd of the length by default.
"""

from poscli.layouts import LAYOUTS, Layout

LAYOUTS.add(
    "gemma-5to1",
    Layout(
        spec="|".join(5 * ["rope+window(0.03125L)"] + ["rope(base=1000000)"]),
        paper="arXiv:2503.19786",
        note="Five local layers with base 10000 (a 32nd of the length), then one global layer with base 1000000. "
        "The model also normalises queries and keys, which is no encoding.",
    ),
)
