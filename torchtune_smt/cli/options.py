"""What the options of the configurations may be, apart from those that a class checks itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.command_line import override_key
from torchtune_smt.core.accepts import (
    FINITE,
    LIST,
    SWITCH,
    TEXT,
    TEXTS,
    Rule,
    above,
    argument_rules,
    integer,
    least,
    one_of,
)
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import PACKAGE

# Kernels take 64 bits with a sign.
_SEED: Final = Rule("a whole number from 0 to 2^63 - 1", integer(0).fits)
_CLASSES: Final = Rule(
    "a list of classes, as in [{_target_:my_module.MyClass}]",
    lambda value: (
        OmegaConf.is_list(value)
        and all(OmegaConf.is_dict(entry) and "_target_" in entry for entry in value)
    ),
)
_SYSTEMS: Final = Rule(
    "a file, a list of files, or names with files, as in {base:[a1,a2],new:[b1,b2]}",
    lambda value: TEXTS.fits(value) or OmegaConf.is_dict(value),
)
_KEPT: Final = Rule(
    "all, dense, or a list of features and templates, as in [dense,WT]",
    lambda value: bool(value) and TEXTS.fits(value),
)
_SETS: Final = Rule(
    "a list of weights, train, dev and test, none twice, as in [dev,test]",
    lambda value: (
        LIST.fits(value)
        and set(value) <= {"weights", "train", "dev", "test"}
        and len(set(value)) == len(value) > 0
    ),
)
_WORDS: Final = Rule(
    "a list of words, none twice, as in [programme,program]",
    lambda value: (
        LIST.fits(value)
        and all(isinstance(word, str) and word.split() == [word] for word in value)
        and len(set(value)) == len(value) > 0
    ),
)
_NUMBERS: Final = Rule(
    "names with finite numbers",
    lambda value: OmegaConf.is_dict(value) and all(map(FINITE.fits, value.values())),
)
_FILES: Final = Rule(
    "names with files, as in columns.comet=comet.txt",
    lambda value: OmegaConf.is_dict(value) and all(map(TEXT.fits, value.values())),
)
_START: Final = Rule(
    "a file, null, or names of the decoder's parts with files, as in {hiero:a.gz,phrase:b.gz}",
    lambda value: TEXT.or_null().fits(value) or (_FILES.fits(value) and len(value) > 0),
)
_FILES_OF_SETS: Final = Rule(
    "names with files for each set, as in decoder.columns.dev.comet=comet.txt",
    lambda value: OmegaConf.is_dict(value) and all(map(_FILES.fits, value.values())),
)
_SIZES: Final = Rule(
    "a whole number of at least 1, a file, or null",
    lambda value: integer(1).or_null().fits(value) or TEXT.fits(value),
)

# What options may be that are not arguments of a class, or of which the class does not say it.
RULES: Final = {
    name: rule
    for rule, names in (
        (_SEED, "seed"),
        (integer(1), "tuner.epochs tuner.iterations tuner.passes tuner.dev.iterations samples"),
        (
            integer(1).or_null(),
            "threads tuner.sentences tuner.patience tuner.dev.patience n_best sentence rows",
        ),
        (least(0), "tuner.checkpoint_minutes mbr_scale"),
        (FINITE.or_null(), "missing"),
        (LIST.or_null(), "dense decoder.dense"),
        (SWITCH, "optimizer.regularize_dense tuner.keep_lists group_seeds report rivals"),
        (SWITCH, "detokenize capitalize lowercase mbr"),
        (TEXT, "weights input tokenize analysis"),
        (
            TEXT.or_null(),
            "resume output baseline html plot match format start groups",
        ),
        (TEXTS.or_null(), "references dev test_references"),
        (integer(0), "folds"),
        (LIST, "metrics mean_with"),
        (_CLASSES, "features.templates callbacks"),
        (_SYSTEMS, "systems"),
        (_SETS, "of"),
        (_WORDS.or_null(), "words"),
        (_START, "init.file"),
        (_NUMBERS, "init.values"),
        (above(0).or_this("auto"), "init.scale"),
        (_KEPT, "decoder.features"),
        (integer(1).or_this("charts").or_this("lists").or_null(), "regularizer.dimension"),
        (one_of("folds", "full"), "lm"),
        (one_of("count", "leave"), "unlisted"),
        (one_of("train", "dev", "test"), "split"),
        (one_of("cpu", "cuda"), "device"),
        (_NUMBERS, "scale decoder.scale"),
        (_FILES, "columns test_columns"),
        (_FILES_OF_SETS, "decoder.columns"),
        (SWITCH.or_null(), "score decoder.score"),
        (_SIZES, "sizes decoder.sizes"),
        (one_of("online", "mix", "batch", "random_pairs", "clusters"), "tuner.learning"),
        (one_of("derivation", "string"), "tuner.unique"),
        (one_of("each", "scale"), "tuner.sparse"),
        (one_of("dev", "train"), "tuner.tune_on"),
        (one_of("best", "last", "average"), "tuner.result"),
        (one_of("bootstrap", "randomization"), "test"),
        (one_of("text", "markdown", "latex", "csv").or_null(), "table"),
    )
    for name in names.split()
}
# Groups that describe an object of a class.
_OBJECTS: Final = (
    *("model", "decoder", "metric", "sampler", "loss", "regularizer", "optimizer", "tuner"),
    *("parallel", "engine"),
)
# Of these, those whose classes need torch for nothing: their options are checked before all else.
_LIGHT: Final = ("model", "decoder", "metric", "sampler")


def chosen_name(cfg: DictConfig, choices: Mapping[str, str], group: str) -> str:
    """Return how a message names what is taken of a group: by its class, if that is of others."""
    one, choice = cfg[group], choices[group]
    return f"{group}={choice}" if is_ours(one) else f"{group}._target_={one.get('_target_')}"


def is_ours(group: Any) -> bool:
    """Return whether a group names a class of this package."""
    return str(group.get("_target_", "")).startswith(f"{PACKAGE.name}.")


def check_values(cfg: DictConfig, rules: Mapping[str, Rule]) -> None:
    """Raise InputError if an option that a configuration has is not what a rule says."""
    for name, rule in rules.items():
        group, _, key = name.rpartition(".")
        holder = OmegaConf.select(cfg, group) if group else cfg
        if OmegaConf.is_dict(holder) and key in holder:
            value = holder[key]
            if not rule.fits(value):
                raise InputError(f"{name} must be {rule.text}, not {value!r}")


def check_options(cfg: DictConfig) -> None:
    """Raise InputError if a value of a composed configuration is missing or out of range.

    Groups may have values that are still to be given (see `require_all`).
    """
    for key in cfg:
        if OmegaConf.is_missing(cfg, key):
            raise InputError(missing(str(key)))
    for group, name in (*((group, "_target_") for group in _OBJECTS), ("features", "templates")):
        if group in cfg and name not in (cfg[group] if OmegaConf.is_dict(cfg[group]) else ()):
            raise InputError(
                f"{group} has no {name}: the file that is chosen with {group}=NAME needs it, as "
                f"those of conf/{group} have it"
            )
    rules: dict[str, Rule] = {}
    targets = {group: cfg[group]["_target_"] for group in _LIGHT if is_ours(cfg.get(group) or {})}
    if cfg.get("data") is not None:
        targets["data"] = f"{PACKAGE.name}.data.dataset.Dataset"
    for group, target in targets.items():
        # Whoever makes the object says it where there is no such class.
        with suppress(ImportError):
            kind_rules = argument_rules(get_object(target))
            rules |= {f"{group}.{name}": rule for name, rule in kind_rules.items()}
    # What tuning on lists means by it is a path.
    others = {name: rule for name, rule in RULES.items() if name != "test" or "systems" in cfg}
    check_values(cfg, rules | others)


def refuse_removed(overrides: Iterable[str]) -> None:
    """Raise InputError if ``~option`` removes what a command cannot do without.

    Arguments of a class, and files of the data, have defaults.
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
            raise InputError(missing(name))


def missing(name: str) -> str:
    """Return what is said of a value that is still to be given."""
    return f"{name} is missing; give it with {name}=VALUE"
