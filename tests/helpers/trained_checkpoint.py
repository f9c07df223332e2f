"""A small checkpoint that is really trained, by transformers' own model code, for tests and pictures of real effects.

`python tests/helpers/trained_checkpoint.py FOLDER` trains a Llama of 1.1 million parameters on the source of Python's
library, on windows of 128 tokens of a byte-level BPE, in about six minutes on one core, and writes it to FOLDER.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkpoints import byte_pairs
from numpy.typing import NDArray
from tokenizers import Tokenizer

from poscli.data import Split, load_corpus

LENGTH, BATCH, STEPS, VOCAB = 128, 32, 500, 1024
PEAK, WARMUP = 3e-3, 50  # learning rate of AdamW, and the steps in which it rises
END = "<|end|>"  # token 0, which opens every document
SHAPE: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 4}


def train(folder: Path, steps: int = STEPS) -> Path:
    """Train the checkpoint and write it to a folder; returns the folder."""
    import transformers

    corpus = load_corpus("stdlib")
    tokenizer = byte_pairs(documents(corpus.train), VOCAB, [END])
    tokens = encoded(tokenizer, corpus.train)
    torch.manual_seed(0)
    ends = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": None}
    config = transformers.LlamaConfig(**SHAPE, **ends, vocab_size=VOCAB, max_position_embeddings=LENGTH)
    model = transformers.LlamaForCausalLM(config)
    fit(model, tokens, steps)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "model_max_length": LENGTH}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


def documents(split: Split) -> list[str]:
    """The documents of a corpus of bytes as text."""
    texts = [split.tokens[start + 1 : stop] for start, stop in zip(split.starts, split.starts[1:], strict=False)]
    return [text.astype(np.uint8).tobytes().decode(errors="replace") for text in texts]


def encoded(tokenizer: Tokenizer, split: Split) -> NDArray[np.int64]:
    """All documents end to end, each after END."""
    return np.concatenate([[0, *encoding.ids] for encoding in tokenizer.encode_batch(documents(split))])


def fit(model: Any, tokens: NDArray[np.int64], steps: int) -> None:
    """Train a model on random windows with AdamW; the learning rate rises, then falls along a cosine."""
    draw = np.random.default_rng(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(steps):
        rate = min(1, (step + 1) / WARMUP) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = PEAK * rate
        starts = draw.integers(len(tokens) - LENGTH, size=BATCH)
        windows = torch.from_numpy(np.stack([tokens[start : start + LENGTH] for start in starts]))
        loss = model(input_ids=windows, labels=windows, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 49:
            sys.stderr.write(f"step {step + 1} of {steps}: {loss.item():.3f} nats per token\n")


if __name__ == "__main__":
    train(Path(sys.argv[1]))
