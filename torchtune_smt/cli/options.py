"""What the options of the configurations may be, apart from those that a class checks itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.command_line import override_key
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import PACKAGE

_INT64: Final = (1 << 63) - 1


class Rule(NamedTuple):
    """What an option may be, for people and as a test."""

    text: str
    accepts: Callable[[Any], bool]

    def or_null(self) -> Rule:
        """Return the rule that null satisfies, too."""
        return Rule(f"{self.text}, or null", lambda value: value is None or self.accepts(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(least: int, most: int = _INT64) -> Rule:
    return Rule(
        f"a whole number, {least} or more" + ("" if most == _INT64 else f" (up to {most:,})"),
        lambda value: (
            isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        ),
    )


def _number(least: float) -> Rule:
    return Rule(f"a number, {least:g} or more", lambda value: _is_number(value) and value >= least)


def _above(bound: float) -> Rule:
    return Rule(f"a number above {bound:g}", lambda value: _is_number(value) and value > bound)


def _share() -> Rule:
    return Rule("a number above 0 and up to 1", lambda value: _is_number(value) and 0 < value <= 1)


def _one_of(*choices: str) -> Rule:
    return Rule(" or ".join(choices), lambda value: value in choices)


_INSIDE: Final = Rule(
    "a number above 0 and below 1", lambda value: _is_number(value) and 0 < value < 1
)
_SWITCH: Final = Rule("true or false", lambda value: isinstance(value, bool))
# Kernels take 64 bits with a sign.
_SEED: Final = Rule(
    "a whole number from 0 to 2^63 - 1",
    lambda value: _whole(0).accepts(value) and value < 2**63,
)
_TEXT: Final = Rule("text", lambda value: isinstance(value, str) and value != "")
_SPLIT: Final = Rule(
    "train or dev or test, of which data.test=NAME makes another set the last one",
    lambda value: value in ("train", "dev", "test"),
)
_LIST: Final = Rule("a list, as in [a,b]", lambda value: OmegaConf.is_list(value))
_CLASSES: Final = Rule(
    "a list of classes, as in [{_target_:my_module.MyClass}]",
    lambda value: (
        OmegaConf.is_list(value)
        and all(OmegaConf.is_dict(entry) and "_target_" in entry for entry in value)
    ),
)
_FILES: Final = Rule(
    "the name of a set, or a list of files",
    lambda value: _TEXT.accepts(value) or _LIST.accepts(value),
)
_SYSTEMS: Final = Rule(
    "a file, a list of files, or names with files, as in {base:[a1,a2],new:[b1,b2]}",
    lambda value: _FILES.accepts(value) or OmegaConf.is_dict(value),
)
_KEPT: Final = Rule(
    "all, dense, or a list of features and templates, as in [dense,WT]",
    lambda value: bool(value) and _FILES.accepts(value),
)
_DIMENSION: Final = Rule(
    "a whole number, 1 or more, charts, lists or null",
    lambda value: value in (None, "charts", "lists") or _whole(1).accepts(value),
)
_SETS: Final = Rule(
    "a list of weights, train, dev and test, none twice, as in [dev,test]",
    lambda value: (
        _LIST.accepts(value)
        and set(value) <= {"weights", "train", "dev", "test"}
        and len(set(value)) == len(value) > 0
    ),
)
_WORDS: Final = Rule(
    "a list of words, none twice, as in [programme,program]",
    lambda value: (
        _LIST.accepts(value)
        and all(isinstance(word, str) and word.split() == [word] for word in value)
        and len(set(value)) == len(value) > 0
    ),
)
_NUMBERS: Final = Rule(
    "names with finite numbers",
    lambda value: OmegaConf.is_dict(value) and all(map(_is_number, value.values())),
)

# What options may be that are not arguments of a class, or of which the type says too little.
RULES: Final = {
    name: rule
    for rule, names in (
        (_SEED, "seed"),
        (_whole(1), "tuner.epochs tuner.iterations tuner.passes tuner.batch_size samples"),
        (_whole(1), "tuner.dev.iterations tuner.minimizer.path"),
        (
            _whole(1).or_null(),
            "threads tuner.sentences tuner.patience tuner.dev.patience n_best sentence rows",
        ),
        (_number(0), "tuner.tolerance tuner.dev.tolerance tuner.checkpoint_minutes mbr_scale"),
        (Rule("a finite number", _is_number).or_null(), "missing decoder.missing"),
        (_LIST.or_null(), "dense"),
        (_share(), "tuner.interpolation tuner.dev.interpolation"),
        (_SWITCH, "optimizer.regularize_dense tuner.keep_lists tuner.shuffle"),
        (_SWITCH, "tuner.merge_identical"),
        (_SWITCH, "detokenize capitalize lowercase mbr group_seeds report rivals"),
        (_TEXT, "weights input tokenize analysis"),
        (_TEXT.or_null(), "init.file resume output baseline html plot match"),
        (_FILES.or_null(), "references"),
        (_LIST, "metrics"),
        (_CLASSES, "features.templates callbacks"),
        (_SYSTEMS, "systems"),
        (_SETS, "of"),
        (_WORDS.or_null(), "words"),
        (_NUMBERS, "init.values"),
        (_KEPT, "decoder.features"),
        (_DIMENSION, "regularizer.dimension"),
        (_one_of("folds", "full"), "lm"),
        (_SPLIT, "split"),
        (_one_of("cpu", "cuda"), "device"),
        (_one_of("moses", "cdec").or_null(), "format"),
        (_one_of("online", "mix", "batch", "random_pairs", "clusters"), "tuner.learning"),
        (_one_of("none", "single", "shuffled"), "tuner.control"),
        (_one_of("none", "rms"), "tuner.scaling"),
        (_one_of("smoothed_hinge", "squared_hinge", "logistic"), "tuner.minimizer.loss"),
        (_above(0), "tuner.minimizer.mu tuner.minimizer.residual tuner.minimizer.gap"),
        (_above(0), "tuner.clusters.lr"),
        (_above(0).or_null(), "tuner.minimizer.seconds decoder.seconds"),
        (
            Rule(
                "true, false, source or target",
                lambda value: isinstance(value, bool) or value in ("source", "target"),
            ),
            "data.tokenize",
        ),
        (_number(0), "tuner.clusters.strength decoder.keep_mb"),
        (_whole(1), "tuner.clusters.count tuner.shards"),
        (_share().or_null(), "regularizer.fraction"),
        (_INSIDE.or_null(), "regularizer.noise"),
        (_one_of("drop", "keep"), "tuner.zero_group"),
        (_one_of("derivation", "string"), "tuner.unique"),
        (_one_of("each", "scale"), "tuner.sparse"),
        (_one_of("dev", "train"), "tuner.tune_on"),
        (_one_of("best", "last", "average"), "tuner.result"),
        (_one_of("step", "epoch"), "optimizer.regularize_each"),
        (_one_of("bootstrap", "randomization"), "test"),
        (_one_of("text", "markdown", "latex", "csv").or_null(), "table"),
    )
    for name in names.split()
}
# Groups that describe an object of a class.
_OBJECTS: Final = (
    *("model", "decoder", "metric", "sampler", "loss", "regularizer", "optimizer", "tuner"),
    *("parallel", "engine"),
)
# Groups whose classes check their numbers themselves, and need torch for none of it.
_SWITCHES_OF: Final = ("metric", "sampler")
# Whole numbers that are arguments of a class are 1 or more but for the second, and up to 2^63 - 1
# but for those of the first: no limit of a search is higher.
_MOST: Final = {"decoder": 1 << 30}
_LEAST: Final = {"model.folds": 0, "decoder.distortion_limit": -1}


def chosen_name(cfg: DictConfig, group: str, choice: str) -> str:
    """Return how a message names what is taken of a group: by its class, if that is of others."""
    one = cfg[group]
    return f"{group}={choice}" if is_ours(one) else f"{group}._target_={one.get('_target_')}"


def is_ours(group: Any) -> bool:
    """Return whether a group of the configuration names a class of this package."""
    return str(group.get("_target_", "")).startswith(f"{PACKAGE.name}.")


def _rules_of_classes(cfg: DictConfig) -> Iterator[tuple[str, Rule]]:
    """Yield what the arguments of this package's classes may be, as their types say.

    Classes of the user's own check theirs themselves.
    """
    groups = ("model", "decoder", *_SWITCHES_OF)
    kinds = {name: cfg[name]["_target_"] for name in groups if is_ours(cfg.get(name) or {})}
    if cfg.get("data") is not None:
        kinds["data"] = "torchtune_smt.data.dataset.Dataset"
    for group, target in kinds.items():
        # Whoever makes the object says it where there is no such class.
        with suppress(ImportError, NameError):
            made = get_object(target)
            # Fields that a dataclass inherits are spelt in the words of its parent's module.
            typed = made if is_dataclass(made) else made.__init__
            for name, kind in get_type_hints(typed).items():
                most = _MOST.get(group, _INT64)
                rule = _of_type(kind, _LEAST.get(f"{group}.{name}", 1), most)
                if rule is not None and (rule is _SWITCH or group not in _SWITCHES_OF):
                    yield f"{group}.{name}", rule


def _of_type(kind: Any, least: int, most: int) -> Rule | None:
    """Return what an argument of a type may be; None where the type does not say."""
    kinds = set(get_args(kind)) if get_origin(kind) in (Union, UnionType) else {kind}
    wanted = kinds - {NoneType}
    lists = {one for one in wanted if get_origin(one) in (tuple, Sequence)}
    rule = None
    if lists:
        rule = _LIST if wanted == lists else _FILES
    elif len(wanted) == 1:
        (one,) = wanted
        if get_origin(one) is Literal:
            rule = _one_of(*get_args(one))
        else:
            whole, number = _whole(least, most), _number(least)
            rule = {bool: _SWITCH, str: _TEXT, int: whole, float: number}.get(one)
    return rule.or_null() if rule is not None and NoneType in kinds else rule


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
    for group in _OBJECTS:
        if group in cfg and "_target_" not in (cfg[group] if OmegaConf.is_dict(cfg[group]) else ()):
            raise InputError(
                f"{group} names no class: the file that is chosen with {group}=NAME needs a line "
                "`_target_: FILE.CLASS`, and the arguments of the class below it"
            )
    if "features" in cfg and "templates" not in cfg.features:
        raise InputError(
            "features names no templates: the file that is chosen with features=NAME needs a list "
            "`templates:` of classes, as conf/features/sparse.yaml has it"
        )
    for name, rule in (dict(_rules_of_classes(cfg)) | RULES).items():
        group, _, key = name.rpartition(".")
        holder = OmegaConf.select(cfg, group) if group else cfg
        if not OmegaConf.is_dict(holder) or key not in holder:
            continue
        if not rule.accepts(holder[key]):
            raise InputError(f"{name} must be {rule.text}, not {holder[key]!r}")


def refuse_removed(overrides: Iterable[str]) -> None:
    """Raise InputError if ``~option`` removes an option that a command cannot do without.

    What an argument of a class, or a file of the data, is by default may be had like that.

    Parameters
    ----------
    overrides : iterable of str
        The command line's.
    """
    for override in overrides:
        if not override.startswith("~"):
            continue
        option = override_key(override).replace("/", ".")
        group = option.rpartition(".")[0]
        if group in ("data", "init.values") or (group in _OBJECTS and group != "tuner"):
            continue
        raise InputError(
            f"{override}: {option} cannot be taken away; give it another value, as in "
            f"{option}=VALUE (--help shows what there is)"
        )


def require_all(cfg: DictConfig, needless: Collection[str] = ()) -> None:
    """Raise InputError if any value is still to be given, apart from options that are needless."""
    for name in sorted(OmegaConf.missing_keys(cfg)):
        if name not in needless:
            raise _missing(name)


def _missing(name: str) -> InputError:
    return InputError(f"{name} is missing; give it with {name}=VALUE")
