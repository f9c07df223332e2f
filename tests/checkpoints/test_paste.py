"""What is pasted into transformers, vLLM and llama.cpp gives the numbers of poscli's encoding, up to 4 times L.

What is written for each program, or why nothing can be, is in test_snapshots_checkpoints.py. Configurations have the
keys of version 4, as published ones have, or are as the installed version saves them. The tests read them back, and let
the installed version of transformers compute the rotations.
"""

import json
import shlex
import warnings
from functools import cache

import pytest
import torch
import transformers
from checkpoints import FAMILIES, LENGTH, MODEL_TYPES, ROWS, make
from toys import first

from poscli.checkpoints.architecture import architecture
from poscli.checkpoints.checkpoint_model import load_checked
from poscli.checkpoints.paste import cropped, snippets
from poscli.checkpoints.wanted import fixed
from poscli.equation import Shape
from poscli.evaluation.posthoc import with_encoding
from poscli.specs import build, parse

INSTALLED = f"transformers {transformers.__version__.split('.')[0]}"
TARGET = 4 * LENGTH
ROTARY = ["llama", "gpt_neox", "qwen3", "smollm3", "gemma3", "olmo", "mistral", "falcon"]
ROTARY += ["glm", "cohere2", "exaone4", "mixtral"]
SCALINGS = ["rope-linear", "rope-ntk", "rope-dynamic", "yarn", "yarn(factor=8, beta_fast=16, beta_slow=2)", "llama3"]
# An angle below TARGET has a relative error of a few roundings in float32: the frequency, its parts and the product.
TOLERANCE = TARGET * 8 * 2**-24


@cache
def config_of(family):
    """A config.json as published ones are, in the keys of version 4."""
    settings = {key: value for key, value in FAMILIES[family].items() if value is not None}
    return settings | {"model_type": MODEL_TYPES.get(family, family), "vocab_size": ROWS, "pad_token_id": None}


def saved(config):
    """The same configuration as the installed version of transformers writes it."""
    return json.loads(transformers.AutoConfig.for_model(**config).to_json_string())


def with_keys(config, keys):
    """A config.json with the keys of a snippet put into it; those that are None are taken out."""
    return {key: value for key, value in {**config, **keys}.items() if value is not None or key not in keys}


def spec_with(config, target):
    """The model's own spec, with another rope on the layers that have no window or all have one."""
    layers = [layer.spec for layer in architecture(config).layers]
    windowed = all("window" in spec for spec in layers)
    name, _, options = target.partition("(")
    options = f", {options}" if options else ")"

    def replaced(spec):
        rope = spec.split("+")[0]
        if rope == "none" or ("window" in spec and not windowed):
            return spec
        return spec.replace(rope, f"{name}({rope.removeprefix('rope(').removesuffix(')')}{options}")

    return "|".join(replaced(spec) for spec in layers)


def pasted(config, spec, runtime):
    (snippet,) = [s for s in snippets("M", architecture(config), config, spec, TARGET) if s.runtime == runtime]
    return snippet


def rotations(config):
    """Cosines and sines of a stock model; for layers of two thetas both, those with a window first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    modules = {
        name: module for name, module in model.named_modules() if type(module).__name__.endswith("RotaryEmbedding")
    }
    x, pos = torch.zeros(1, 1), torch.arange(TARGET)[None]
    if config["model_type"] == "cohere2":  # its numbers stand twice in a row, those of others half a head apart
        return [tuple(each[..., ::2] for each in next(iter(modules.values()))(x, pos))]
    if config["model_type"] != "gemma3_text":
        return [next(iter(modules.values()))(x, pos)]
    if len(modules) == 2:  # version 4
        return [module(x, pos) for _, module in sorted(modules.items(), key=lambda item: "local" not in item[0])]
    (module,) = modules.values()
    return [module(x, pos, layer_type) for layer_type in ("sliding_attention", "full_attention")]


def expected(config, spec):
    """Cosines and sines of poscli's encodings in float64, likewise."""
    known = architecture(config)
    shape = Shape(
        width=known.heads * known.head_width, heads=known.heads, layers=len(known.layers), length=known.length
    )
    pos, by_spec = torch.arange(TARGET), {}
    for encoding in build(parse(fixed(spec, LENGTH, TARGET)), shape, seed=0):
        parts = getattr(encoding, "parts", [encoding])
        rope = next((part for part in parts if hasattr(part, "angles")), None)
        if rope is not None:
            by_spec[encoding.spec] = [x * rope.amplitude(pos) for x in (rope.angles(pos).cos(), rope.angles(pos).sin())]
    return list(by_spec.values())


