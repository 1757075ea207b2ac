"""What the options of the configurations may be, apart from those that a class checks itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from omegaconf import DictConfig, OmegaConf

from torchtune_smt.core.errors import InputError


class Rule(NamedTuple):
    """What an option may be, for people and as a test."""

    text: str
    accepts: Callable[[Any], bool]

    def or_null(self) -> Rule:
        """Return the rule that null satisfies, too."""
        return Rule(f"{self.text}, or null", lambda value: value is None or self.accepts(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(least: int) -> Rule:
    return Rule(
        f"a whole number, {least} or more",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least,
    )


def _number(least: float) -> Rule:
    return Rule(f"a number, {least:g} or more", lambda value: _is_number(value) and value >= least)


def _share() -> Rule:
    return Rule("a number above 0 and up to 1", lambda value: _is_number(value) and 0 < value <= 1)


def _one_of(*choices: str) -> Rule:
    return Rule(" or ".join(choices), lambda value: value in choices)


_SWITCH: Final = Rule("true or false", lambda value: isinstance(value, bool))
_TEXT: Final = Rule("text", lambda value: isinstance(value, str) and value != "")
_LIST: Final = Rule("a list, as in [a,b]", lambda value: OmegaConf.is_list(value))
_CLASSES: Final = Rule(
    "a list of classes, as in [{_target_:my_module.MyClass}]",
    lambda value: OmegaConf.is_list(value) and all("_target_" in entry for entry in value),
)
_FILES: Final = Rule(
    "the name of a set, or a list of files",
    lambda value: _TEXT.accepts(value) or _LIST.accepts(value),
)
_SYSTEMS: Final = Rule(
    "a file, a list of files, or names with files, as in {base:[a1,a2],new:[b1,b2]}",
    lambda value: _FILES.accepts(value) or OmegaConf.is_dict(value),
)
_NUMBERS: Final = Rule(
    "names with finite numbers",
    lambda value: OmegaConf.is_dict(value) and all(map(_is_number, value.values())),
)

RULES: Final = {
    "seed": _whole(0),
    "threads": _whole(1).or_null(),
    "lm": _one_of("folds", "full"),
    "data.name": _TEXT,
    "data.source_language": _TEXT,
    "data.target_language": _TEXT,
    "data.folders": _FILES.or_null(),
    "data.train": _FILES.or_null(),
    "data.dev": _FILES.or_null(),
    "data.test": _FILES.or_null(),
    "data.lowercase": _SWITCH,
    "data.normalize": _SWITCH,
    "data.tokenize": _SWITCH,
    "data.empty": _one_of("error", "skip"),
    "data.max_length": _whole(1),
    "data.max_ratio": _number(1),
    "model.folder": _TEXT,
    "model.iterations": _whole(1),
    "model.alignment_file": _TEXT.or_null(),
    "model.max_phrase_length": _whole(1),
    "model.max_symbols": _whole(1),
    "model.unaligned_edges": _SWITCH,
    "model.table_limit": _whole(1),
    "model.order": _whole(1),
    "model.discount_fallback": _LIST.or_null(),
    "model.folds": _whole(0),
    "model.grammar": _TEXT,
    "model.format": _one_of("cdec", "joshua", "moses").or_null(),
    "model.language_model": _TEXT.or_null(),
    "model.ini": _TEXT,
    "model.phrase_table": _TEXT.or_null(),
    "model.reordering_table": _TEXT.or_null(),
    "model.rule_counts": _SWITCH,
    "init.file": _TEXT.or_null(),
    "init.values": _NUMBERS,
    "decoder.train": _FILES.or_null(),
    "decoder.dev": _FILES.or_null(),
    "decoder.test": _FILES.or_null(),
    "decoder.train_scores": _FILES.or_null(),
    "decoder.dev_scores": _FILES.or_null(),
    "decoder.test_scores": _FILES.or_null(),
    "decoder.format": _one_of("moses", "cdec").or_null(),
    "decoder.dense": _LIST.or_null(),
    "decoder.features": Rule(
        "all, dense, or a list of features and templates, as in [dense,WT]",
        lambda value: bool(value) and (_TEXT.accepts(value) or _LIST.accepts(value)),
    ),
    "decoder.on_error": _one_of("error", "skip"),
    "format": _one_of("moses", "cdec").or_null(),
    "on_error": _one_of("error", "skip"),
    "decoder.k": _whole(1).or_null(),
    "decoder.pop_limit": _whole(1).or_null(),
    "decoder.stack_size": _whole(1).or_null(),
    "decoder.distortion_limit": _whole(-1).or_null(),
    "decoder.table_limit": _whole(1).or_null(),
    "decoder.max_span": _whole(1),
    "decoder.max_words": _whole(1),
    "decoder.unique": _SWITCH,
    "features.templates": _LIST,
    "regularizer.dimension": Rule(
        "a whole number, 1 or more, charts, lists or null",
        lambda value: value in (None, "charts", "lists") or _whole(1).accepts(value),
    ),
    "optimizer.regularize_dense": _SWITCH,
    "device": _one_of("cpu", "cuda"),
    "tuner.epochs": _whole(1),
    "tuner.iterations": _whole(1),
    "tuner.interpolation": _share(),
    "tuner.tolerance": _number(0),
    "tuner.passes": _whole(1),
    "tuner.zero_group": _one_of("drop", "keep"),
    "tuner.dev.iterations": _whole(1),
    "tuner.dev.patience": _whole(1).or_null(),
    "tuner.dev.interpolation": _share(),
    "tuner.dev.tolerance": _number(0),
    "tuner.unique": _one_of("derivation", "string"),
    "tuner.keep_lists": _SWITCH,
    "tuner.batch_size": _whole(1),
    "tuner.shuffle": _SWITCH,
    "tuner.tune_on": _one_of("dev", "train"),
    "tuner.sentences": _whole(1).or_null(),
    "tuner.patience": _whole(1).or_null(),
    "tuner.result": _one_of("best", "last", "average"),
    "tuner.checkpoint_minutes": _number(0),
    "callbacks": _CLASSES,
    "resume": _TEXT.or_null(),
    # translate
    "weights": _TEXT,
    "input": _TEXT,
    "output": _TEXT.or_null(),
    "n_best": _whole(1).or_null(),
    "detokenize": _SWITCH,
    "capitalize": _SWITCH,
    # evaluate
    "systems": _SYSTEMS,
    "references": _FILES.or_null(),
    "split": _TEXT,
    "metrics": _LIST,
    "tokenize": _TEXT,
    "lowercase": _SWITCH,
    "test": _one_of("bootstrap", "randomization"),
    "samples": _whole(1),
}


def check_options(cfg: DictConfig) -> None:
    """Check the values of a composed configuration.

    Groups may have values that are still to be given, as not every command needs all of a group
    (see `require_all`).

    Raises
    ------
    InputError
        A value is missing, of a wrong type, or out of range; the option is named, and the cure.
    """
    for key in cfg:
        if OmegaConf.is_missing(cfg, key):
            raise _missing(str(key))
    for name, rule in RULES.items():
        group, _, key = name.rpartition(".")
        holder = OmegaConf.select(cfg, group) if group else cfg
        if not OmegaConf.is_dict(holder) or key not in holder:
            continue
        if not rule.accepts(holder[key]):
            raise InputError(f"{name} must be {rule.text}, not {holder[key]!r}")


def require_all(cfg: DictConfig, needless: Collection[str] = ()) -> None:
    """Raise InputError if any value is still to be given, apart from options that are needless."""
    for name in sorted(OmegaConf.missing_keys(cfg)):
        if name not in needless:
            raise _missing(name)


def _missing(name: str) -> InputError:
    return InputError(f"{name} is missing; give it with {name}=VALUE")
