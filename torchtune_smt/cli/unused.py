"""Options on the command line that would change nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.command_line import (
    OFFERED,
    Given,
    override_key,
    places_in_own_files,
    refuse_given,
)
from torchtune_smt.cli.options import chosen_name
from torchtune_smt.cli.spending import (
    PART_GROUPS,
    cancelled_by_learning,
    groups_taken,
    tuner_takes,
    tunes_while_decoding,
)
from torchtune_smt.cli.wire import class_of
from torchtune_smt.core.accepts import behaves_as
from torchtune_smt.losses import is_listwise
from torchtune_smt.regularizers import NoRegularizer
from torchtune_smt.runs.parts import Parts

_SETS: Final = ("train", "dev", "test")
# What an optimizer does with a regularizer.
_OF_REGULARIZER: Final = ("optimizer.regularize_dense", "optimizer.regularize_each")


def refuse_unused(unused: Mapping[str, str], overrides: Sequence[str]) -> None:
    """Raise InputError if the command line sets an option that has no effect.

    What the files of ``conf/`` set, those of ``experiment=`` among them, may have none.

    unused: see `unused_options`.
    overrides: what the user gave.
    """
    refuse_given(unused, overrides)
    # Where the user has said nothing of noise, lambdas in a file are not meant as a ratio alone.
    given = set(map(override_key, HydraConfig.get().overrides.task))
    strengths = ("regularizer.noise", "regularizer.fraction")
    if not given.intersection(strengths) and not any(map(places_in_own_files, strengths)):
        for option in ("regularizer.lambda1", "regularizer.lambda2"):
            for path, line in places_in_own_files(option) if option in unused else ():
                raise Given(option, option, path=path, line=line).refused(
                    unused[option], "; add noise: null, and they are taken as they are"
                )


def unused_options(cfg: DictConfig, parts: Parts, choices: Mapping[str, str]) -> dict[str, str]:
    """Return the groups and options of ``train`` that have no effect, each with the reason.

    cfg: the composed configuration; values may be missing.
    choices: what is chosen of each group.
    """
    return {
        **_of_decoder(cfg, parts, choices),
        **_of_data(cfg, parts, choices),
        **_of_parts(cfg, parts, choices),
        **_of_parallel(cfg, choices),
        **cancelled_by_learning(cfg, choices),
    }


def _of_decoder(cfg: DictConfig, parts: Parts, choices: Mapping[str, str]) -> dict[str, str]:
    """Return what decoder, model and start weights do not use."""
    unused: dict[str, str] = {}
    decoder = chosen_name(cfg, "decoder", choices["decoder"])
    for argument, groups in OFFERED.items():
        if argument not in parts.decoding.names:
            reason = parts.decoder.takes_not.get(argument, f"takes no {argument}")
            unused |= dict.fromkeys(groups, f"{decoder} {reason}")
    if parts.model is not None and cfg.tuner.tune_on != "train":
        unused["lm"] = "lm is about decoding the bitext (tuner.tune_on=train)"
        unused["model.leave_out"] = "no sentence of the bitext is decoded (tuner.tune_on=train)"
    if parts.model is not None:
        unused |= {f"model.{name}": reason for name, reason in parts.model.unused().items()}
    if cfg.init.get("file") is not None:
        unused["init.values"] = "init.file has the weights"
    return unused


def _of_data(cfg: DictConfig, parts: Parts, choices: Mapping[str, str]) -> dict[str, str]:
    """Return which sets of the data, and which ways to prepare them, are not used."""
    on_train, drops_copies = cfg.tuner.tune_on == "train", not tunes_while_decoding(cfg)
    unused = dict(parts.decoder.unused(cfg.decoder, cfg.tuner.tune_on, drops_copies=drops_copies))
    if parts.model is not None and not parts.model.from_bitext:
        unused["data.train"] = (
            f"{chosen_name(cfg, 'model', choices['model'])} is not built from a bitext"
        )
    elif parts.model is None and not on_train:
        decoder = chosen_name(cfg, "decoder", choices["decoder"])
        unused.setdefault("data.train", f"{decoder} takes no model to build from a bitext")
    takes_pairs = "data.train" not in unused and not parts.decoder.stored
    if parts.decoder.stored:
        unused["data.split_compounds"] = "stored lists are of a source that is as it is"
    elif cfg.data.get("split_compounds") is not None:
        # The counts of words are taken from there.
        unused.pop("data.train", None)
    read = [name for name in _SETS if f"data.{name}" not in unused]
    if not read:
        options = ("lowercase", "normalize", "tokenize", "empty")
        unused |= dict.fromkeys((f"data.{option}" for option in options), "no data are read")
    # What is missing may be given as a name.
    if not any(
        OmegaConf.is_missing(cfg.data, name) or isinstance(cfg.data.get(name), str) for name in read
    ):
        unused["data.folders"] = "all data that are read are named by their files"
    if not takes_pairs:
        reason = "pairs are left out where a model is built from them"
        unused |= dict.fromkeys(("data.max_length", "data.max_ratio"), reason)
    return unused


def _of_parts(cfg: DictConfig, parts: Parts, choices: Mapping[str, str]) -> dict[str, str]:
    """Return the groups that the tuner does not take, and options that others cancel."""
    taken = groups_taken(cfg)
    tuner = chosen_name(cfg, "tuner", choices["tuner"])
    unused = {group: f"{tuner} takes no {group}" for group in PART_GROUPS if group not in taken}
    if "loss" in taken:
        loss = chosen_name(cfg, "loss", choices["loss"])
        # A tuner with a sampler and no loss has another use for it.
        takes = tuner_takes(cfg)
        if is_listwise(parts.loss) and ("loss" in takes or "sampler" not in takes):
            unused["sampler"] = f"{loss} takes no sampler"
        if parts.loss.reduction == "each":
            unused["tuner.solver.batch_size"] = (
                f"{loss} takes a step after each pair or list (loss.reduction=sum does not)"
            )
    optimizer = parts.optimizer
    pulls_at_none = behaves_as(parts.regularizer, NoRegularizer, "value", "prox")
    if not optimizer.regularizes:
        reason = f"{optimizer.name} takes no regularizer"
        unused |= dict.fromkeys(_OF_REGULARIZER, reason)
        if not pulls_at_none:
            unused.setdefault("regularizer", reason)
    elif pulls_at_none:
        unused |= dict.fromkeys(_OF_REGULARIZER, "regularizer=none pulls at no weight")
    return unused


def _of_parallel(cfg: DictConfig, choices: Mapping[str, str]) -> dict[str, str]:
    """Return what the parallel strategy does not use."""
    parallel = chosen_name(cfg, "parallel", choices["parallel"])
    kind = class_of(cfg, "parallel")
    if getattr(kind, "decodes_lists", False):
        return {}
    if getattr(kind, "shards_data", False):
        return {"tuner.checkpoint_minutes": f"{parallel} saves the run after each shard"}
    return {"engine": f"{parallel} has no shards for an engine to compute"}
