"""SWAN: global layers without positions, their scores scaled by a logarithm, and local ones (Puvvada et al., 2025).

Neither the paper nor code could be read; three secondary sources agree on the order and the ratio, and
one of them states the window.
"""

from poscli.layouts import LAYOUTS, Layout

LAYOUTS.add(
    "swan",
    Layout(
        spec="none+logn|rope+window(0.0625L)|rope+window(0.0625L)|rope+window(0.0625L)",
        paper="arXiv:2504.08719",
        note="One global layer without positions, then three local ones (512 of 8192 tokens). Beyond L `logn` "
        "multiplies scores by log n / log L; the paper does so at every length by a fitted log(a + n) / log a, after "
        "training.",
    ),
)