def assert_turns_as(config, spec, keys):
    """Assert that a stock model with the pasted keys turns as the spec says."""
    for pair, wanted in zip(rotations(with_keys(config, keys)), expected(config, spec), strict=True):
        for x, y in zip(pair, wanted, strict=True):
            torch.testing.assert_close(x[0, :, : y.shape[1]].double(), y, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("target", ["rope-linear", "rope-dynamic", *SCALINGS[3:]])
@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gemma3", "mistral", "glm"])
@pytest.mark.parametrize("runtime", ["transformers 4", "transformers 5"])
def test_what_is_pasted_is_read_as_the_spec_that_was_asked_for(family, target, runtime):
    config = config_of(family)
    spec = spec_with(config, target)
    snippet = pasted(config, spec, runtime)
    assert json.loads(snippet.text) == snippet.keys
    changed = with_keys(config, snippet.keys)
    read = architecture(changed)
    torch.testing.assert_close(expected(changed, read.spec), expected(config, spec), rtol=0, atol=TOLERANCE)
    promised = {"rope-dynamic": LENGTH, "yarn(factor=8, beta_fast=16, beta_slow=2)": 8 * LENGTH}
    assert read.length == promised.get(target, TARGET)


@pytest.mark.parametrize("target", [*SCALINGS, "longrope", "longrope(start=ntk)"])
@pytest.mark.parametrize("family", first(2, ROTARY))
def test_transformers_computes_the_rotations_of_the_encoding(family, target):
    for config in (config_of(family), saved(config_of(family))):
        spec = spec_with(config, target)
        snippet = pasted(config, spec, INSTALLED)
        if snippet.reason:
            assert (family, INSTALLED) == ("olmo", "transformers 4")
            assert target not in SCALINGS[:3]
        else:
            assert_turns_as(config, spec, snippet.keys)


SCALED = {
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    | {"original_max_position_embeddings": 16},
    "yarn": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.05},
    "linear": {"type": "linear", "factor": 2.0},
}


@pytest.mark.parametrize("kind", SCALED)
def test_a_model_with_a_scaling_of_its_own_gets_another_or_keeps_it(kind):
    config = config_of("llama") | {"rope_scaling": SCALED[kind]}
    known = architecture(config).spec
    others = ("rope(base=5000)", "yarn(base=5000, original=16)", "yarn(base=5000, original=32, truncate=false)")
    for spec in (known, *others):
        assert_turns_as(config, spec, pasted(config, spec, INSTALLED).keys)
    assert pasted(config, known, "llama.cpp").text.splitlines()[-1] == f"llama-server -m MODEL.gguf -c {TARGET}"
    plain = pasted(config, "rope(base=5000)", "llama.cpp")
    assert ("GGUF" in plain.reason) if kind == "llama3" else plain.text.endswith("--rope-scaling none")


def test_the_learned_sinks_of_gpt_oss_need_no_key():
    config = config_of("gpt_oss")
    known = architecture(config).spec
    for spec in (known, known.replace("factor=4.0", "factor=16")):
        read = architecture(with_keys(config, pasted(config, spec, INSTALLED).keys))
        torch.testing.assert_close(expected(config, read.spec), expected(config, spec), rtol=0, atol=TOLERANCE)
    with_sink = pasted(config_of("llama"), "rope(base=5000)+sink-logit", INSTALLED)
    assert "No configuration has a key for rope(base=5000.0)+sink-logit" in with_sink.reason


def test_phi_3_keeps_its_two_lists_and_takes_no_other_scaling():
    lists = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 4.0, 8.0]}
    config = config_of("llama") | {"model_type": "phi3", "rope_scaling": {"type": "longrope"} | lists}
    config |= {"original_max_position_embeddings": 16}
    known = architecture(config)
    for runtime in ("transformers 4", "transformers 5"):
        read = architecture(with_keys(config, pasted(config, known.spec, runtime).keys))
        assert [layer.numbers for layer in read.layers] == [lists] * 3
        assert read.spec == known.spec
        assert "only the scaling longrope" in pasted(config, "yarn(base=5000)", runtime).reason
    keys = json.loads(flags(pasted(config, known.spec, "vLLM").text)["--hf-overrides"])
    attention = (1 + torch.tensor(4.0).log() / torch.tensor(16.0).log()).sqrt()  # 64 tokens over 16
    assert keys["rope_parameters"]["long_mscale"] == pytest.approx(float(attention), rel=1e-6)
    assert keys["max_position_embeddings"] == TARGET
    transformers.AutoConfig.for_model(**with_keys(config, pasted(config, known.spec, INSTALLED).keys))  # it is accepted


def flags(text):
    """The options of a command line by name; those without a dash are words."""
    words = shlex.split(text)
    return {word: words[n + 1] for n, word in enumerate(words) if word.startswith("-")}


