"""What is passed along: source sentences and their k-best lists."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from torchtune_smt.core.arrays import Float64, Int32, Int64


@dataclass(frozen=True)
class Source:
    """A source sentence.

    Attributes
    ----------
    index : int
        Its number in the set at hand; references are found by it.
    words : list of str
    train_index : int
        Its number in the training bitext, where it stands in it: it is then decoded with rules
        and with a language model that have not seen it. -1 elsewhere.
    """

    index: int
    words: list[str] = field(default_factory=list)
    train_index: int = -1


@dataclass
class KBest:
    """The k highest scoring derivations of one sentence, best first.

    Attributes
    ----------
    index : int
        `Source.index` of the sentence.
    token_begin : int64 [k + 1]
    tokens : int32 [number of tokens]
        Hypothesis h is ``tokens[token_begin[h]:token_begin[h + 1]]``, word ids.
    row_begin : int64 [k + 1]
    feature : int64 [non-zeros]
    value : float64 [non-zeros]
        Features of hypothesis h, in CSR form; ids ascend within a row, none occurs twice.
    score : float64 [k]
        Model scores: row · W, descending.
    gain : float64 [k], optional
        Sentence-level gains, once a metric has given them.
    """

    index: int
    token_begin: Int64
    tokens: Int32
    row_begin: Int64
    feature: Int64
    value: Float64
    score: Float64
    gain: Float64 | None = None

    def __len__(self) -> int:
        return self.score.size

    def hypothesis(self, h: int) -> Int32:
        """Return the word ids of hypothesis `h`."""
        return self.tokens[self.token_begin[h] : self.token_begin[h + 1]]

    def row(self, h: int) -> tuple[Int64, Float64]:
        """Return the feature ids and values of hypothesis `h`."""
        span = slice(self.row_begin[h], self.row_begin[h + 1])
        return self.feature[span], self.value[span]

    def rows(self, dimension: int) -> torch.Tensor:
        """Return the features as a sparse CSR tensor, k × `dimension`, that shares this memory."""
        return torch.sparse_csr_tensor(
            torch.from_numpy(self.row_begin),
            torch.from_numpy(self.feature),
            torch.from_numpy(self.value),
            size=(len(self), dimension),
            check_invariants=False,
        )

    def check_finite(self) -> None:
        """Raise ValueError where a score, value or gain is NaN or infinite."""
        for name in ("score", "value", "gain"):
            array = getattr(self, name)
            if array is not None and not np.isfinite(array).all():
                raise ValueError(
                    f"sentence {self.index}: a {name} of its k-best list is not finite"
                )
