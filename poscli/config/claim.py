"""Claims: published statements about encodings, as bounds on numbers that a suite measures."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from poscli.config.validate import Request

NUMBER = (
    "the loss of `of` minus that of `over` at this length, in bits per byte; without `over`, the context gain of `of`, "
    "by how much its loss is below that of the same model with the context cut to L. In tasks with right answers, "
    "accuracies take the place of both"
)


class Condition(Request):
    """A number of the results, and the bounds that it keeps to if a claim holds."""

    of: str = Field(description="An encoding of the suite, or `SPEC as SPEC` for a model evaluated under another one.")
    over: str = Field("", description="Another one, on the same text and seeds, whose number is subtracted.")
    at: float = Field(ge=1, description="Length of the window, as a multiple of the training length L.")
    more: float | None = Field(None, description=f"The number lies above this. The number is {NUMBER}.")
    less: float | None = Field(None, description="The number lies below this.")
    given: bool = Field(
        False, description="The claim takes this for granted; where it does not hold, the claim cannot be seen."
    )

    @model_validator(mode="after")
    def _bounded(self) -> Condition:
        if self.more is None and self.less is None:
            raise ValueError(f"of = {self.of!r} has no bound; add more = NUMBER, less = NUMBER, or both")
        if self.more is not None and self.less is not None and self.more >= self.less:
            raise ValueError(f"no number lies above more = {self.more} and below less = {self.less}; exchange them")
        if self.of == self.over:
            raise ValueError(f"{self.of!r} is compared with itself; name another encoding in `over`, or leave it out")
        return self


class Claim(Request):
    """A published statement and the conditions under which the results replicate it: all of them."""

    says: str = Field(description="The statement, in a sentence.")
    source: str = Field(description="Who says so, such as arXiv:2309.17453.")
    when: list[Condition] = Field(
        min_length=1, description="What has to hold, written [[claim.when]]: bounds on numbers of the results."
    )

    @field_validator("when", mode="before")
    @classmethod
    def _list(cls, value: object) -> object:
        if isinstance(value, dict):
            raise ValueError("a condition of a claim begins with [[claim.when]], in two pairs of brackets")
        return value

    @property
    def labels(self) -> frozenset[str]:
        """The encodings that the conditions name."""
        return frozenset(name for each in self.when for name in (each.of, each.over) if name)
