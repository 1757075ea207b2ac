"""OSCAR's d, as ``regularizer.dimension`` has it: a number, or features that are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from omegaconf import DictConfig

from torchtune_smt.cli.parts import Parts
from torchtune_smt.cli.spending import groups_taken, tunes_while_decoding
from torchtune_smt.cli.task import Task
from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.regularizers import Oscar
from torchtune_smt.tuners.start import PulledFeatures, features_there


class Dimension:
    """Says how many features OSCAR pulls at, of what is tuned on alone.

    Sets that are only evaluated have no part in it. Nothing is done for other regularizers.

    Parameters
    ----------
    cfg : DictConfig
    parts : Parts

    Attributes
    ----------
    source : {"charts", "lists"} or int, optional
        Whose features are counted, or the number that was given; None without OSCAR.
    value : int, optional
        d, once it has been asked for.

    Raises
    ------
    InputError
        There are no charts or lists to count features of.
    """

    def __init__(self, cfg: DictConfig, parts: Parts) -> None:
        self._parts = parts
        taken = "regularizer" in groups_taken(cfg) and parts.optimizer.regularizes
        oscar = taken and isinstance(parts.regularizer, Oscar)
        self.source = _source(cfg, parts) if oscar else None
        self.value: int | None = None

    def open(self, task: Task, lists: ListStore | None = None) -> None:
        """Learn what is tuned, before anything is decoded.

        Parameters
        ----------
        task : Task
        lists : ListStore, optional
            The lists that are tuned on; by default those of the decoder.

        Raises
        ------
        InputError
            The number that was given is too small for the weights that tuning starts from.
        """
        self._n_dense = task.weights.n_dense
        found: Callable[[], Int64]
        found = partial(features_there, task.decoder, task.tuning.sources, task.weights)
        if self.source == "charts":
            print("counting the features of the charts, for OSCAR's d", flush=True)
            found = partial(np.copy, found())
        elif lists is not None:
            found = lists.features
        self._pulled = PulledFeatures(task.weights, self._parts.optimizer.regularizes_dense, found)
        if isinstance(self.source, int):
            self._pulled.check(self.source)

    def open_known(self, n_dense: int) -> None:
        """Take d from the configuration, in which a worker finds it as a number."""
        self._n_dense = n_dense

    def arguments(self) -> dict[str, Any]:
        """Return what an optimizer of the run's weights is to be made with; d is counted now."""
        if self.source is None:
            return {"n_dense": self._n_dense}
        return {"n_dense": self._n_dense, "regularizer": self.regularizer()}

    def regularizer(self) -> Oscar:
        """Return OSCAR with its d, which is counted now."""
        self.value = self.source if isinstance(self.source, int) else self._pulled.count()
        oscar: Oscar = replace(self._parts.regularizer, dimension=self.value)
        return oscar

    def text(self) -> str:
        """Return what is said about d, behind something else; empty without OSCAR."""
        if self.value is None:
            return ""
        what = "as given" if isinstance(self.source, int) else f"features of the {self.source}"
        return f"; OSCAR's d = {self.value:,} ({what})"


def _source(cfg: DictConfig, parts: Parts) -> str | int:
    """Return whose features are counted, or the number that was given."""
    given: str | int | None = cfg.regularizer.get("dimension")
    online, stored = tunes_while_decoding(cfg), parts.decoder.stored
    if given is None:
        return "charts" if online and not stored else "lists"
    if given == "charts" and stored:
        raise InputError(
            "regularizer.dimension=charts: stored k-best lists come without charts; set lists, or "
            "a number"
        )
    if given == "lists" and online and not stored:
        raise InputError(
            "regularizer.dimension=lists: while tuning online decodes, its lists are not known "
            "beforehand; set charts, or a number"
        )
    return given
