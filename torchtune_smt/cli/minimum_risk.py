"""The options of minimum Bayes risk, which ``translate`` and ``rerank`` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from omegaconf import DictConfig

from torchtune_smt.cli.command_line import override_key
from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.cli.wire import make
from torchtune_smt.core.errors import InputError
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.metrics.lists import minimum_risk


def risk_order(
    cfg: DictConfig, given: Sequence[str]
) -> Callable[[KBestLists, int], KBestLists] | None:
    """Return what puts lists in the order of their risk and keeps so many; None without mbr.

    Parameters
    ----------
    given : sequence of str
        The overrides of the command line.

    Raises
    ------
    InputError
        An option of it is given without mbr, or out of range.
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
