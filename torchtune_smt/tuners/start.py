"""What tuning starts from: weights, and the features that OSCAR pulls at, whose number is its d."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder, features_in_use
from torchtune_smt.kbest.lists import Source
from torchtune_smt.kbest.stored_lists import names_in
from torchtune_smt.models.moses_ini import read_any_weights
from torchtune_smt.regularizers.oscar_prox import given_dimension_error
from torchtune_smt.tuners.grouping.steps import count_features


def weights_of_file(
    path: str,
    decoder: Decoder,
    report: Callable[[str], None] = print,
    read: tuple[Vocabulary, Float64] | None = None,
) -> Weights:
    """Return the weights that a file has for features that a decoder may give.

    Weights of other features would have no effect: they are left out, and their number is reported.

    report: told what is left out.
    read: what `read_any_weights` returned, if the file was read already.

    Raises InputError: the file is bad, or of no use with this decoder (see `Decoder.check_start`).
    """
    names, values = read or read_any_weights(path, phrase_decoder=bool(decoder.phrases))
    if decoder.stored:
        names = Vocabulary(names_in(decoder.features, names.names(range(len(names)))))
    there = features_in_use(path, names, decoder, report)
    weights = Weights(decoder.dense_names)
    weights.set(list(compress(names.names(range(len(names))), there)), values[there])
    decoder.check_start(weights, path)
    return weights


def weights_of_values(
    values: Mapping[str, float], decoder: Decoder, report: Callable[[str], None] = print
) -> Weights:
    """Return weights of the features that a decoder knows before it decodes; 0 for others.

    report: told if some dense features have no value, and others have one.

    Raises InputError: it knows none of them, and there must be one (see `Decoder.check_start`).
    """
    weights = Weights(decoder.dense_names)
    known = {name: value for name, value in values.items() if name in decoder.features}
    weights.set(list(known), list(known.values()))
    if values and not known:
        decoder.check_start(weights, None)
    missing = [name for name in decoder.dense_names if name not in known]
    if known and missing:
        report(
            f"init.values has no weight for {len(missing):,} of {len(decoder.dense_names):,} "
            f"dense features, such as {missing[0]}, which start at 0; give one with "
            f"+init.values.{missing[0]}=VALUE, or all with init=file init.file=WEIGHTS"
        )
    return weights


class PulledFeatures:
    """Regularised features that are dense, have a weight, or are found in what is tuned on.

    regularizes_dense: whether dense features are among them.
    found: returns ids in the weights of those that are found; asked at each count.
    """

    def __init__(
        self, weights: Weights, regularizes_dense: bool, found: Callable[[], Int64]
    ) -> None:
        self._weights = weights
        self._first = 0 if regularizes_dense else weights.n_dense
        self._found = found

    def count(self) -> int:
        """Return how many there are now."""
        found = self._found()
        self._weights.grow()
        start = self._weights.parameter.detach().numpy()
        dense = np.arange(self._weights.n_dense)
        return count_features(start, self._first, np.concatenate([dense, found]))

    def check(self, dimension: int) -> None:
        """Raise InputError if a d is smaller than the number of features with a weight."""
        count = int(self._weights.parameter[self._first :].count_nonzero())
        if dimension < count:
            raise given_dimension_error(
                dimension, "regularised features that have a weight already", count
            )


def features_there(decoder: Decoder, sources: Sequence[Source], weights: Weights) -> Int64:
    """Return the features that a decoder says some sentences have, by their ids in the weights."""
    found = decoder.feature_ids(sources)
    assert found is not None
    return weights.take(decoder.features).lookup(found)
