"""The rows of Table 1 of Liu et al. (2013), and those beside it: what each of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tables import Published

BASELINE: Final = "pro_dev"


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes
    ----------
    method, tuning_set, features : str
        As the paper names them.
    overrides : tuple of str
        Of train.py.
    language_models : str
        Those that training data is decoded with: ``folds``, ``full``, or none.
    swept : tuple of str
        The options that are chosen on devtest with --sweep, one after the other.
    like : str
        The row whose choices are taken over.
    published : Published, optional
        The paper's figures.
    """

    method: str
    tuning_set: str
    features: str
    overrides: tuple[str, ...]
    language_models: str = ""
    swept: tuple[str, ...] = ()
    like: str = ""
    published: Published | None = None


PRO: Final = ("tuner=pro",)
L1: Final = (
    "tuner=stochastic",
    "loss=hinge",
    "loss.reduction=each",
    "regularizer=l1",
    "optimizer=cumulative_l1",
)
# A complete run of PRO on dev: until nothing is new and weights move by less than its tolerance.
# Of each solution a tenth is taken, so that 60 iterations leave less than 0.2% of the way to go.
GROUPING: Final = ("tuner=grouping", "tuner.dev.iterations=60", "tuner.dev.patience=null")
# As often as that for PRO by itself.
SIXTY: Final = ("tuner.iterations=60", "tuner.patience=null")
ONLINE: Final = ("regularizer=oscar", "regularizer.dimension=charts")
OSCAR: Final = (*GROUPING, *ONLINE)
MINIMUM: Final = ("regularizer=oscar", "tuner.learning=batch")
DENSE: Final = ("features=dense",)
RULE_ID: Final = ("features=rule_id",)
ON_TRAIN: Final = ("tuner.tune_on=train",)
STRENGTH: Final = "regularizer.strength"
RATE: Final = "optimizer.lr"
LAMBDA2: Final = "regularizer.lambda2"
FRACTION: Final = "regularizer.fraction"
# What --sweep tries, by the option that says it.
GRIDS: Final = {
    "strengths": (1e-5, 1e-4, 1e-3),
    "rates": (1e-3, 3e-3, 1e-2),
    "lambda2s": (3e-10, 3e-9, 3e-8),
    "fractions": (0.02, 0.1, 0.5),
}
# Where they are not chosen on devtest; λ2 is the paper's.
DEFAULTS: Final = {STRENGTH: "1e-4", RATE: "0.01", LAMBDA2: "3e-8", FRACTION: "0.1"}


def _oscar_but(name: str, option: str) -> Row:
    """Return the row of OSCAR with another option."""
    overrides = (*OSCAR, *RULE_ID, "lm=folds", option)
    return Row(name, "train, dev", "+group", overrides, "folds", like="oscar")


def _minimum_at(name: str, strength: str) -> Row:
    """Return the row of groups of the minimum at a strength of its own."""
    overrides = (*GROUPING, *MINIMUM, *RULE_ID, "lm=folds", strength)
    return Row(f"OSCAR, groups of the minimum, {name}", "train, dev", "+group", overrides, "folds")


