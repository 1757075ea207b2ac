"""What tuning starts from: weights, their scale, and the features that OSCAR pulls at: its d."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import compress

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.errors import DivergenceError, InputError
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder, features_in_use
from torchtune_smt.kbest.lists import KBestLists, Source
from torchtune_smt.kbest.stored_lists import names_in
from torchtune_smt.losses import Loss
from torchtune_smt.models.moses_ini import read_any_weights
from torchtune_smt.regularizers.base import given_dimension_error
from torchtune_smt.samplers import PairSampler
from torchtune_smt.tuners.gradient import gradient
from torchtune_smt.tuners.grouping.steps import count_features


def weights_of_file(
    path: str,
    decoder: Decoder,
    report: Callable[[str], None] = print,
    read: tuple[Vocabulary, Float64] | None = None,
) -> Weights:
    """Return the weights that a file has for features that a decoder may give.

    Weights of other features would have no effect: they are left out, which is reported.

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


def weights_of_files(
    read: Mapping[str, tuple[str, tuple[Vocabulary, Float64]]], decoder: Decoder
) -> Weights:
    """Return the weights that files have for parts of a decoder, or one has for all of it.

    read: by the name of the part, which is empty for all of it: the path, and what
        `read_any_weights` returned.

    Raises InputError: as `weights_of_file`.
    """
    weights = Weights(decoder.dense_names)
    for part, (path, found) in read.items():
        if not part:
            return weights_of_file(path, decoder, read=found)
        own = weights_of_file(path, decoder.parts[part], read=found)
        names = own.features.names(range(len(own)))
        weights.set([f"{part}_{name}" for name in names], own.numbers())
    return weights


def weights_of_values(
    values: Mapping[str, float], decoder: Decoder, report: Callable[[str], None] = print
) -> Weights:
    """Return weights of the features that a decoder knows before it decodes; 0 for others.

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


def fitting_scale(
    lists: KBestLists,
    weights: Weights,
    loss: Loss,
    sampler: PairSampler | None,
    seed: Sequence[int],
) -> float | None:
    """Return by what factor the loss of some lists, with gains, is least under scaled weights.

    The factor changes no translation, but neither losses nor the steps of optimizers are free of
    scale: far from it, steps of the usual length change next to nothing, or undo the start.

    Returns float, optional: between 2^-16 and 2^16, to three digits; None where the loss has no
    minimum there, as a perceptron's, which is least at 0, or that of lists without any mistake.
    """
    names, values = weights.features, weights.parameter.detach().numpy().astype(np.float64)

    def mean(exponent: float) -> float:
        scaled = FrozenWeights(names, values * 2.0**exponent)
        try:
            return gradient(lists, scaled, loss, sampler, seed).loss
        except DivergenceError:
            return math.inf

    exponents = range(-16, 17)
    means = [mean(exponent) for exponent in exponents]
    least = int(np.argmin(means))
    if not means[0] > means[least] < means[-1]:
        return None
    # It takes a fifth of a second to import.
    from scipy.optimize import minimize_scalar

    around = (exponents[least - 1], exponents[least + 1])
    found = minimize_scalar(mean, bounds=around, method="bounded", options={"xatol": 1e-3})
    return float(f"{2.0**found.x:.3g}")


class PulledFeatures:
    """Regularised features that are dense, if these are so, have a weight, or are found.

    found: returns ids in the weights of those that what is tuned on has.
    """

    def __init__(
        self, weights: Weights, regularizes_dense: bool, found: Callable[[], Int64]
    ) -> None:
        self._weights, self._found = weights, found
        self._first = 0 if regularizes_dense else weights.n_dense

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
    """Return the features that a decoder says some sentences have, by their ids in the weights.

    Raises InputError: it cannot say.
    """
    found = decoder.feature_ids(sources)
    if found is None:
        raise InputError(
            "OSCAR counts the sparse features that sentences can have, and with this decoder, or "
            "features of whole translations, nobody knows them before: say how many there are, as "
            "in regularizer.dimension=100000"
        )
    return weights.take(decoder.features).lookup(found)
