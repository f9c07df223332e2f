"""SWAN: global layers without positions, their scores scaled by a logarithm, and local ones (Puvvada et al., 2025).

From the text of the paper as published (EMNLP 2025): order, ratio, window. No code was found.
"""

from poscli.layouts import LAYOUTS, Layout

LAYOUTS.add(
    "swan",
    Layout(
        spec="none+logn|rope+window(0.0625L)|rope+window(0.0625L)|rope+window(0.0625L)",
        paper="arXiv:2504.08719",
        note="One global layer without positions, then three local ones (512 of 8192 tokens). Beyond L `logn` "
        "multiplies scores by log n / log L; the paper does so at every length by a fitted log(a + n) / log a, after "
        "training. Its base of rope is 1000000; here it is 10000, with which the models of the board were trained.",
    ),
)
