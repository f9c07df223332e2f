"""`poscli generate --model`: text of a checkpoint, with its chat template if that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poscli.checkpoints.commands import PLACE
from poscli.cli.commands import COMMANDS
from poscli.cli.commands.generate import OtherWriters, Writer, plainly
from poscli.system.errors import DataError, UsageError
from poscli.system.text import printable

if TYPE_CHECKING:
    import torch

ModelName = Annotated[
    str | None,
    typer.Option(
        "--model", help="Let a checkpoint of transformers write: a folder, a file of GGUF, or hf:ORG/NAME@REVISION.",
        metavar=PLACE,
    ),
]  # fmt: skip
Chat = Annotated[
    bool, typer.Option("--chat", help="With --model: put the prompt into the model's chat template, as a user's.")
]
Corpus = Annotated[
    str | None, typer.Option("--corpus", help="With --model and --after: the text, by default whole:stdlib.")
]


@dataclass(frozen=True)
class CheckpointWriter(OtherWriters):
    """Which checkpoint writes, and how it is asked."""

    model: ModelName = None
    chat: Chat = False
    corpus: Corpus = None

    def writer(self, device: torch.device, prompt: str | None, after: int | None, selected: list[str]) -> Writer | None:
        if self.model is None:
            for name, value in (("--chat", self.chat), ("--corpus", self.corpus)):
                if value:
                    raise UsageError(f"{name} is for --model: a trained run has its own text; leave it out")
            return None
        if selected:
            raise UsageError(
                f"{selected[0]} is a trained run, and --model {self.model} a checkpoint; leave one of the two out"
            )
        if self.corpus and after is None:
            raise UsageError(f"--corpus {self.corpus} is the text that --after reads; give that too, or leave it out")
        if self.chat and after is not None:
            raise UsageError("--chat begins a conversation, which does not go on after a text; leave out --after")
        if self.chat and not prompt:
            raise UsageError("--chat puts a prompt into the model's chat template; give one with --prompt")
        from poscli.checkpoints import CORPUS
        from poscli.checkpoints.models import checkpoint_at, load_checkpoint
        from poscli.checkpoints.source import GENERATION
        from poscli.data.tokenizers import tokenizer

        read = checkpoint_at(self.model, device, corpus=self.corpus or CORPUS)
        config, folder = read.run, read.source.folder
        coder, ends = tokenizer(config.tokenizer), set[int]()
        for stated in (read.config, _generation(folder / GENERATION)):
            end = stated.get("eos_token_id")
            ends |= {each for each in (end if isinstance(end, list) else [end]) if isinstance(each, int)}
        opening = () if self.chat or not coder.opens else (coder.end,)
        tokens_of = _as_chat(folder) if self.chat else plainly(coder)
        model = load_checkpoint(config, device)
        return Writer(read.name, config, model, coder, opening, frozenset(ends or {coder.end}), tokens_of)


def _generation(file: Path) -> dict[str, Any]:
    """What generation_config.json says, which not every checkpoint has."""
    from poscli.checkpoints.source import FETCH
    from poscli.system.files import read_object

    return read_object(file, FETCH) if file.exists() else {}


def _as_chat(folder: Path) -> Callable[[str], list[int]]:
    """How a prompt becomes the first turn of a conversation; DataError if the checkpoint has no template for one."""
    import jinja2
    import transformers

    coder: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if not coder.chat_template:
        raise DataError(f"the tokenizer of {folder} has no chat template; leave out --chat")

    def tokens_of(prompt: str) -> list[int]:
        turns = [{"role": "user", "content": prompt}]
        try:
            text = coder.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        except (jinja2.TemplateError, TypeError, ValueError) as error:  # what a template raises, or does to its input
            said = " ".join(str(error).split()) or type(error).__name__
            raise DataError(
                f"the chat template of {folder} fails ({printable(said)}); mend tokenizer_config.json, or leave out "
                "--chat"
            ) from error
        return [int(token) for token in coder(text, add_special_tokens=False).input_ids]

    return tokens_of


COMMANDS.add("generate.model", CheckpointWriter)
