"""poscli from Python: every block of docs/API.md runs, results equal those of the commands, objects show themselves."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_runner import ROOT, cli, document
from fake_results import BEHAVIOUR, results
from lines import sections
from toys import draw, perturbed

from poscli import api
from poscli.encodings import missing, names
from poscli.system import plugins

SIZES = {"width": 32, "heads": 4, "length": 16}
OWN = """
from poscli import api

class Own(api.Encoding):
    '''s -= d / 8 <b>.'''

    def distance_bias(self, d):
        return -d[None] / 8
"""
FULL, FEW = 'tokens="200k"', 'tokens="8k"'  # the training budget of docs/API.md, and that of its fast test


pytestmark = pytest.mark.usefixtures("here")


# the document
def test_the_table_of_the_document_has_every_function() -> None:
    rows = [line for line in (ROOT / "docs" / "API.md").read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    named = set(re.findall(r"api\.(\w+)\(", "".join(rows)))
    assert named - {"checkpoint"} == {name for name in api.__all__ if inspect.isfunction(getattr(api, name))}


def run_document(folder: Path, budget: str) -> dict[str, Any]:
    """Run the Python blocks of docs/API.md in a folder, one by one, as a notebook does; returns the names it holds."""
    notebook = type(sys)("own_notebook")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(plugins, "_loaded", {})
        patch.setitem(sys.modules, "own_notebook", notebook)
        text = (ROOT / "docs" / "API.md").read_text(encoding="utf-8")
        for code in re.findall(r"^```python[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            exec(compile(code.replace(FULL, budget), "API.md", "exec"), vars(notebook))
    return vars(notebook)


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What the blocks of docs/API.md leave behind after a short training: their names and their folder."""
    folder = tmp_path_factory.mktemp("api")
    return run_document(folder, FEW), folder


@pytest.mark.slow
def test_every_block_of_the_document_runs_as_it_is(here: Path) -> None:
    assert re.sub(r"-\w{8}", "-...", repr(run_document(here, FULL)["run"])) in shown_text()


