"""Modules of other libraries, imported when an oracle first uses one: all of them together take seconds to import."""

from __future__ import annotations

import importlib
import warnings
from typing import Any


class Library:
    """A module by its name, whose attributes are found by importing it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_") or "pytest" in attribute:  # pytest asks every object for such names
            raise AttributeError(attribute)
        with warnings.catch_warnings():  # they warn of optional packages, and of functions that torch has deprecated
            warnings.simplefilter("ignore")
            return getattr(importlib.import_module(self._name), attribute)


transformers = Library("transformers")
rope_utils = Library("transformers.modeling_rope_utils")
x_transformers = Library("x_transformers.x_transformers")
fla_fox = Library("fla.ops.forgetting_attn.naive")
fla_path = Library("fla.ops.path_attn.naive")
fla_stick_breaking = Library("fla.ops.stickbreaking_attn.naive")


def model(name: str) -> Library:
    """The code of one of transformers' models."""
    return Library(f"transformers.models.{name}")


bloom = model("bloom.modeling_bloom")
deberta_v2 = model("deberta_v2.modeling_deberta_v2")
detr = model("detr.modeling_detr")
falcon = model("falcon.modeling_falcon")
gpt_neox = model("gpt_neox.modeling_gpt_neox")
gptj = model("gptj.modeling_gptj")
llama = model("llama.modeling_llama")
marian = model("marian.modeling_marian")
mpt = model("mpt.modeling_mpt")
qwen2_vl = model("qwen2_vl.modeling_qwen2_vl")
swin = model("swin.modeling_swin")
swinv2 = model("swinv2.modeling_swinv2")
t5 = model("t5.modeling_t5")
transfo_xl = model("deprecated.transfo_xl.modeling_transfo_xl")
xlnet = model("xlnet.modeling_xlnet")
