"""Baselines: a model with a long window is compared with them, on identical tokens.

A baseline is the model itself, restricted to a shorter window or to attention to fewer keys. It costs no training.
"""

from __future__ import annotations

from abc import ABC

from poscli.encodings import get, names
from poscli.equation import Encoding, Shape
from poscli.evaluation.posthoc import with_joined
from poscli.model.language_model import LanguageModel
from poscli.specs import build, parse
from poscli.system.errors import UsageError, near
from poscli.system.registry import Registry, subclass_of


class Baseline(ABC):
    """A reduced model or a reduced window. Subclasses register under a name: `@BASELINES.register("crop")`."""

    name: str

    def explain(self) -> str:
        """The explanation of the baseline in a report, in Markdown."""
        return f"**{self.name}** is a baseline of {type(self).__module__}."

    def window(self, length: int, train_length: int) -> int:
        """The tokens that the baseline reads where the model reads a window of `length`."""
        return length

    def model(self, model: LanguageModel) -> LanguageModel:
        """The restricted model, which may share its weights with the one given."""
        return model

    def changes_model(self, length: int, train_length: int) -> bool:
        """Whether the restricted model is measured at a length; if not, the model itself is."""
        return False


BASELINES: Registry[type[Baseline]] = Registry("baseline", "poscli.evaluation.baselines", subclass_of(Baseline))


class Masked(Baseline):
    """The model with wrappers joined to every layer, such as `window` or `sink(4)+window`.

    A wrapper can join any encoding without training. A window without a width is L tokens wide. The model itself is
    measured where the spec would change nothing: it has only windows and sinks, and no window is shorter than the text.
    """

    def __init__(self, spec: str) -> None:
        self.name, self.spec = spec, spec

    def explain(self) -> str:
        joined = f"**{self.name}**: the same model reads the whole window with `{self.spec}` joined to every layer"
        if all(layer.reach is None for layer in _layers(self.spec)):
            return f"{joined}."
        hidden = "each token attends to fewer tokens; a window is L tokens wide unless it says otherwise"
        return f"{joined}, so that {hidden}."

    def model(self, model: LanguageModel) -> LanguageModel:
        return with_joined(model, self.spec)

    def changes_model(self, length: int, train_length: int) -> bool:
        layers = _layers(self.spec, train_length)
        hides_only = all(layer.blanks <= {"reach", "sinks"} for layer in layers)
        return not hides_only or any(layer.reach is not None and layer.reach < length for layer in layers)


def _layers(text: str, train_length: int = 512) -> list[Encoding]:
    """The encodings of a spec of wrappers, in the smallest model that has them."""
    spec = parse(text)
    return build(spec, Shape(width=1, heads=1, layers=len(spec.layers), length=train_length), seed=0)


def baseline(name: str) -> Baseline:
    """The registered baseline of this name, or that of a spec of wrappers; UsageError for any other text."""
    if name in BASELINES.names():
        return BASELINES.get(name)()
    if name.isidentifier() and name not in names():
        raise UsageError(f"there is no baseline {name!r}: {near(name, [*BASELINES.names(), 'window'])}")
    leaves = [leaf.name for layer in parse(name).layers for leaf in layer]
    if wrong := [leaf for leaf in leaves if not get(leaf).wraps]:
        raise UsageError(
            f"--baseline {name}: a model would have to be trained with {wrong[0]}; name crop, or encodings that join "
            "any other, such as window or 'sink(4)+window'"
        )
    if all(get(leaf).inert_alone for leaf in leaves):
        raise UsageError(f"--baseline {name} hides nothing by itself; join a window: '{name}+window'")
    parts = (part for layer in _layers(name) for part in layer.modules() if isinstance(part, Encoding))
    if searching := [part.name for part in parts if part.evaluations]:
        raise UsageError(f"--baseline {name}: {searching[0]} searches constants only with --as; leave out its search")
    return Masked(name)