# In the order of the paper; each row with lm=full, as the paper has it, below the one without.
ROWS: Final = {
    "mert_dev": Row(
        "MERT", "dev", "default", ("tuner=mert", *DENSE), published=Published(8, 8, 45.7, 40.6, 15)
    ),
    "pro_dev": Row(
        "PRO", "dev", "default", (*PRO, *DENSE), published=Published(8, 8, 46.3, 41.1, 34)
    ),
    "pro_train": Row(
        "PRO",
        "train",
        "default",
        (*PRO, *DENSE, *ON_TRAIN, "lm=folds"),
        "folds",
        published=Published(8, 8, 42.8, 36.8, 834),
    ),
    "pro_train_full": Row("PRO", "train", "default", (*PRO, *DENSE, *ON_TRAIN, "lm=full"), "full"),
    "pro_dev_id": Row(
        "PRO", "dev", "+id", (*PRO, *RULE_ID), published=Published(11081, 4534, 45.5, 40.2, 47)
    ),
    "l1_train_id": Row(
        "L1",
        "train",
        "+id",
        (*L1, *RULE_ID, *ON_TRAIN, "lm=folds"),
        "folds",
        swept=(STRENGTH, RATE),
        published=Published(584, 71, 42.7, 36.9, 975),
    ),
    "l1_train_id_full": Row(
        "L1", "train", "+id", (*L1, *RULE_ID, *ON_TRAIN, "lm=full"), "full", like="l1_train_id"
    ),
    "l1_dev_id": Row(
        "L1",
        "dev",
        "+id",
        (*L1, *RULE_ID),
        swept=(STRENGTH, RATE),
        published=Published(443, 248, 46.2, 41.0, 39),
    ),
    "oscar": Row(
        "OSCAR",
        "train, dev",
        "+group",
        (*OSCAR, *RULE_ID, "lm=folds"),
        "folds",
        swept=(LAMBDA2,),
        published=Published(503, 425, 46.9, 41.8, 1256),
    ),
    "oscar_full": Row(
        "OSCAR", "train, dev", "+group", (*OSCAR, *RULE_ID, "lm=full"), "full", like="oscar"
    ),
    # None of what follows is in the paper. As its first rows were run here: of PRO on dev, ten
    # iterations.
    "oscar_ten": Row(
        "OSCAR, ten iterations on dev",
        "train, dev",
        "+group",
        ("tuner=grouping", *ONLINE, *RULE_ID, "lm=folds"),
        "folds",
        like="oscar",
    ),
    # On shards of the pairs, which mix after each pass.
    "oscar_shards": _oscar_but("OSCAR, on shards of the pairs", "tuner.learning=mix"),
    # Is it grouping, selection, or luck?
    "oscar_minimum": Row(
        "OSCAR, groups of the minimum",
        "train, dev",
        "+group",
        (*GROUPING, *MINIMUM, *RULE_ID, "lm=folds"),
        "folds",
        swept=(FRACTION,),
    ),
    # Where PRO may decode dev as often as each round of groups does.
    "pro_dev_sixty": Row("PRO, 60 iterations", "dev", "default", (*PRO, *DENSE, *SIXTY)),
    "pro_dev_id_sixty": Row("PRO, 60 iterations", "dev", "+id", (*PRO, *RULE_ID, *SIXTY)),
    # As strong as planted groups ask for, and as noise does: the default of the program.
    "oscar_minimum_fifth": _minimum_at("a fifth of λ_max", f"{FRACTION}=0.2"),
    "oscar_minimum_half": _minimum_at("a half of λ_max", f"{FRACTION}=0.5"),
    "oscar_minimum_noise": _minimum_at("noise shuffled", "regularizer.noise=0.95"),
    # Where the minimum groups most.
    "oscar_scaled": Row(
        "OSCAR, groups of the minimum, scaled and merged features, squared hinge",
        "train, dev",
        "+group",
        (
            *(*GROUPING, *MINIMUM, *RULE_ID, "lm=folds", "tuner.minimizer.loss=squared_hinge"),
            *("tuner.scaling=rms", "tuner.merge_identical=true"),
        ),
        "folds",
        swept=(FRACTION,),
    ),
    "oscar_single": _oscar_but("OSCAR, each feature alone", "tuner.control=single"),
    "oscar_shuffled": _oscar_but("OSCAR, groups shuffled", "tuner.control=shuffled"),
    "random_pairs": _oscar_but("groups of random pairs", "tuner.learning=random_pairs"),
    "clusters": Row(
        "clusters of L1's weights",
        "train, dev",
        "+group",
        (*GROUPING, *RULE_ID, "lm=folds", "tuner.learning=clusters"),
        "folds",
    ),
    "mira_dev": Row("k-best MIRA (not in the paper)", "dev", "default", ("tuner=mira", *DENSE)),
}

# The model of all rows, and of the experiments: that of the first ones, not today's default.
SYSTEM: Final = ("model=liu2013",)

# Of the training data.
SENTENCES: Final = {"multi30k": 29_000, "fisher": 18_872, "example": 1200}


@dataclass(frozen=True)
class Options:
    """What the command line says about all rows."""

    folder: Path
    # Of a table whose choices are taken over where the folder has none.
    publish: Path | None
    command: str
    train_sentences: int
    iterations: int
    # Of rows that tune on dev alone.
    dev_only_iterations: int
    # What is chosen on devtest is chosen with the first one.
    seeds: tuple[int, ...]
    threads: int
    grids: dict[str, list[float]]
    sweep_iterations: int | None
    extra: tuple[str, ...]


def corpus_overrides(name: str, options: Options) -> tuple[str, ...]:
    """Return the overrides that all rows of a corpus have."""
    # test is translated when a row is done, and not needed before.
    return (f"data={name}", f"threads={options.threads}", *SYSTEM, *options.extra)


def row_overrides(name: str, row: Row, seed: int, options: Options) -> tuple[str, ...]:
    """Return the overrides of train.py for a row, but for a value that another row chooses."""
    overrides = [*corpus_overrides(name, options), "data.test=null", f"seed={seed}"]
    overrides += [f"tuner.iterations={most_iterations(row, options)}", "tuner.patience=3"]
    overrides += row.overrides
    if part := part_of(name, row, options):
        overrides.append(f"tuner.sentences={part}")
    return tuple(overrides)


def part_of(name: str, row: Row, options: Options) -> int:
    """Return how many training sentences a row tunes on if that is a part; 0: none, or all."""
    wanted = options.train_sentences if "train" in row.tuning_set else 0
    return wanted if wanted < SENTENCES[name] else 0


def most_iterations(row: Row, options: Options) -> int:
    """Return how many iterations a row has at most."""
    return options.iterations if "train" in row.tuning_set else options.dev_only_iterations


def place(folder: Path, key: str, seed: int, part: int = 0) -> Path:
    """Return the folder of a row, in that of a corpus; those of a part of the data are apart."""
    name = f"{key}-{part}" if part else key
    return folder / (name if seed == 1 else f"{name}-seed{seed}")


def in_turn(keys: Sequence[str]) -> list[str]:
    """Return rows in the order in which they are done: those that others take over come first."""
    ordered: list[str] = []
    for key in keys:
        ordered += [one for one in (ROWS[key].like, key) if one in keys and one not in ordered]
    return ordered


def defaults(key: str) -> str:
    """Return the values of options that a row, or the one that it is like, has by default."""
    return " ".join(f"{option}={DEFAULTS[option]}" for option in ROWS[ROWS[key].like or key].swept)
