"""What tuned weights are worth: BLEU on devtest and test, features that are active and reused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig
from reuse import count_reuse, firing_features

from torchtune_smt.core.resources import config_folder
from torchtune_smt.core.textio import atomic_writer, read_lines
from torchtune_smt.core.weights import Weights
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.evaluation import Evaluation
from torchtune_smt.kbest.lists import KBest, Source
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.metrics.corpus import corpus_bleu
from torchtune_smt.tuners.grouping.groups import read_groups
from torchtune_smt.tuners.sentences import translate

DEVTEST, TEST = "devtest.translations.txt", "test.translations.txt"
GROUPS = "groups.tsv.gz"
REUSE_K = 1000
BATCH = 64
SIGNIFICANCE: Final = "randomization"


class Features(NamedTuple):
    """Counts of features: active ones (groups, where there are any), reused, and single ones."""

    active: int
    reused: int
    atomic: int


def configuration(overrides: Sequence[str]) -> DictConfig:
    """Return the configuration of train.py with some overrides."""
    with initialize_config_dir(config_dir=str(config_folder()), version_base="1.3"):
        return compose("train", overrides=list(overrides))


class Corpus:
    """A corpus and its model, with which tuned weights are tried out.

    Parameters
    ----------
    overrides : sequence of str
        Of train.py; all runs have them.
    splits : dict of str to str
        The sets of the data that stand for ``devtest``, ``test`` and perhaps others.
    reuse_k : int
        Features that fire in so many best translations of a sentence of test are reused.

    Attributes
    ----------
    sizes : dict of str to int
        Sentences of ``train``, ``dev`` and those of `splits`.
    n_references : int
        The most that a sentence of test has.
    """

    def __init__(
        self, overrides: Sequence[str], splits: dict[str, str], reuse_k: int = REUSE_K
    ) -> None:
        self._reuse_k = reuse_k
        cfg = configuration(overrides)
        dataset = Dataset(**cfg.data)
        train = dataset.require("train", training=True)
        self._model = instantiate(cfg.model).open(
            lambda: train, report=lambda line: print(line, flush=True)
        )
        self.sizes = {"train": len(train.source), "dev": len(dataset.require("dev").source)}
        self._sets: dict[str, Sentences] = {}
        for name, split in splits.items():
            corpus = replace(dataset, test=split).require("test")
            self._sets[name] = Sentences.of(corpus.source, corpus.references)
            self.sizes[name] = len(self._sets[name])
        self.n_references = max(map(len, self._sets["test"].references))

    def sources(self, name: str) -> list[Source]:
        """Return the sentences of a set."""
        return self._sets[name].sources

    def score(self, name: str, overrides: Sequence[str], folder: Path) -> float:
        """Return the BLEU of a run's weights on a set, translating it if that is still to do."""
        path = folder / f"{name}.translations.txt"
        if not path.is_file():
            decoder, weights = self.system(overrides, folder)
            _write(path, translate(decoder, weights, self._sets[name].sources))
        return self.bleu(name, path)

    def test(self, overrides: Sequence[str], folder: Path, output: Path) -> Features:
        """Translate test with a run's weights, and count the features.

        Where a run has groups of features, they are counted.

        Parameters
        ----------
        output : path
            File of the translations.
        """
        decoder, weights = self.system(overrides, folder)
        sources = self._sets["test"].sources
        lines: list[str] = []

        def lists() -> Iterator[KBest]:
            for begin in range(0, len(sources), BATCH):
                batch = sources[begin : begin + BATCH]
                for kbest in decoder.decode(batch, weights, k=self._reuse_k):
                    lines.append(kbest.text(0))
                    yield kbest

        met = firing_features(lists())
        fired = np.sort(weights.take(decoder.features).lookup(met))
        _write(output, lines)
        group = None
        if (folder / GROUPS).is_file():
            groups, _ = read_groups(folder / GROUPS, weights.features, weights.n_dense)
            # Groups without a weight have features that the file of weights does not name.
            weights.grow()
            group = groups.rename(len(weights))
        values = weights.frozen().values
        counts = count_reuse(values, fired, group)
        return Features(counts.active, counts.reused, int((values != 0).sum()))

    def bleu(self, name: str, path: Path) -> float:
        """Return the corpus BLEU (not case-sensitive) of translations of a set."""
        return corpus_bleu(read_lines(path), self.references(name), lowercase=True).score

    def p_value(self, name: str, baseline: Path, path: Path) -> float:
        """Return the p-value of the difference of two translations of a set, by `SIGNIFICANCE`."""
        systems = {"baseline": [read_lines(baseline)], "row": [read_lines(path)]}
        evaluation = Evaluation(systems, self.references(name), lowercase=True)
        (comparison,) = evaluation.compare(test=SIGNIFICANCE)
        return comparison.p_value

    def references(self, name: str) -> list[list[str]]:
        """Return the references of each sentence of a set."""
        return [[" ".join(words) for words in row] for row in self._sets[name].references]

    def system(self, overrides: Sequence[str], folder: Path) -> tuple[Decoder, Weights]:
        """Return the decoder of a run, and its weights."""
        cfg = configuration(overrides)
        templates = [instantiate(template) for template in cfg.features.templates]
        decoder: Decoder = instantiate(cfg.decoder, _partial_=True)(
            self._model, templates=templates
        )
        weights = Weights(decoder.dense_names)
        names, values = read_weights(folder / "weights.txt.gz")
        weights.set(names.names(range(len(names))), values)
        return decoder, weights


def _write(path: Path, lines: Sequence[str]) -> None:
    with atomic_writer(path) as file:
        file.writelines(f"{line}\n" for line in lines)
