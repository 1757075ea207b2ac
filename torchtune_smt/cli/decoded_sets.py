"""Sets of the data that runs are to decode for a comparison or an analysis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.core.errors import InputError
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.kbest.lists import Source

if TYPE_CHECKING:
    from torchtune_smt.core.snapshot import FrozenWeights
    from torchtune_smt.decoders.base import Decoder


class Opened(NamedTuple):
    """What decodes a set.

    Attributes
    ----------
    decoder : Decoder
    weights : FrozenWeights
    sources : list of Source
        Those of the whole set. Where they are in the bitext that the decoder's model was built
        from, they are left out of it, as in tuning.
    """

    decoder: Decoder
    weights: FrozenWeights
    sources: list[Source]


def open_run(weights: Path, split: str, corpus: Corpus, more: Sequence[Any] = ()) -> Opened:
    """Return the decoder of a run, given by its weights, and a set as it is to decode it.

    Parameters
    ----------
    split : str
        What the set is called. Sentences of ``train`` alone are looked up in the bitext.
    more : sequence of RuleTemplate
        As for `torchtune_smt.cli.decoding.tuned_of`.
    """
    # Most comparisons need no decoder.
    from torchtune_smt.cli.decoding import tuned_of

    decoder, own, train_index = tuned_of(weights, more, corpus if split == "train" else None)
    sources = [Source(i, words, train_index.get(i, -1)) for i, words in enumerate(corpus.source)]
    return Opened(decoder, own, sources)


def places_in_bitext(corpus: Corpus, bitext: Corpus) -> dict[int, int]:
    """Return by the number of a sentence its number in the bitext: that of the same line there.

    A set that is read as a bitext lacks lines that are too long. One that is read from other files,
    or prepared in another way, has other words in a line.
    """
    places = {line: number for number, line in enumerate(bitext.lines)}
    found = ((i, places.get(line)) for i, line in enumerate(corpus.lines))
    return {
        i: number
        for i, number in found
        if number is not None and corpus.source[i] == bitext.source[number]
    }


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
