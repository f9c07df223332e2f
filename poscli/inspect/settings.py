"""What `poscli inspect` is asked for. Nothing in this file imports torch."""

from __future__ import annotations

from pydantic import Field

from poscli.config.run import ModelConfig
from poscli.config.validate import MOST, Request

SHORTEST, LONGEST = 16, 2**17  # tokens of a training window; of the longest window that is drawn
DRAWN = 16  # times the training length, up to which curves are drawn unless --max-len says otherwise


class DrawnShape(Request):
    """The fields of a model's shape that an encoding may depend on."""

    layers: int = Field(ge=1, description=ModelConfig.model_fields["layers"].description)
    width: int = Field(ge=2, description=ModelConfig.model_fields["width"].description)
    heads: int = Field(ge=1, description=ModelConfig.model_fields["heads"].description)


class InspectSettings(Request):
    """For which model an encoding is built, and how far it is drawn. Every field is an option of `poscli inspect`."""

    length: int = Field(512, ge=SHORTEST, le=LONGEST, description="Tokens in a training window, L; marked by a line.")
    max_len: int | None = Field(
        None, ge=SHORTEST, le=LONGEST, description="Longest window that is drawn; by default 16 times L."
    )
    preset: str = Field("tiny", description="Shape of the model: nano, copy, tiny, small or base.")
    model: dict[str, int] = Field({}, description="Single fields of the model's shape, instead of the preset's.")
    seed: int = Field(0, ge=0, le=MOST, description="Seed of initial weights and of random input.")
    properties: bool = Field(True, description="Whether to measure the property sheet, which takes some seconds.")

    def drawn(self, length: int) -> int:
        """The longest window to draw for a training length."""
        return min(LONGEST, DRAWN * length) if self.max_len is None else self.max_len
