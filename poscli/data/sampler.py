"""Training batches as a pure function of (split, seed, step), so that resuming a run needs only its step."""

from __future__ import annotations

import numpy as np

from poscli.data.corpus import Split


def batch(split: Split, *, length: int, size: int, seed: int, step: int, segments: int = 1) -> np.ndarray:
    """Windows drawn uniformly from a split: int64 `[size, length + 1]`, the inputs and the target after the last one.

    With `segments` above 1, the windows of that many consecutive steps continue each other; then new starts are drawn.
    A window may run into the next document, which its `end` token marks. `check_trainable` checks that a window fits.
    """
    step, segment = divmod(step, segments)
    # Each seed is a key of Philox and each step has a block of 2^192 counters, so streams never overlap. Raw words are
    # used because numpy does not promise that the methods of Generator stay the same between releases. The bias of the
    # modulo is below 2^-20 for every corpus under 2^44 tokens.
    words = np.random.Philox(key=seed, counter=step << 192).random_raw(size)
    starts = (words % np.uint64(len(split.tokens) - segments * length)).astype(np.int64) + segment * length
    return split.tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64)
