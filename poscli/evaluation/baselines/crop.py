"""The window cut to the training length."""

from poscli.evaluation.baseline import BASELINES, Baseline


@BASELINES.register("crop")
class Crop(Baseline):
    """The same model, reading the last L tokens of the window, L the training length."""

    def explain(self) -> str:
        return (
            "**crop**: the same model reads only the last L tokens. The gain is the loss under crop minus the loss "
            "with the whole window. Above zero, the model profits from context longer than in training; a flat "
            "perplexity without a gain means that the longer context makes no difference."
        )

    def window(self, length: int, train_length: int) -> int:
        return train_length
