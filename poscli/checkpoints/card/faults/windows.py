"""Faults of windows, and of lists with an entry for each layer."""

from __future__ import annotations

from poscli.checkpoints.card.faults.fault import Said, Subject, fault, note, ranges
from poscli.checkpoints.card.faults.keys import WITH_LAYER_TYPES, WITH_WINDOW
from poscli.checkpoints.kinds.rotary import LOCAL


@note("window-never-cuts")
def window_never_cuts(subject: Subject) -> Said:
    """A window at least as long as the longest text."""
    layers = [n for n, layer in enumerate(subject.layers) if layer.window and layer.window >= subject.length]
    if layers:
        window = subject.layers[layers[0]].window
        yield (
            f"The window of layers {ranges(layers)} has {window} tokens and the longest text {subject.length}, so that "
            "it never cuts anything off.",
            "Nothing; the layers see the whole text.",
        )


@note("window-switched-off")
def window_switched_off(subject: Subject) -> Said:
    """A window shorter than the longest text that a switch turns off."""
    window, name = subject.config.get("sliding_window"), subject.architecture.model_type
    off = name in WITH_WINDOW and not any(layer.window for layer in subject.layers)
    if off and isinstance(window, int) and 0 < window < subject.length:
        yield (
            f"config.json has sliding_window {window}, which is switched off: use_sliding_window is "
            f"{subject.config.get('use_sliding_window', False)!r} and max_window_layers "
            f"{subject.config.get('max_window_layers')!r}.",
            "Nothing, if the model was trained so; set use_sliding_window to true if not.",
        )


@fault("window-missing")
def window_missing(subject: Subject) -> Said:
    """layer_types lists layers with a window, and the window is switched off or has no length."""
    types = subject.layer_types
    if subject.architecture.model_type not in WITH_LAYER_TYPES or LOCAL not in types:
        return
    if not any(layer.window for layer in subject.layers):
        yield (
            f"layer_types lists {types.count(LOCAL)} layers of type {LOCAL}, and there is no window: "
            f"sliding_window is {subject.config.get('sliding_window')!r} and use_sliding_window "
            f"{subject.config.get('use_sliding_window', False)!r}.",
            "Set both, or list full_attention for all layers.",
        )


@fault("layer-list-too-long")
def layer_list_too_long(subject: Subject) -> Said:
    """no_rope_layers has more entries than there are layers."""
    given, count = subject.config.get("no_rope_layers"), len(subject.layers)
    if isinstance(given, list) and len(given) > count:
        yield (
            f"no_rope_layers has {len(given)} entries for {count} layers; the last {len(given) - count} are not read.",
            "Make it as long as the model, and check that its entries are those of the layers that are left.",
        )