def by_llama_cpp(options, theta, width):
    """Cosines and sines as ggml computes them from these options, in float64."""
    pairs, pos = torch.arange(width // 2).double(), torch.arange(TARGET).double()
    base = float(options.get("--rope-freq-base", theta))
    scale = 1 / float(options.get("--rope-scale", 1))
    far = pos[:, None] * base ** (-2 * pairs / width)
    if options.get("--rope-scaling") != "yarn":
        return (far * scale).cos(), (far * scale).sin()
    context, log = float(options["--yarn-orig-ctx"]), torch.tensor(base).double().log()
    betas = [float(options.get(name, default)) for name, default in (("--yarn-beta-fast", 32), ("--yarn-beta-slow", 1))]
    edges = [width * torch.tensor(context / (beta * 2 * torch.pi)).double().log() / (2 * log) for beta in betas]
    low, high = max(0.0, float(edges[0].floor())), min(width - 1.0, float(edges[1].ceil()))
    mix = 1 - ((pairs - low) / max(0.001, high - low)).clamp(0, 1)
    angle, magnitude = far * scale * (1 - mix) + far * mix, 1 + 0.1 * torch.tensor(1 / scale).double().log()
    return angle.cos() * magnitude, angle.sin() * magnitude


@pytest.mark.parametrize("target", ["rope-linear", "rope-ntk", "yarn", "yarn(factor=8, beta_fast=16, beta_slow=2)"])
@pytest.mark.parametrize(("family", "width"), [("llama", 8), ("gpt_neox", 4)])
def test_llama_cpp_computes_the_rotations_of_the_encoding(family, width, target):
    config = config_of(family)
    spec = spec_with(config, target)
    options = flags(pasted(config, spec, "llama.cpp").text)
    assert options["-c"] == str(TARGET)
    cos, _ = by_llama_cpp(options, config.get("rope_theta") or config["rotary_emb_base"], width)
    torch.testing.assert_close(cos, expected(config, spec)[0][0], rtol=0, atol=1e-6)  # the base has ten digits


def test_the_factor_of_the_length_is_written_out():
    assert fixed("yarn(base=5000)|none", 64, 256) == "yarn(factor=4.0, base=5000.0)|none"
    assert fixed("rope-linear(factor=2)", 64, 256) == "rope-linear(factor=2.0)"
    assert fixed("rope+window(16)", 64, 256) == "rope+window(width=16)"
    assert fixed("rope+window(0.25L)", 64, 256) == "rope+window(width=16)"
    assert fixed("rope-linear(original=0.5L)", 64, 256) == "rope-linear(factor=8.0, original=32)"
    assert fixed("rope-dynamic", 64, 256) == "rope-dynamic"  # its factor is another number, and has a default
    assert fixed("rope+interpolated", 64, 96) == "rope+interpolated(factor=1.5)"


@pytest.mark.parametrize(("family", "target"), [("llama", "yarn"), ("gemma3", "rope-ntk"), ("gpt_neox", "rope-linear")])
def test_the_stock_model_with_the_pasted_keys_has_the_logits_that_were_measured(tmp_path, family, target):
    folder = make(family, tmp_path / family)
    config = json.loads((folder / "config.json").read_text())
    known, device = architecture(config), torch.device("cpu")
    spec = fixed(spec_with(config, target), LENGTH, TARGET)
    tokens = torch.arange(TARGET)[None] * 37 % ROWS
    with torch.inference_mode():
        measured = with_encoding(load_checked(folder, known, device, torch.float32), spec, known.spec)(tokens)
        keys = pasted(config, spec, INSTALLED).keys
        (folder / "config.json").write_text(json.dumps(with_keys(config, keys)))
        stock = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        logits = stock(input_ids=tokens, use_cache=False).logits
    # Float32 angles below 256 are off by up to 256 * 2^-22 = 6e-5. Without the keys a quarter of the spread is missing.
    assert (logits - measured).square().mean().sqrt() < 1e-3 * measured.std()


def test_the_model_is_loaded_from_the_commit_or_the_file_that_was_measured():
    config = config_of("llama")
    known = architecture(config)
    runtimes = ["transformers", "vllm"]
    first, _, served = snippets("ORG/M", known, config, "yarn", TARGET, runtimes, revision="0123abc")
    assert first.action == "merge into config.json"
    assert shlex.split(served.text)[:5] == ["vllm", "serve", "ORG/M", "--revision", "0123abc"]
    assert 'from_pretrained("ORG/M", revision="0123abc", ' in cropped("ORG/M", 64, revision="0123abc")[0].text
    file = "/some models/whole.gguf"
    first, _, served = snippets(file, known, config, "yarn", TARGET, runtimes)
    assert first.action == "merge into config.json of the checkpoint that the file was converted from"
    assert shlex.split(served.text)[:3] == ["vllm", "serve", file]
    assert 'from_pretrained("/some models", gguf_file="whole.gguf", ' in cropped(file, 64)[0].text


@pytest.mark.parametrize("family", ["helium", "flex_olmo"])
def test_a_model_type_that_llama_cpp_does_not_have_gets_the_reason(family):
    config = config_of(family)
    (found,) = snippets("M", architecture(config), config, "yarn", TARGET, ["llama.cpp"])
    assert (found.text, "llama.cpp has no models of type" in found.reason) == ("", True)