def test_every_block_of_the_document_runs_and_shows_what_objects_say(
    documented: tuple[dict[str, Any], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    names, folder = documented
    monkeypatch.chdir(folder)
    assert names["run"].status()["state"] == "complete"
    assert names["logits"].shape == (1, len("def __init__("), 257)
    assert Path("results/report/report.md").is_file()
    assert Path("results/site/index.html").is_file()
    assert repr(names["alibi"]) in shown_text()
    assert " ".join(repr(names["measured"]).splitlines()[0].split()) in shown_text()


def shown_text() -> str:
    """The text of docs/API.md on one line, without the marks of quotations."""
    return " ".join((ROOT / "docs" / "API.md").read_text(encoding="utf-8").replace("\n>", "\n").split())


# in a model of one's own


def brute_force(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: list[float]) -> torch.Tensor:
    """Attention with a linear bias, query by query, in float64: `[H, T, D]`; the queries are the last T tokens."""
    out, past = torch.zeros_like(q, dtype=torch.float64), k.shape[1] - q.shape[1]
    for h, slope in enumerate(slopes):
        for i in range(q.shape[1]):
            keys = k[h, : past + i + 1].double()
            far = torch.arange(past + i, -1, -1)
            p = torch.softmax(keys @ q[h, i].double() / k.shape[2] ** 0.5 - slope * far, dim=0)
            out[h, i] = p @ v[h, : past + i + 1].double()
    return out


@pytest.mark.parametrize("queries", [16, 5, 1])
@pytest.mark.parametrize("engine", [None, "reference"])
def test_attention_is_the_formula_with_and_without_a_cache(queries: int, engine: str | None) -> None:
    q, k, v = torch.randn(3, 4, 16, 8, generator=torch.Generator().manual_seed(0))
    out = api.attention(q[None, :, -queries:], k[None], v[None], api.encoding("alibi", **SIZES), engine=engine)
    expected = brute_force(q[:, -queries:], k, v, [2**-2, 2**-4, 2**-6, 2**-8])
    torch.testing.assert_close(out[0].double(), expected, rtol=1e-5, atol=1e-5)


def test_attention_has_gradients_in_everything() -> None:
    encoding = api.encoding("alibi(trainable=true)+rope", **SIZES)
    given = torch.randn(3, 1, 4, 16, 8, requires_grad=True)
    api.attention(*given, encoding).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in (given, *encoding.parameters()))


def test_embeddings_take_the_position_after_the_past() -> None:
    encoding, x = api.encoding("sinusoidal", **SIZES), torch.zeros(1, 16, 32)
    ids = torch.zeros(1, 16, dtype=torch.long)
    whole = api.embed(x, ids, encoding)
    torch.testing.assert_close(api.embed(x[:, :6], ids[:, :6], encoding, past=10), whole[:, 10:])
    assert float(whole[0, 3, 0]) == pytest.approx(0.1411200, abs=1e-6)  # sin 3
    assert torch.equal(api.embed(x, ids, api.encoding("rope", **SIZES)), x)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: api.encoding("alibbi", **SIZES), "did you mean alibi"),
        (lambda: api.encoding("rope|none", **SIZES), "rope|none alternates by layer; api.encodings"),
        (lambda: api.encoding(3, **SIZES), "spec = 3: must be a text or a class of api.Encoding"),
        (lambda: api.encoding("rope", width=30, heads=4, length=16), "30 is not divisible by 4 heads; give a"),
        (lambda: api.encoding(local(), **SIZES), "is defined inside a function"),
        (lambda: attend("alibi", (1, 8, 16, 8)), r"q has the shape [1, 8, 16, 8]; alibi was built for [batch, 4 heads"),
        (lambda: attend("alibi", (1, 4, 16, 8), (1, 4, 15, 8)), "a key for every query"),
        (lambda: attend("fox", (1, 4, 16, 8)), "fox reads the input of the layer: give x_BSW"),
        (lambda: attend("cope", (1, 4, 16, 8), engine="sdpa"), "the engine sdpa cannot run cope"),
        (lambda: attend("alibi", (1, 4, 16, 9)), "q has the shape [1, 4, 16, 9]; alibi was built for [batch, 4 heads"),
        (lambda: attend("alibi", (4, 16, 8)), "q has the shape [4, 16, 8]"),
        (lambda: attend("alibi", (2, 4, 16, 8), (1, 4, 16, 8)), "a key for every query"),
        (lambda: attend("alibi", (1, 4, 17, 8), (1, 4, 16, 8)), "a key for every query"),
        (lambda: attend("alibi", (1, 4, 16, 8), dtype=torch.double), "q, k and v are torch.float32 on cpu and torch."),
        (lambda: attend("alibi", (1, 4, 16, 8), of=torch.long), "q, k and v are torch.int64 on cpu; give floating"),
        (lambda: attend("fox", (1, 4, 16, 8), x_BSW=torch.zeros(1, 15, 32)), "the shape [1, 16, 32], in floating"),
        (lambda: attend("fox", (1, 4, 16, 8), x_BSW=torch.zeros(1, 16, 32).long()), "in floating point on cpu"),
        (lambda: attend("alibi", (1, 4, 0, 8), (1, 4, 16, 8)), "q has the shape [1, 4, 0, 8], without a token; give"),
        (lambda: attend("alibi", (1, 4, 0, 8)), "q has the shape [1, 4, 0, 8], without a token; give at least one"),
        (lambda: attend("alibi", (1, 4, 16, 8), on="meta"), "q, k and v are on meta; give them on cpu or cuda"),
        (lambda: attend("rope-2d", (1, 4, 1, 8), (1, 4, 6, 8)), "not all tokens of the grid; give its columns"),
        (lambda: embed((1, 1, 32), (1, 1), past=5, spec="learned-2d"), "not all tokens of the grid; give its columns"),
        (lambda: embed((1, 0, 32), (1, 0)), "x has the shape [1, 0, 32], without a token; give at least one"),
        (lambda: api.mix(torch.zeros(1, 16, 31), api.encoding("smear", **SIZES)), "the shape [1, 16, 31]; smear was"),
        (lambda: api.mix(torch.zeros(1, 16, 32).long(), api.encoding("smear", **SIZES)), "x is torch.int64 with the"),
        (lambda: begin_step(1), "progress = 1: must be at least 0 and below 1; give the steps done before, divided by"),
        (lambda: begin_step(float("nan")), "progress = nan: must be at least 0 and below 1"),
        (lambda: api.encoding("rope+randomized(max=1000000000000)", **SIZES), "has tensors larger than any memory"),
        (lambda: api.verify("rope+randomized(max=1000000000000)"), "has tensors larger than any memory; lower its opt"),
        (lambda: embed((16, 32), (16,)), "x and ids have the shapes [16, 32] and [16]; rope was built for [batch, tok"),
        (lambda: embed((1, 16, 32), (1, 15)), "x and ids have the shapes [1, 16, 32] and [1, 15]"),
        (lambda: embed((1, 16, 31), (1, 16)), "x and ids have the shapes [1, 16, 31] and [1, 16]"),
        (lambda: embed((1, 16, 32), (1, 16), torch.long), "x has the dtype torch.int64 and ids torch.int64; give floa"),
        (lambda: embed((1, 16, 32), (1, 16), ids=torch.float), "x has the dtype torch.float32 and ids torch.float32"),
        (lambda: embed((1, 16, 32), (1, 16), past=-1), "past = -1: must be at least 0 and at most 1048576"),
        (lambda: embed((1, 16, 32), (1, 16), past=2**20 + 1), "past = 1048577: must be at least 0 and at most"),
        (lambda: api.encoding("rope", width=4, heads=0, length=9), "heads = 0: must be at least 1 and at most 1048576"),
        (lambda: api.encoding("rope", width=32, heads=4, length=2**20 + 1), "length = 1048577: must be at least 1 and"),
        (lambda: api.encoding("rope", **SIZES, seed=-1), f"seed = -1: must be at least 0 and at most {2**63 - 1}"),
        (lambda: api.encoding("rope", **SIZES, seed=2**63), f"must be at least 0 and at most {2**63 - 1}"),
        (lambda: api.encoding("rope", **SIZES, seed=True), "seed = True: must be a whole number"),
        (lambda: api.results(""), "out = '': must not be empty or hold the character '\\x00'"),
        (lambda: api.results("a\0"), "must not be empty or hold the character '\\x00'"),
        (lambda: api.verify("nowhere.py"), "there is no file"),
        (lambda: api.train("alibi", tokns=5), "train has no option 'tokns': did you mean tokens?"),
        (lambda: api.train("alibi", tokens="lots"), "tokens = 'lots'"),
        (lambda: api.train("alibi", heads=3), "width 128 is not divisible by 3 heads"),
        (lambda: api.train("alibi", preset="tini"), "there is no preset 'tini'"),
        (lambda: api.tune("alibi", tokens=3000), "each trial of a tuning has half of them"),
        (lambda: api.corpus("text:nowhere"), "text:nowhere"),
        (lambda: api.corpus("stdlib", length="long"), "length = 'long': must be a whole number"),
        (lambda: api.corpus("stdlib", length=4), "length = 4: must be at least 8 and at most 65536"),
        (lambda: api.results("nowhere"), "no evaluated runs in nowhere"),
        (lambda: api.load("rope-4db50e90"), "run = 'rope-4db50e90': must be a run, as api.train"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_in_a_line(call: Any, words: str) -> None:
    with pytest.raises(api.PoscliError) as refused:
        call()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def attend(
    spec: str,
    queries: tuple[int, ...],
    keys: tuple[int, ...] | None = None,
    of: Any = None,
    dtype: Any = None,
    on: str = "cpu",
    **options: Any,
) -> torch.Tensor:
    k = torch.zeros(keys or queries, dtype=dtype or of, device=on)
    return api.attention(torch.zeros(queries, dtype=of, device=on), k, k, api.encoding(spec, **SIZES), **options)


def embed(
    x: tuple[int, ...],
    of: tuple[int, ...],
    dtype: Any = None,
    ids: Any = torch.long,
    past: int = 0,
    spec: str = "rope",
) -> Any:
    return api.embed(torch.zeros(x, dtype=dtype), torch.zeros(of, dtype=ids), api.encoding(spec, **SIZES), past=past)


def begin_step(progress: float) -> None:
    api.begin_step(api.encoding("randomized-yarn", **SIZES), progress, torch.Generator())


@torch.no_grad()
def test_every_parameter_of_every_encoding_acts_in_a_model_of_ones_own(
    documented: tuple[dict[str, Any], Path],
) -> None:
    ids = torch.randint(256, (1, 16), generator=torch.Generator().manual_seed(0))
    for spec in (*(name for name in names() if not missing(name)), "rope+smear"):
        decoder = perturbed(documented[0]["Decoder"](spec, **SIZES, layers=1))
        for name, p in decoder.attention[0].encoding.named_parameters():
            before = decoder(ids)
            p.add_(0.1 * draw(*p.shape))
            assert not torch.equal(decoder(ids), before), f"{name} of {spec}"


@torch.no_grad()
def test_autocast_rounds_the_projections_and_not_what_an_encoding_adds(
    documented: tuple[dict[str, Any], Path],
) -> None:
    """Whatever reads the input of the layer, which its norm leaves in float32 beside q, k and v in bfloat16."""
    ids = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
    q, k, v, x = *(draw(1, 4, 16, 8, seed=n) for n in range(3)), draw(1, 16, 32, seed=3)
    for spec in (name for name in names() if not missing(name)):
        decoder = documented[0]["Decoder"](spec, **SIZES)
        if "features" in (encoding := perturbed(decoder.attention[0].encoding)).blanks:
            exact, whole = decoder(ids), api.attention(q, k, v, encoding, x_BSW=x)
            with torch.autocast("cpu", torch.bfloat16):
                assert torch.equal(api.attention(q, k, v, encoding, x_BSW=x), whole), spec
                rounded = decoder(ids)
            assert float((rounded - exact).norm() / exact.norm()) < 2**-5, spec


def test_every_step_draws_positions_for_the_parts_of_compositions(documented: tuple[dict[str, Any], Path]) -> None:
    decoder, ids = documented[0]["Decoder"]("rope+randomized", **SIZES), torch.zeros(1, 16, dtype=torch.long)
    ids[0, 1:] = torch.arange(15)
    draws, drawn = torch.Generator().manual_seed(0), []
    for step in range(2):
        api.begin_step(decoder, step / 2, draws)
        drawn.append(decoder(ids))
    assert not torch.equal(*drawn)


def test_tokens_are_mixed_with_those_before_that_are_given() -> None:
    encoding, x = api.encoding("rope+smear(tokens=3)", **SIZES), draw(1, 16, 32)
    torch.testing.assert_close(api.mix(x[:, 7:], encoding)[:, 2:], api.mix(x, encoding)[:, 9:])
    assert torch.equal(api.mix(x, api.encoding("rope", **SIZES)), x)


def test_cells_are_decoded_on_the_grid_whose_columns_are_given() -> None:
    encoding, (q, k, v) = api.encoding("rope-2d", **SIZES), (draw(1, 4, 16, 8, seed=n) for n in range(3))
    steps = [
        api.attention(*(x[:, :, a:n] for x, a in ((q, n - 1), (k, 0), (v, 0))), encoding, columns=4)
        for n in range(1, 17)
    ]
    torch.testing.assert_close(torch.cat(steps, dim=2), api.attention(q, k, v, encoding))


def test_encodings_are_built_on_cpu_whatever_the_default_device() -> None:
    with torch.device("meta"):
        built = api.encoding("learned+fox", **SIZES)
    assert {p.device.type for p in built.parameters()} == {"cpu"}


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    sizes = {name: np.int64(value) for name, value in SIZES.items()}
    built = api.encoding("learned", **sizes, seed=np.uint8(3))
    assert torch.equal(built.table, api.encoding("learned", **SIZES, seed=3).table)
    assert {type(value) for value in (built.shape.width, built.shape.length)} == {int}
    with pytest.raises(api.UsageError, match="--tokens 1 is less than one step of 1024 tokens"):
        api.train("rope", batch=np.int64(4), length=np.int64(256), tokens=np.int64(1))


def test_the_smallest_and_the_largest_sizes_are_taken() -> None:
    least = api.encoding("alibi", width=1, heads=1, length=1, vocab=1, seed=2**63 - 1)
    assert least.shape == api.Shape(width=1, heads=1, layers=1, length=1, vocab=1)
    assert api.encoding("alibi", width=2, heads=1, length=2**20, seed=0).shape.length == 2**20
    assert embed((1, 16, 32), (1, 16), past=2**20).shape == (1, 16, 32)
    assert attend("fox", (1, 4, 16, 8), x_BSW=torch.zeros(1, 16, 32)).shape == (1, 4, 16, 8)
    layers = api.encodings("rope|none", layers=3, **SIZES)
    assert [each.spec for each in layers] == ["rope", "none", "rope"]
    assert [each.shape.layers for each in layers] == [3, 3, 3]


def test_options_are_in_the_signature_and_in_the_help() -> None:
    own = inspect.signature(api.train).parameters
    assert {"enc", "seed", "tokens", "layers", "recipe"} <= set(own)
    assert not {"model", "options"} & set(own)
    assert {own[name].kind for name in ("tokens", "layers")} == {inspect.Parameter.KEYWORD_ONLY}
    assert own["layers"].default is None
    assert all(f"\n    {name}: " in api.train.__doc__ for name in ("tokens", "layers"))
    assert "\n    model: " not in api.train.__doc__


def local() -> type:
    class Local(api.Encoding): ...

    return Local


# as the commands


def test_a_run_is_the_one_that_the_command_makes(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("own.py").write_text(OWN)
    small = {"preset": "nano", "width": 48, "layers": 1, "length": 32, "batch": 4, "tokens": "1k"}
    run = api.train("own.py", **small, device="cpu", recipe={"matrix_lr": 0.02}, out=here / "results")
    measured = api.extrapolate(run, max_len=64, tokens=64, stride=16, as_="own.py+window(20)", device="cpu")
    assert capfd.readouterr().out == ""
    options = [word for key, value in small.items() for word in (f"--{key}", value)]
    (row,) = document("train", "--enc", "own.py", *options, "--set", "matrix_lr=0.02", "--device", "cpu")
    assert row["run_id"] == run.id
    again = cli("extrapolate", "--max-len", 64, "--tokens", 64, "--stride", 16, "--as", "own.py+window(20)", "--json")
    assert again.err.count("is evaluated already") == 2
    assert len(again.json) == len(measured.rows) == len(api.results())
    assert set(measured.by_length["encoding"]) == {"own.py:Own", "own.py:Own as own.py:Own+window(width=20)"}
    assert [each.id for each in api.runs()] == [run.id]
    weights = {path: path.stat().st_mtime_ns for path in run.folder.rglob("model.safetensors")}
    anew = api.train("own.py", **small, device="cpu", recipe={"matrix_lr": 0.02}, force=True)
    assert weights
    assert all(path.stat().st_mtime_ns > before for path, before in weights.items())
    assert not list(anew.folder.glob("eval.csv"))


def test_an_edited_file_is_another_encoding_at_the_next_call() -> None:
    for divisor in (8, 9):
        Path("own.py").write_text(OWN.replace("/ 8", f"/ {divisor}"))
        bias = api.encoding("own.py", **SIZES).distance_bias(torch.tensor([72]))
        assert float(bias) == -72 / divisor


def test_a_class_without_a_file_is_verified_and_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = type(sys)("cell")
    monkeypatch.setitem(sys.modules, "cell", cell)
    exec(OWN.replace("poscli import api", "poscli import api\n__name__ = 'cell'"), vars(cell))
    assert api.verify(cell.Own).status == "passed"
    with pytest.raises(api.UsageError, match=r"cell:Own has no file, .* %%writefile my_encoding.py"):
        api.train(cell.Own, preset="nano", length=32, batch=4, tokens="1k")


# how objects show themselves


def test_an_encoding_shows_its_formula_blanks_options_and_parameters() -> None:
    Path("own.py").write_text(OWN)
    own = api.encoding("own.py", **SIZES)
    assert repr(own) == "own.py:Own: s -= d / 8 <b>. (fills distance_bias; no parameters)"
    assert "s -= d / 8 &lt;b&gt;." in own._repr_html_()
    page = api.encoding("kerple-power", **SIZES)._repr_html_()
    assert all(
        words in page for words in ("kerple-power", "arXiv:2205.09921", "8 parameters: r1 [4], r2 [4]", "4 heads")
    )
    both = api.encoding("rope(base=500)+window(9)", **SIZES)
    assert repr(both).startswith("rope(base=500.0)+window(width=9): rope: Pair m of q_i")
    assert "window: " in repr(both)
    assert repr(api.encoding("urpe", **SIZES)).startswith("urpe: o_i = sum_j")


def test_a_verdict_shows_what_failed_and_where_to_look() -> None:
    Path("own.py").write_text(OWN.replace("-d[None] / 8", "d[None].log()"))
    verdict = api.verify("own.py")
    assert re.match(r"own.py:Own: failed, \d+ checks hold.*; \w+: ", repr(verdict))
    assert all(words in verdict._repr_html_() for words in ("color: red", "look at: "))


def test_what_was_measured_shows_every_length_and_the_verdict(documented: tuple[dict[str, Any], Path]) -> None:
    names, _ = documented
    measured, table = names["measured"], names["measured"].by_length
    assert list(table["length"]) == [64, 128, 256]
    rows = measured.rows
    sliding = rows[(rows["protocol"] == "sliding") & (rows["variant"] == "full")].set_index("length")
    fixed = rows[(rows["protocol"] == "fixed") & (rows["variant"] == "full")].set_index("length")
    assert table["ppl"].tolist() == pytest.approx(sliding["ppl"].tolist())
    bits = fixed["gain"] * fixed["tokens"] / fixed["bytes"] / 0.6931471805599453
    assert table["gain_bpb"].tolist() == pytest.approx(bits.tolist())
    said = ("64 (1x)", "128 (2x)", "256 (4x)", f"alibi: {measured.summary['verdict'][0]}")
    assert all(words in text for words in said for text in (repr(measured), measured._repr_html_()))


def test_what_was_measured_as_text_and_as_a_page(snapshot: Any) -> None:
    """Three encodings, one of which ends at L; and a task, in one window."""
    shapes = {name: BEHAVIOUR[name] for name in ("alibi", "learned", "rope")}
    rows, _ = results(shapes, lengths=(256, 512, 1024))
    measured = api.Measured.of([rows[rows["encoding"] == name] for name in shapes])
    assert measured.rows.index.is_unique
    task = api.Measured(rows.query("length < 1000 and encoding == 'rope'").assign(accuracy=0.25, gain=float("nan")))
    assert "bits/cell" in repr(api.Measured(measured.rows.assign(corpus="images?levels=16")))
    page = re.sub(r' style="[^"]*"|</t.>', "", measured._repr_html_())
    snapshot(sections({"text": repr(measured), "of a task": repr(task), "page": page}))


def test_a_failed_evaluation_shows_its_status_and_a_task_without_a_gain_its_accuracy(
    documented: tuple[dict[str, Any], Path],
) -> None:
    rows = documented[0]["measured"].rows.copy()
    longest = rows["length"] == 256
    rows.loc[longest, ["status", "reason"]] = ["oom", ""]
    rows.loc[longest, ["nll", "ppl", "bpb", "gain"]] = float("nan")
    text = repr(api.Measured(rows))
    assert re.search(r"256 \(4x\) +oom +- ", text)
    assert "alibi: oom" in text
    assert "accuracy" in repr(api.Measured(rows.assign(gain=float("nan"), accuracy=0.5)))


def test_a_run_and_a_report_show_themselves(documented: tuple[dict[str, Any], Path], monkeypatch) -> None:
    names, folder = documented
    monkeypatch.chdir(folder)
    with pytest.raises(api.UsageError, match=f"judge = {names['run'].id}: it judges the key tokens of why; give why=T"):
        api.extrapolate(names["run"], judge=names["run"])
    with pytest.raises(api.UsageError, match="--smoke scores a few hundred tokens, and --tokens 512 others"):
        api.extrapolate(names["run"], smoke=True, tokens=512)
    page = names["run"]._repr_html_()
    assert all(words in page for words in ("complete at step 3 of 3", "6,144 tokens", "results/runs/alibi-"))
    report = names["report"]
    assert "alibi" in repr(report)
    assert "report.md" in repr(report)
    assert "perplexity 4x" in report._repr_html_()


# whatever is not what a function takes

JUNK = (
    None, 3, -1, 10**30, 0.5, True, "", "\0", "nowhere-4db50e90", b"rope", [], [1], {}, {"a": 1}, object(), int, len,
    torch.zeros(0), torch.zeros(1, 4, 16, 8, dtype=torch.long), torch.zeros(1, 16, 32, dtype=torch.double),
)  # fmt: skip
FUNCTIONS = [*(each for name in api.__all__ if inspect.isfunction(each := getattr(api, name))), api.checkpoint]


def good_arguments() -> dict[str, Any]:
    """A value for each parameter that functions need, by its name."""
    x = torch.zeros(1, 4, 16, 8)
    return {
        "spec": "fox", "enc": "fox", "encoding": "fox", "layers": 2, **SIZES, "first": "a", "second": "b",
        "text": "text:nowhere",
        "model": "nowhere", "run": None, "q_BHTD": x, "k_BHSD": x, "v_BHSD": x, "x_BTW": torch.zeros(1, 16, 32),
        "ids_BT": torch.zeros(1, 16, dtype=torch.long), "x_BSW": torch.zeros(1, 16, 32),
        "module": torch.nn.Linear(1, 1), "progress": 0.5, "draw": torch.Generator(),
    }  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_junk_raises_only_the_promised_errors(function: Any) -> None:
    own = inspect.signature(inspect.unwrap(function)).parameters
    needed = {name: value for name, value in good_arguments().items() if name in own}
    if function in (api.embed, api.mix, api.attention):
        needed["encoding"] = api.encoding("fox", **SIZES)
    if function in (api.train, api.tune):
        needed["tokens"] = 1  # less than one step, so that nothing is trained
    if function is api.verify:
        needed["encoding"] = "nowhere.py"
    refusals: list[str] = []
    for name in (name for name, each in own.items() if each.kind is not inspect.Parameter.VAR_KEYWORD):
        for junk in JUNK:
            try:
                function(**needed | {name: junk})
            except (api.PoscliError, api.Unsupported) as refused:
                refusals.append(str(refused))
    assert len(refusals) >= len(JUNK) - 4  # a parameter may take some of these, as None and a text
    assert not [line for line in refusals if "\n" in line]
