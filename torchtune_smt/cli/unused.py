"""Options on the command line that would change nothing."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, Final

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.parts import Parts
from torchtune_smt.cli.solvers import PART_GROUPS, groups_taken
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.shortcuts import behaves_as
from torchtune_smt.losses import is_listwise
from torchtune_smt.models.base import ModelSource
from torchtune_smt.regularizers import NoRegularizer

_SETS: Final = ("train", "dev", "test")


def given_options() -> Iterator[tuple[str, str]]:
    """Yield the options that the command line sets, and the overrides that do.

    The choice of a group is an option with the name of the group. One that is set to null is left
    out: nothing is expected of it.
    """
    parser = OverridesParser.create()
    for override in HydraConfig.get().overrides.task:
        parsed = parser.parse_override(override)
        for option in _leaves(parsed.key_or_group, parsed.value()):
            yield option, override


def _leaves(option: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(f"{option}.{name}", inner)
    elif value is not None:
        yield option


def refuse_unused(unused: Mapping[str, str]) -> None:
    """Raise InputError if the command line sets an option that has no effect.

    What the files of ``conf/`` set, those of ``experiment=`` among them, may have none.

    Parameters
    ----------
    unused : mapping
        See `unused_options`.
    """
    for option, override in given_options():
        reason = reason_against(option, unused)
        if reason is not None:
            raise InputError(f"{reason}, and {override} would change nothing; leave it out")


def refuse_unknown_values(features: Container[str]) -> None:
    """Raise InputError if the command line sets the start weight of a feature that is not there.

    The files of ``conf/init/`` name features that not every model has.
    """
    for option, override in given_options():
        group, _, name = option.partition("init.values.")
        if name and not group and name not in features:
            raise InputError(
                f"there is no feature {name} at the start, and {override} would change nothing; "
                "leave it out, or give its weight in a file (init.file)"
            )


def reason_against(option: str, unused: Mapping[str, str]) -> str | None:
    """Return why an option, or the group that it belongs to, has no effect; None if it has one."""
    parts = option.split(".")
    names = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
    return next((unused[name] for name in names if name in unused), None)


def unused_options(cfg: DictConfig, parts: Parts, choices: Mapping[str, str]) -> dict[str, str]:
    """Return the groups and options of ``train`` that have no effect, each with the reason.

    Parameters
    ----------
    cfg : DictConfig
        The composed configuration; values may be missing.
    parts : Parts
    choices : mapping
        What is chosen of each group.
    """
    return {
        **_of_task(cfg, parts),
        **_of_data(cfg, parts, choices),
        **_of_parts(cfg, parts, choices),
    }


def _of_task(cfg: DictConfig, parts: Parts) -> dict[str, str]:
    """Return what decoder, model and start weights do not use."""
    unused: dict[str, str] = {}
    on_train = cfg.tuner.tune_on == "train"
    if cfg.decoder.kind == "kbest_files":
        decodes_nothing = "decoder=kbest_files decodes nothing"
        unused |= dict.fromkeys(("model", "lm", "threads"), decodes_nothing)
        unused["features"] = (
            "decoder=kbest_files has the features of its lists (decoder.features chooses them)"
        )
        if not on_train:
            reason = "lists of the bitext are for tuner.tune_on=train"
            unused |= dict.fromkeys(("decoder.train", "decoder.train_scores"), reason)
        words = all(cfg.decoder[f"{name}_scores"] is None for name in ("dev", cfg.tuner.tune_on))
        if words and cfg.decoder.k is None and cfg.tuner.kind != "online":
            unused["decoder.unique"] = "this tuner drops copies in any case (tuner.unique)"
        if not _read_sets(cfg, None):
            unused["decoder.format"] = "features.dat with scores.dat has one format"
    elif not on_train:
        unused["lm"] = "lm is about decoding the bitext (tuner.tune_on=train)"
    if parts.model is not None:
        unused |= {f"model.{name}": reason for name, reason in parts.model.unused().items()}
    if cfg.init.get("file") is not None:
        unused["init.values"] = "init.file has the weights"
    return unused


def _of_data(cfg: DictConfig, parts: Parts, choices: Mapping[str, str]) -> dict[str, str]:
    """Return which sets of the data, and which ways to prepare them, are not used."""
    unused: dict[str, str] = {}
    read = _read_sets(cfg, parts.model)
    for name in _SETS:
        if name not in read:
            unused[f"data.{name}"] = _why_not_read(cfg, name, choices)
    if not read:
        options = ("lowercase", "normalize", "tokenize", "empty")
        unused |= dict.fromkeys((f"data.{option}" for option in options), "no data are read")
    if not any(isinstance(OmegaConf.select(cfg.data, name), str) for name in read):
        unused["data.folders"] = "all data that are read are named by their files"
    if "train" not in read or cfg.decoder.kind == "kbest_files":
        reason = "pairs are left out where a model is built from them"
        unused |= dict.fromkeys(("data.max_length", "data.max_ratio"), reason)
    return unused


def _read_sets(cfg: DictConfig, model: ModelSource | None) -> list[str]:
    """Return the sets of the data that are read."""
    if cfg.decoder.kind == "kbest_files":
        sets = {"dev", "test", cfg.tuner.tune_on}
        return [
            name
            for name in _SETS
            if name in sets
            and cfg.decoder[name] is not None
            and cfg.decoder[f"{name}_scores"] is None
        ]
    return [name for name in _SETS if name != "train" or (model is not None and model.from_bitext)]


def _why_not_read(cfg: DictConfig, name: str, choices: Mapping[str, str]) -> str:
    """Return why a set of the data is not read."""
    if cfg.decoder.kind != "kbest_files":
        return f"model={choices['model']} is not built from a bitext"
    if name == "train" and cfg.tuner.tune_on != "train":
        return "decoder=kbest_files needs no bitext (but for tuner.tune_on=train)"
    if cfg.decoder[name] is None:
        return f"there are no lists of {name} (decoder.{name} is null)"
    return f"decoder.{name}_scores is in the place of references"


def _of_parts(cfg: DictConfig, parts: Parts, choices: Mapping[str, str]) -> dict[str, str]:
    """Return the groups that the tuner does not take, and options that others cancel."""
    taken = groups_taken(cfg)
    tuner = choices["tuner"]
    unused = {
        group: f"tuner={tuner} takes no {group}" for group in PART_GROUPS if group not in taken
    }
    if "loss" in taken:
        loss = f"loss={choices['loss']}"
        if is_listwise(parts.loss) and cfg.tuner.kind != "grouping":
            unused["sampler"] = f"{loss} takes no sampler"
        if parts.loss.reduction == "each":
            unused["tuner.solver.batch_size"] = (
                f"{loss} takes a step after each pair or list (loss.reduction=sum does not)"
            )
    optimizer = parts.optimizer
    pulls_at_none = behaves_as(parts.regularizer, NoRegularizer, "value", "prox")
    if not optimizer.regularizes:
        reason = f"{optimizer.name} takes no regularizer"
        unused["optimizer.regularize_dense"] = reason
        if not pulls_at_none:
            unused.setdefault("regularizer", reason)
    elif pulls_at_none:
        unused["optimizer.regularize_dense"] = "regularizer=none pulls at no weight"
    return unused
