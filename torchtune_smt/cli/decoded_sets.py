"""Sets of the data that runs are to decode for a comparison or an analysis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.core.errors import InputError
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.data.dataset import Dataset


def check_lengths(
    data: Mapping[str, Any],
    split: str,
    corpus: Corpus,
    runs: Iterable[Path],
    chosen: Iterable[int] | None = None,
) -> None:
    """Check, before any of them decodes, that no sentence is too long for some runs.

    Parameters
    ----------
    data : mapping of str to Any
        The options of `Dataset`.
    split : str
        The set that was read.
    corpus : Corpus
        What was read of it.
    runs : iterable of Path
        The weights of the runs.
    chosen : iterable of int, optional
        The sentences that are to be decoded; by default all.

    Raises
    ------
    InputError
        A sentence has more words than a run decodes.
    """
    # Most comparisons need no decoder.
    from torchtune_smt.cli.decoding import longest_source

    numbers = list(range(len(corpus)) if chosen is None else chosen)
    for weights in runs:
        most = longest_source(weights)
        if most is None:
            continue
        for i in numbers:
            words = len(corpus.source[i])
            if words > most:
                with option_errors("data", data):
                    path = Dataset(**data).source_file(split)
                raise InputError(
                    f"has {words} words, and at most {most} are decoded with {weights}; split the "
                    f"sentence, or tune with decoder.max_words={words} or more",
                    path=path,
                    line=corpus.lines[i],
                )
