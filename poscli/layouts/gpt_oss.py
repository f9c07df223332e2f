"""gpt-oss: local and global layers in turns, each with a learned logit beside the keys (OpenAI, 2025).

As in the code of gpt-oss in transformers: order, base, window, and a logit of each head on every layer.
"""

from poscli.layouts import LAYOUTS, Layout

LAYOUTS.add(
    "gpt-oss",
    Layout(
        spec="rope(base=150000)+window(0.03125L)+sink-logit|rope(base=150000)+sink-logit",
        paper="arXiv:2508.10925",
        note="A local layer (128 of 4096 tokens), then a global one, both with base 150000 and a learned sink for each "
        "head. The released model also has YaRN by 32 from 4096 tokens on all layers, at every length.",
    ),
)
