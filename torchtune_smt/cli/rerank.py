"""``rerank``: apply weights to an n-best list."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Final

import numpy as np
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from torchtune_smt.cli.command_line import override_key
from torchtune_smt.cli.errors import check_written, option_errors
from torchtune_smt.cli.hydra_main import hydra_main
from torchtune_smt.cli.wire import make
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.textio import atomic_writer
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import read_origin
from torchtune_smt.kbest.formats import read_lists, read_text_of_lists
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.rerank import best_lines, file_lines, reranked
from torchtune_smt.kbest.stored_lists import names_in
from torchtune_smt.metrics.lists import minimum_risk
from torchtune_smt.models.moses_ini import read_any_weights

# Features that a message names.
_NAMED: Final = 5


@hydra_main("rerank")
def main(cfg: DictConfig) -> None:
    """Write the best hypotheses, or the lists in their new order."""
    if cfg.n_best is not None and cfg.n_best < 1:
        raise InputError(f"n_best must be at least 1, not {cfg.n_best}")
    check_written({"output": cfg.output}, [cfg.input, cfg.weights])
    by_risk = risk_order(cfg, HydraConfig.get().overrides.task)
    with option_errors("rerank"):
        # Once: a pipe has nothing left for another time.
        text = read_text_of_lists(cfg.input)
        stored = read_lists(
            cfg.input,
            cfg.format,
            dense=_dense_of(cfg.weights) if cfg.dense is None else cfg.dense,
            missing=cfg.missing,
            on_error=cfg.on_error,
            text=text,
        )
        stored.check_features(cfg.input)
    if stored.skipped:
        print(f"{cfg.input}: {stored.summary()}", file=sys.stderr)
    features = stored.lists.features
    assert features is not None
    names, values = read_any_weights(cfg.weights)
    own = names_in(features, names.names(range(len(names))))
    weights = FrozenWeights(Vocabulary(own), values)
    active = weights.features.names(np.flatnonzero(weights.values))
    found = features.lookup(active) >= 0
    others = [name for name, there in zip(active, found, strict=True) if not there]
    if not active:
        print(f"{cfg.weights}: all weights are 0, which leaves lists as they are", file=sys.stderr)
    elif not found.any():
        raise InputError(
            f"has no weight for any feature of {cfg.input}: it has {_some(others)}, and the lists "
            f"have {_some(features.names(range(len(features))))}; was it made for other lists?",
            path=cfg.weights,
        )
    elif others:
        print(
            f"{cfg.weights}: {len(others):,} of {len(active):,} features with a weight are nowhere "
            f"in {cfg.input}: {_some(others)}",
            file=sys.stderr,
        )
    k = cfg.n_best or 1
    if by_risk is None:
        lists = reranked(stored.lists, weights, k)
    else:
        lists = by_risk(reranked(stored.lists, weights), k)
    if cfg.n_best is None:
        lines = best_lines(lists, stored.n_sentences)
    else:
        lines = file_lines(lists, text.split(b"\n"))
    with output_of(cfg) as file:
        file.writelines(lines)


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
        with option_errors("mbr"):
            return minimum_risk(lists, metric, cfg.mbr_scale, k)

    return order


def _dense_of(path: str) -> Sequence[str] | None:
    """Return the dense features of the lists that weights were tuned on, if their file tells."""
    origin = read_origin(path)
    return None if origin is None else origin.dense


def _some(names: Sequence[str]) -> str:
    """Return the first few of some names."""
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
