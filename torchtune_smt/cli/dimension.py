"""OSCAR's d, as ``regularizer.dimension`` has it: a number, or features that are counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from omegaconf import DictConfig

from torchtune_smt.cli.parts import Parts
from torchtune_smt.cli.solvers import groups_taken, tunes_while_decoding
from torchtune_smt.cli.task import Task
from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.regularizers import Oscar
from torchtune_smt.tuners.learn_groups import count_features


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
        self._task = task
        self._lists = lists
        self._charts: Int64 = np.empty(0, np.int64)
        if self.source == "charts":
            print("counting the features of the charts, for OSCAR's d", flush=True)
            self._charts = self._found()
        if isinstance(self.source, int):
            self._check_number(self.source)

    def arguments(self) -> dict[str, Any]:
        """Return what an optimizer of the run's weights is to be made with; d is counted now."""
        n_dense = self._task.weights.n_dense
        if self.source is None:
            return {"n_dense": n_dense}
        return {"n_dense": n_dense, "regularizer": self.regularizer()}

    def regularizer(self) -> Oscar:
        """Return OSCAR with its d, which is counted now."""
        self.value = self.source if isinstance(self.source, int) else self._counted()
        oscar: Oscar = replace(self._parts.regularizer, dimension=self.value)
        return oscar

    def text(self) -> str:
        """Return what is said about d, behind something else; empty without OSCAR."""
        if self.value is None:
            return ""
        what = "as given" if isinstance(self.source, int) else f"features of the {self.source}"
        return f"; OSCAR's d = {self.value:,} ({what})"

    def _first(self) -> int:
        """Return the id from which on features are regularised."""
        return 0 if self._parts.optimizer.regularizes_dense else self._task.weights.n_dense

    def _counted(self) -> int:
        """Return the number of regularised features that are dense, have a weight, or are found."""
        weights = self._task.weights
        found = self._charts
        if self._lists is not None and self.source == "lists":
            found = self._lists.features()
        elif self.source == "lists":
            found = self._found()
        weights.grow()
        dense = np.arange(weights.n_dense)
        start = weights.parameter.detach().numpy()
        return count_features(start, self._first(), np.concatenate([dense, found]))

    def _found(self) -> Int64:
        """Return the features that the decoder says there are, by their ids in the weights."""
        decoder = self._task.decoder
        found = decoder.feature_ids(self._task.tuning.sources)
        assert found is not None
        return self._task.weights.take(decoder.features).lookup(found)

    def _check_number(self, number: int) -> None:
        """Raise InputError if more of the first weights are not 0."""
        count = int(self._task.weights.parameter[self._first() :].count_nonzero())
        if number < count:
            raise InputError(
                f"regularizer.dimension={number} is smaller than the number of regularised "
                f"features that have a weight already, {count}: their penalties would be negative; "
                "give at least as much, or null"
            )


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
