"""How many numbers an encoding learns, and which layers share them."""

from __future__ import annotations

from poscli.inspect.properties.row import Property, percent
from poscli.inspect.properties.tested_model import TestedModel


def parameters(tested: TestedModel) -> Property:
    """The learned numbers of the encodings: in all, shared between layers, and as a share of the model's."""
    model = tested.model
    sizes = {id(p): p.numel() for p in model.encoding_parameters()}
    layers = [{id(p) for p in encoding.parameters()} for encoding in model.encodings]
    used = [sum(p in layer for layer in layers) for p in sizes]
    total = sum(sizes.values())
    shared = sum(size for size, count in zip(sizes.values(), used, strict=True) if count > 1)
    numbers = {
        "total": total,
        "shared": shared,
        "by_layer": [sum(sizes[p] for p in layer) for layer in layers],
        "share_of_model": total / model.size,
    }
    if not total:
        return Property("parameters", "none", "The encoding learns nothing.", numbers)
    if len(layers) == 1:
        how = "in the only layer"
    elif shared == total:
        how = "shared by all layers" if min(used) == len(layers) else "shared by several layers"
    elif shared:
        how = f"{shared:,} of them shared by several layers"
    else:
        how = "none of them shared by layers"
    values = f"{total:,} number{'' if total == 1 else 's'}"
    by_layer = numbers["by_layer"]
    few, many = min(by_layer), max(by_layer)  # type: ignore[call-overload]
    each = f"{many:,}" if few == many else f"{few:,} to {many:,}"
    detail = f"Each layer uses {each}; they are {percent(total / model.size)} of the model's {model.size:,} parameters."
    return Property("parameters", f"{values}, {how}", detail, numbers)
