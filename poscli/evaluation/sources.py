"""What decides an evaluation beside the trained model: its settings, and the source of the plugins that take part."""

from __future__ import annotations

from typing import Any

from poscli.encodings import get
from poscli.evaluation.baseline import BASELINES
from poscli.evaluation.protocol import PROTOCOLS, EvaluationSettings
from poscli.runs.run import Run
from poscli.specs import parse
from poscli.system.plugins import is_outside, source_hash


def record_of(run: Run, settings: EvaluationSettings) -> dict[str, Any]:
    """What eval.json says about an evaluation; two evaluations with equal records give equal results.

    Plugins that decide the trained model are part of the run's own configuration; here are those of the encoding that
    the model is evaluated as, of the protocols and of the baselines.
    """
    parts: dict[str, type] = {name: PROTOCOLS.get(name) for name in settings.protocols}
    specs = [run.config.encoding] if run.trained else []
    for name in settings.baselines:
        if name in BASELINES.names():
            parts[name] = BASELINES.get(name)
        else:
            specs.append(name)
    parts |= {leaf.name: get(leaf.name) for spec in specs for layer in parse(spec).layers for leaf in layer}
    sources = {name: source_hash(part) for name, part in sorted(parts.items()) if is_outside(part)}
    return settings.record() | ({"plugins": sources} if sources else {})
