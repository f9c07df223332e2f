"""`poscli advise` from the command line to the page, on a small random checkpoint and on synthetic measurements."""

import pytest
from checkpoints import LENGTH, make, write_corpus
from cli_runner import assert_refused, cli, document
from fake_results import results, units_of

from poscli.checkpoints import matrix
from poscli.checkpoints.matrix import read_target
from poscli.runs.results import Tables
from poscli.system.errors import UsageError

T = 2 * LENGTH


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Refusals must write nothing to the current folder, which is quicker to see in an empty one."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a Llama and a corpus of sixteen documents."""
    folder = tmp_path_factory.mktemp("advise")
    make("llama", folder / "llama")
    write_corpus(folder / "text.jsonl")
    return folder


def options(place, *more):
    corpus = ("--corpus", f"jsonl:{place / 'text.jsonl'}", "--tokens", 256, "--out", place / "results")
    return (place / "llama", "--target", "2x", *corpus, *more)


def synthetic(monkeypatch, behaviours):
    """Measurements with these gains at the target, in the place of the real ones."""

    def measured(asked):
        names = {"llama" if name == "own" else f"llama as {name}": shape for name, shape in behaviours.items()}
        rows, _ = results(names, train_length=LENGTH, lengths=(LENGTH, T))
        return Tables(rows, rows, {"units": units_of(rows, documents=16)})

    monkeypatch.setattr(matrix, "measured", measured)


def test_a_random_model_gets_no_advice_and_its_runs_can_be_reported(place):
    found = document("advise", *options(place, "--as", "yarn", "--as", "rope-dynamic"))
    assert found["answer"][0].startswith("No advice: on this text llama is no better than a guess")
    specs = [each["spec"] for each in found["candidates"]]
    assert sorted(filter(None, specs)) == ["rope-dynamic(base=5000.0)", "yarn(factor=2.0, base=5000.0)"]
    assert found["target"] == T
    again = cli("advise", *options(place, "--as", "yarn", "--as", "rope-dynamic"))
    assert again.err.count("nothing to do") == 3  # everything was measured before
    report = document("report", "--out", place / "results")
    assert {row["encoding"] for row in report["summary"]} >= {"llama", "llama as yarn(factor=2.0, base=5000.0)"}


def test_what_gains_is_pasted_for_every_program(place, monkeypatch):
    yarn = "yarn(factor=2.0, base=5000.0)"
    synthetic(monkeypatch, {"own": (1.3, lambda o: -0.5 * o), yarn: (1.31, lambda o: 0.2 * o)})
    found = document("advise", *options(place, "--as", "yarn"))
    assert found["chosen"]["spec"] == yarn
    assert [each["runtime"] for each in found["paste"]] == ["transformers 5", "transformers 4", "vLLM", "llama.cpp"]
    assert found["paste"][0]["keys"]["rope_parameters"]["factor"] == 2
    page = cli("advise", *options(place, "--as", "yarn", "--runtime", "llama.cpp", "--runtime", "vllm"))
    assert page.code == 0
    assert page.out.splitlines()[0].startswith(f"Run llama under {yarn}: at {T} tokens it gains +0.")
    assert f"llama-server -m MODEL.gguf -c {T} --rope-scaling yarn --rope-scale 2 --yarn-orig-ctx {LENGTH}" in page.out
    assert "vllm serve" in page.out
    assert "transformers" not in page.out


def test_where_no_program_has_a_key_the_best_that_has_one_is_named_too(place, monkeypatch):
    rerope, ntk = "rerope(base=5000.0)", "rope-ntk(factor=2.0, base=5000.0)"
    behaviours = {"own": (1.3, lambda o: -0.5 * o), rerope: (1.3, lambda o: 0.3 * o), ntk: (1.3, lambda o: 0.1 * o)}
    synthetic(monkeypatch, behaviours)
    found = document("advise", *options(place, "--as", "rerope"))
    assert found["chosen"]["spec"] == rerope
    assert all("code of its own" in each["reason"] for each in found["paste"])
    assert found["instead"]["spec"] == ntk
    page = cli("advise", *options(place, "--as", "rerope"))
    assert f"The best of those that these programs have: {ntk}." in page.out


def test_where_nothing_gains_the_last_tokens_are_read(place, monkeypatch):
    synthetic(monkeypatch, {"own": (1.3, lambda o: -0.5 * o), "none": (1.3, lambda o: -0.9 * o)})
    page = cli("advise", *options(place, "--as", "none"))
    assert page.out.startswith(f"Let llama read the last {LENGTH} tokens only")
    assert f"max_length={LENGTH}" in page.out
    assert f'"truncate_prompt_tokens": {LENGTH}' in page.out


def test_a_dry_run_writes_nothing(place, tmp_path):
    corpus = f"jsonl:{place / 'text.jsonl'}"
    found = cli("advise", place / "llama", "--target", "2x", "--corpus", corpus, "--dry-run", "--out", tmp_path / "new")
    assert found.code == 0
    assert "self-extend" in found.out
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("changes", "code", "words"), [
    (("--target", "long"), 2, ("--target 'long'", "write 32k, 8192 or 4x")),
    (("--target", "0.5x"), 2, ("32 tokens", "must be above the 64")),
    (("--target", "1x"), 2, ("64 tokens", "must be above the 64")),
    (("--target", "1.01x"), 2, "no whole number"),
    (("--target", "9999999999"), 2, "at most"),
    (("--tokens", "some"), 2, ("--tokens 'some'", "write 4096, 500k or 2M")),
    (("--runtime", "vlm"), 2, ("--runtime 'vlm'", "did you mean vllm?")),
    (("--as", "alibi"), 2, "cannot be evaluated as alibi"),
])  # fmt: skip
def test_bad_input_is_refused_in_one_line(place, changes, code, words):
    assert_refused(("advise", *options(place), *changes), code, words)


def test_lengths_of_contexts_are_binary_and_multiples_of_the_trained_length():
    assert read_target("32k", 2048) == 32768
    assert read_target("128K", 2048) == 131072
    assert read_target("0.5M", 2048) == 524288
    assert read_target("3.5x", 2048) == 7168
    assert read_target(" 5000 ", 2048) == 5000
    for text in ("", "-1", "4xx", "1e5", "k", "9" * 200):
        with pytest.raises(UsageError, match="is no length"):
            read_target(text, 2048)
