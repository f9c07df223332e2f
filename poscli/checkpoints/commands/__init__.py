"""What checkpoints add to the command line: card, advise, audit, and the --model of extrapolate and generate."""

from __future__ import annotations

from typing import Annotated

import typer

PROSE = 110  # characters of a line of sentences
PLACE = "DIR|FILE.gguf|hf:ORG/NAME"  # how the help says where a checkpoint is
Checkpoint = Annotated[
    str,
    typer.Argument(
        help="A checkpoint of transformers: a folder, a file of GGUF, or hf:ORG/NAME@REVISION.", metavar=PLACE
    ),
]
