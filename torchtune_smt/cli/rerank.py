"""``rerank``: apply weights to an n-best list."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import numpy as np
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from torchtune_smt.cli.command_line import override_key
from torchtune_smt.cli.errors import check_written
from torchtune_smt.cli.hydra_main import hydra_main
from torchtune_smt.cli.wire import make
from torchtune_smt.core.accepts import one_of
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import named_errors
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.textio import atomic_folder, atomic_writer
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import read_origin
from torchtune_smt.features.texts import TextFeatures
from torchtune_smt.kbest.forms import FORM_NAMES, detected
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.rerank import Block, best_lines, blocks, list_lines, reranked
from torchtune_smt.kbest.stored_lists import names_in
from torchtune_smt.kbest.writers import FOLDER_WRITERS
from torchtune_smt.metrics.lists import minimum_risk
from torchtune_smt.models.moses_ini import read_any_weights

# Features that a message names.
_NAMED: Final = 5


@hydra_main("rerank")
def main(cfg: DictConfig) -> None:
    """Write the best hypotheses, or the lists in their new order."""
    if cfg.n_best is not None and cfg.n_best < 1:
        raise InputError(f"n_best must be at least 1, not {cfg.n_best}")
    beside = [cfg.sizes] if isinstance(cfg.sizes, str) else []
    check_written({"output": cfg.output}, [cfg.input, cfg.weights, *beside, *cfg.columns.values()])
    by_risk = risk_order(cfg, HydraConfig.get().overrides.task)
    path = Path(cfg.input)
    reranker = _Reranker(cfg, by_risk)
    with named_errors("rerank"):
        form = cfg.format or detected(path)
        one_of(*FORM_NAMES).check("format", form)
        if cfg.n_best is not None and form in FOLDER_WRITERS:
            if cfg.output is None:
                raise InputError(f"lists of {form} are a folder; name one with output=")
            if os.path.lexists(cfg.output):
                raise InputError("is there already; name a new folder", path=cfg.output)
            ((_, lists),) = reranker.blocks(path, form)
            with atomic_folder(cfg.output) as folder:
                for name, lines in FOLDER_WRITERS[form](path, lists).items():
                    (folder / name).parent.mkdir(exist_ok=True)
                    (folder / name).write_text("".join(lines), "utf-8")
            return
        with output_of(cfg) as file:
            first = 0
            for block, lists in reranker.blocks(path, form):
                if cfg.n_best is None:
                    file.writelines(best_lines(block, lists, first))
                else:
                    file.writelines(list_lines(block, lists, path))
                first = block.stored.n_sentences


class _Reranker:
    """The weights of a file, and which of them lists have."""

    def __init__(
        self, cfg: DictConfig, by_risk: Callable[[KBestLists, int], KBestLists] | None
    ) -> None:
        self._cfg, self._by_risk = cfg, by_risk
        names, self._values = read_any_weights(cfg.weights)
        self._names = names.names(range(len(names)))
        self._text = TextFeatures.read(cfg.weights)
        self._own: list[str] = []
        self._weights = FrozenWeights(Vocabulary(), np.empty(0))

    def blocks(self, path: Path, form: str) -> Iterator[tuple[Block, KBestLists]]:
        """Yield lists as they were read, and in their new order; tell what weights they lack."""
        cfg = self._cfg
        options = {name: cfg[name] for name in ("missing", "on_error", "sizes", "score")}
        options |= {name: dict(cfg[name]) for name in ("columns", "scale")}
        options["dense"] = _dense_of(cfg.weights) if cfg.dense is None else cfg.dense
        if not self._values.any():
            print(
                f"{cfg.weights}: all weights are 0, which leaves lists as they are",
                file=sys.stderr,
            )
        # Nothing is written before a weight has been found.
        waiting: list[tuple[Block, KBestLists]] = []
        features = None
        for block in blocks(path, form, **options):
            block.stored.check_features(path)
            if block.stored.skipped:
                print(f"{path}: {block.stored.summary()}", file=sys.stderr)
            features = block.stored.lists.features
            assert features is not None
            lists = self._reranked(block.stored.lists, features)
            waiting.append((block, lists))
            if not self._values.any() or len(self._lacking(features)) < self._n_active:
                yield from waiting
                waiting = []
        assert features is not None
        lacking = self._lacking(features)
        if waiting:
            raise InputError(
                f"has no weight for any feature of {cfg.input}: it has {_some(lacking)}, and the "
                f"lists have {_some(features.names(range(len(features))))}; was it made for other "
                "lists?",
                path=cfg.weights,
            )
        if lacking:
            print(
                f"{cfg.weights}: {len(lacking):,} of {self._n_active:,} features with a weight are "
                f"nowhere in {cfg.input}: {_some(lacking)}",
                file=sys.stderr,
            )

    @property
    def _n_active(self) -> int:
        return int(np.count_nonzero(self._values))

    def _lacking(self, features: Vocabulary) -> list[str]:
        """Return the features with a weight that are not known."""
        active = [self._own[i] for i in np.flatnonzero(self._values).tolist()]
        found = features.lookup(active) >= 0
        return [name for name, there in zip(active, found, strict=True) if not there]

    def _reranked(self, lists: KBestLists, features: Vocabulary) -> KBestLists:
        if self._text is not None:
            lists = self._text.added(lists)
        own = names_in(features, self._names)
        if own != self._own:
            self._own, self._weights = own, FrozenWeights(Vocabulary(own), self._values)
        k = self._cfg.n_best or 1
        if self._by_risk is None:
            return reranked(lists, self._weights, k)
        return self._by_risk(reranked(lists, self._weights), k)


@contextmanager
def output_of(cfg: DictConfig) -> Iterator[IO[str]]:
    """Give the file that ``output`` names, or the standard output."""
    if cfg.output is None:
        yield sys.stdout
    else:
        with atomic_writer(cfg.output) as file:
            yield file


def risk_order(
    cfg: DictConfig, given: Sequence[str]
) -> Callable[[KBestLists, int], KBestLists] | None:
    """Return what puts lists in the order of their risk and keeps so many; None without mbr.

    given: the overrides of the command line.

    Raises InputError: an option of it is given without mbr, or out of range.
    """
    if not cfg.mbr:
        for override in given:
            if override_key(override).partition(".")[0] in ("metric", "mbr_scale"):
                raise InputError(f"{override} would change nothing without mbr=true")
        return None
    metric = make(cfg, "metric", "bind")

    def order(lists: KBestLists, k: int) -> KBestLists:
        with named_errors("mbr"):
            return minimum_risk(lists, metric, cfg.mbr_scale, k)

    return order


def _dense_of(path: str) -> Sequence[str] | None:
    """Return the dense features of the lists that weights were tuned on, if their file tells."""
    origin = read_origin(path)
    return None if origin is None else origin.dense


def _some(names: Sequence[str]) -> str:
    """Return the first few of some names."""
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
