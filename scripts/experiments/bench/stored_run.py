"""The pairs that a run of tuner=grouping has learnt from."""

from __future__ import annotations

from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.runs.folder import LISTS
from torchtune_smt.samplers import pair_rows


def pairs_of_run(folder: str, n_dense: int) -> Rows:
    """Return the pairs of a run with tuner.keep_lists=true and tuner.iterations=1.

    Parameters
    ----------
    n_dense : int
        Dense features of its model.

    Raises
    ------
    InputError
        It has other dense features, or lists of more iterations.
    """
    cfg, lists = _opened(folder, n_dense)
    return pair_rows(lists, instantiate(cfg.sampler), (cfg.seed, 1, 1))


def features_of_run(folder: str, n_dense: int) -> Int64:
    """Return the ids of the features in the lists of such a run; see `pairs_of_run`."""
    return _opened(folder, n_dense)[1].features()


def _opened(folder: str, n_dense: int) -> tuple[DictConfig, ListStore]:
    cfg = OmegaConf.load(Path(folder) / "config.yaml")
    lists = ListStore.open(
        Path(folder) / LISTS / "learning", n_dense=n_dense, unique=cfg.tuner.unique
    )
    if lists.n_iterations != 1:
        raise InputError(
            f"has lists of {lists.n_iterations} iterations; run it with tuner.iterations=1",
            path=folder,
        )
    return cfg, lists
