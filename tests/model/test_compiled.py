"""Compiled layers compute what eager layers do; where nothing can be compiled, training goes on and says why."""

from __future__ import annotations

import pytest
import torch
from toys import LENGTH, WIDTH, model, perturbed, tokens

from poscli.model.compiled import compile_layers, wanted
from poscli.model.initialise import weights_of


@pytest.mark.parametrize("spec", ["rope|cope", "learned"])
def test_compiled_layers_are_the_layers(spec: str) -> None:
    """The backend traces both passes and runs torch's own operations: everything but code generation is tested."""
    plain, fast = (perturbed(model(spec)) for _ in range(2))
    compile_layers(fast, torch.zeros(2, LENGTH, WIDTH), backend="aot_eager")
    assert all("feed_forward" in vars(layer) for layer in fast.layers)
    assert weights_of(fast).keys() == weights_of(plain).keys()
    text, targets = tokens(2, LENGTH), tokens(2, LENGTH, seed=1)
    losses = [trained.loss(text, targets) for trained in (plain, fast)]
    assert float(losses[0].detach()) == pytest.approx(float(losses[1].detach()), rel=2**-20)
    for loss in losses:
        loss.backward()
    for theirs, ours in zip(plain.parameters(), fast.parameters(), strict=True):
        assert theirs.grad is not None
        largest = float(theirs.grad.abs().max())
        # sums of a few hundred float32 products, added in another order
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=2**-16 * largest)


def test_one_compilation_serves_all_layers() -> None:
    counted: list[int] = []

    def counting(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        counted.append(len(graph.graph.nodes))
        return graph

    torch.compiler.reset()
    fast = perturbed(model("rope"))
    compile_layers(fast, torch.zeros(2, LENGTH, WIDTH), backend=counting)
    fast.loss(tokens(2, LENGTH), tokens(2, LENGTH)).backward()
    assert len(counted) == 1


def test_without_a_compiler_the_cause_is_stated_once(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no C compiler here")

    torch.compiler.reset()
    plain, other = (perturbed(model("rope", layers=1)) for _ in range(2))
    for _ in range(2):
        compile_layers(other, torch.zeros(2, LENGTH, WIDTH), backend=broken)
    said = capsys.readouterr().err
    assert said.count("no C compiler here") == 1
    assert not any("feed_forward" in vars(layer) for layer in other.layers)
    assert torch.equal(other(tokens(2, LENGTH)), plain(tokens(2, LENGTH)))


def test_layers_are_compiled_on_cuda_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    for value in ("1", "0", ""):
        monkeypatch.setenv("POSCLI_COMPILE", value)
        chosen += [wanted(torch.device(device)) for device in ("cuda", "cpu")]
    assert chosen == [True, False, False, False, False, False]
