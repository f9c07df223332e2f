"""RNoPE-SWA: local layers with rope, global layers without positions (Yang et al., 2025).

The paper could not be read. Order, ratio and window are known from two secondary sources (notes on the paper, and the
configuration of Command R7B); that global layers do not rotate is in the code of Cohere2 in transformers. The base is
that of the variant of the paper's analysis.
"""

from poscli.layouts import LAYOUTS, Layout

LAYOUTS.add(
    "rnope-swa",
    Layout(
        spec="rope+window(0.5L)|rope+window(0.5L)|rope+window(0.5L)|none",
        paper="arXiv:2501.18795",
        note="Three local layers (4096 of 8192 tokens), then one global layer without positions. "
        "Command R7B has base 50000 instead of 10000.",
    ),
)
