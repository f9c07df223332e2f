"""SmolLM3: rope without a window, and no positions on every fourth layer (Bakouch et al., 2025).

As in the code of SmolLM3 in transformers: order, and no window unless a configuration asks for one. The base at 4096
tokens is known from two secondary sources, which quote the released configuration of the training.
"""

from poscli.layouts import LAYOUTS, Layout

LAYOUTS.add(
    "smollm3",
    Layout(
        spec="rope(base=50000)|rope(base=50000)|rope(base=50000)|none",
        paper="Bakouch et al., 2025 (hf.co/blog/smollm3)",
        note="Three layers with rope of base 50000, then one without positions; all of them are global. For windows "
        "of 32768 tokens after the first 4096 the base became 1500000 by the blog, and 2000000 by the released "
        "configuration and in transformers; for 65536 then 5000000.",
    ),
)
