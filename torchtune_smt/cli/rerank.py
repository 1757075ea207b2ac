"""``rerank``: apply weights to an n-best list."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from torchtune_smt.cli.command_line import override_key
from torchtune_smt.cli.hydra_main import hydra_main
from torchtune_smt.cli.wire import make
from torchtune_smt.core.accepts import one_of
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import named_errors
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.textio import atomic_folder, check_written, output_to
from torchtune_smt.core.weights_io import read_origin
from torchtune_smt.features.strings import added_to_new
from torchtune_smt.kbest.forms import FORM_NAMES, detected
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.rerank import best_lines, list_lines, reranked_blocks
from torchtune_smt.kbest.tools import FORMS
from torchtune_smt.metrics.bleu import BleuPlusOne, NakovBleu
from torchtune_smt.metrics.lists import minimum_risk
from torchtune_smt.models.moses_ini import read_any_weights


@hydra_main("rerank")
def main(cfg: DictConfig) -> None:
    """Write the best hypotheses, or the lists in their new order."""
    beside = [one for one in (cfg.sizes, cfg.sources) if isinstance(one, str)]
    files = [cfg.weights, *cfg.mean_with]
    check_written({"output": cfg.output}, [cfg.input, *files, *beside, *cfg.columns.values()])
    by_risk = risk_order(cfg, HydraConfig.get().overrides.task)
    path = Path(cfg.input)
    options = {name: cfg[name] for name in ("missing", "on_error", "sizes", "score", "dense")}
    options |= {name: dict(cfg[name]) for name in ("columns", "scale")}
    if cfg.dense is None and (origin := read_origin(cfg.weights)) is not None:
        # Those of the lists that weights were tuned on.
        options["dense"] = origin.dense
    weights = FrozenWeights(*read_any_weights(*files))
    say = partial(print, file=sys.stderr)
    active = np.flatnonzero(weights.values)
    added, given = added_to_new(cfg.weights, weights.features.names(active), cfg.sources)
    reordered = partial(
        reranked_blocks, cfg.weights, weights, cfg.n_best or 1, by_risk, say, added, given
    )
    with named_errors("rerank"):
        form = cfg.format or detected(path)
        one_of(*FORM_NAMES).check("format", form)
        write_folder = FORMS[form].write_folder if form in FORMS else None
        if cfg.n_best is not None and write_folder is not None:
            if cfg.output in (None, "-"):
                raise InputError(f"lists of {form} are a folder; name one with output=")
            if os.path.lexists(cfg.output):
                raise InputError("is there already; name a new folder", path=cfg.output)
            ((_, lists),) = reordered(path, form, **options)
            with atomic_folder(cfg.output) as folder:
                for name, lines in write_folder(path, lists).items():
                    (folder / name).parent.mkdir(exist_ok=True)
                    (folder / name).write_text("".join(lines), "utf-8")
            return
        with output_to(cfg.output) as file:
            first = 0
            for block, lists in reordered(path, form, **options):
                if cfg.n_best is None:
                    file.writelines(best_lines(block, lists, first))
                else:
                    file.writelines(list_lines(block, lists, path))
                first = block.stored.n_sentences


def risk_order(
    cfg: DictConfig, given: Sequence[str]
) -> Callable[[KBestLists, int], KBestLists] | None:
    """Return what puts lists in the order of their risk and keeps so many; None without mbr."""
    typed = {override_key(override).partition(".")[0]: override for override in given}
    if not cfg.mbr:
        for name in ("metric", "mbr_scale"):
            if name in typed:
                raise InputError(f"{typed[name]} would change nothing without mbr=true")
        return None
    metric = make(cfg, "metric", "bind")
    if type(metric) is NakovBleu and "metric" not in typed:
        # Its penalty is below 1 at equal lengths: among hypotheses, longer ones would win.
        metric = BleuPlusOne(short_references=metric.short_references)

    def order(lists: KBestLists, k: int) -> KBestLists:
        with named_errors("mbr"):
            return minimum_risk(lists, metric, cfg.mbr_scale, k)

    return order
