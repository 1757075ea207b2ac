"""The rows of Simianer et al. (2012), and those beside them: what each of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import domains
from runs import WEIGHTS, said_path

# The bitext has some 28 times as many sentences as dev.
EPOCHS: Final = {"dev": 10, "train": 3}


class Published(NamedTuple):
    """A row as the paper has it, on News Commentary; features as printed."""

    features: str
    test: float


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes
    ----------
    algorithm : str
        1 to 4, and what is different from the paper's.
    tuning_set, features : str
        As the paper names them.
    overrides : tuple of str
        Of train.py.
    published : Published, optional
        The paper's figures.
    start : str
        The row whose weights it starts from; empty: from 0.
    by_domain : bool
        Whether there is a shard for each domain.
    """

    algorithm: str
    tuning_set: str
    features: str
    overrides: tuple[str, ...]
    published: Published | None = None
    start: str = ""
    by_domain: bool = False

    @property
    def on_train(self) -> bool:
        """Whether it tunes on training data itself."""
        return ON_TRAIN[0] in self.overrides


EXPERIMENT: Final = "experiment=simianer2012"
# A step after each sentence, for all of its pairs in the wrong order, as dtrain takes them.
ALGORITHM: Final = (EXPERIMENT, "loss.reduction=sum")
DENSE: Final = (*ALGORITHM, "features=dense")
SPARSE: Final = (*ALGORITHM, "features=sparse")
ON_TRAIN: Final = ("tuner.tune_on=train", "lm=folds")
MIX: Final = (*ON_TRAIN, "parallel=mix", "tuner.result=average")
ITERMIX: Final = (*ON_TRAIN, "parallel=itermix", "tuner.result=last")
ITERSEL: Final = (*ON_TRAIN, "parallel=itersel", "tuner.result=last")
# Fewer than any shard has, on either corpus.
FEW: Final = "parallel.features=10000"
MIRA: Final = ("tuner=mira", "decoder.k=100")
# Dense weights, and one factor of all sparse ones.
SCALE: Final = ("features=sparse", *MIRA, "tuner.sparse=scale")
# As train.py tunes by default: AdaGrad, logistic loss, L1, the best epoch on dev.
ADAGRAD: Final = ("features=sparse",)
MORE: Final = "+id,ng,shape"
# In the order of the paper.
ROWS: Final = {
    "1_dev_default": Row("1", "dev", "default", DENSE, Published("12", 28.0)),
    # As the slides have it: a step after each pair.
    "1_dev_default_each": Row("1p", "dev", "default", (EXPERIMENT, "features=dense")),
    "1_dev_sparse": Row("1", "dev", MORE, SPARSE, Published("180k", 28.15)),
    "2_train_default": Row("2", "train", "default", (*DENSE, *MIX), Published("12", 27.86)),
    "2_train_sparse": Row("2", "train", MORE, (*SPARSE, *MIX), Published("4.7M", 27.86)),
    "3_train_default": Row("3", "train", "default", (*DENSE, *ITERMIX), Published("12", 27.94)),
    "3_train_sparse": Row("3", "train", MORE, (*SPARSE, *ITERMIX), Published("4.7M", 28.55)),
    "4_train_sparse": Row("4", "train", MORE, (*SPARSE, *ITERSEL), Published("100k", 28.81)),
    # Not in the paper.
    "4_few_sparse": Row("4f", "train", MORE, (*SPARSE, *ITERSEL, FEW)),
    "4_domains_sparse": Row("4d", "train", MORE, (*SPARSE, *ITERSEL), by_domain=True),
    "4_started_sparse": Row("4s", "train", MORE, (*SPARSE, *ITERSEL), start="1_dev_default"),
    "4_then_dev_sparse": Row("4+1", "train, then dev", MORE, SPARSE, start="4_train_sparse"),
    "4_then_scale_sparse": Row("4+m", "train, then dev", MORE, SCALE, start="4_train_sparse"),
    "mira_dev_default": Row("m", "dev", "default", (*MIRA, "features=dense")),
    "mira_dev_sparse": Row("m", "dev", MORE, (*MIRA, "features=sparse")),
    "adagrad_dev_sparse": Row("a", "dev", MORE, ADAGRAD),
    "adagrad_train_sparse": Row("3a", "train", MORE, (*ADAGRAD, *ON_TRAIN, "parallel=itermix")),
    "adagrad_then_dev_sparse": Row(
        "3a+a", "train, then dev", MORE, ADAGRAD, start="adagrad_train_sparse"
    ),
}
# Rows that are to have several seeds; others have the first alone.
SEVERAL: Final = (
    "4_train_sparse",
    "4_few_sparse",
    "4_then_scale_sparse",
    "mira_dev_default",
    "mira_dev_sparse",
    "adagrad_dev_sparse",
    "adagrad_train_sparse",
    "adagrad_then_dev_sparse",
)
SEEDS: Final = (1, 2, 3)


@dataclass(frozen=True)
class Options:
    """What the command line says about all rows."""

    folder: Path
    command: str
    train_sentences: int
    # 0: as many as `EPOCHS` has.
    epochs: int
    seeds: tuple[int, ...]
    workers: int
    extra: tuple[str, ...]


def epochs(row: Row, options: Options) -> int:
    """Return how many epochs a row has."""
    return options.epochs or EPOCHS["train" if row.on_train else "dev"]


def with_starts(keys: Sequence[str]) -> list[str]:
    """Return rows and those whose weights they start from, in the order of the table."""
    wanted = set(keys)
    while more := {ROWS[key].start for key in wanted} - wanted - {""}:
        wanted |= more
    return [key for key in ROWS if key in wanted]


def data_folder(folder: Path, name: str) -> Path:
    """Return where the sets of a corpus are, without the domain that is kept apart."""
    return folder / name / "data"


def corpus_overrides(name: str, options: Options) -> tuple[str, ...]:
    """Return the overrides that all rows of a corpus have."""
    # Those of shards have no effect without any.
    extra = (o for o in options.extra if not o.startswith("parallel."))
    return (
        f"data={name}",
        f"data.folders=[{said_path(data_folder(options.folder, name))}]",
        f"model.folder={said_path(options.folder / name / 'model')}",
        *extra,
    )


def row_overrides(name: str, row: Row, seed: int, options: Options) -> tuple[str, ...]:
    """Return the overrides of train.py for a row."""
    overrides = [*corpus_overrides(name, options), "data.test=null", f"seed={seed}"]
    overrides += row.overrides
    if "tuner=mira" not in row.overrides:
        overrides.append(f"tuner.epochs={epochs(row, options)}")
    if row.start:
        start = place(options.folder, name, row.start, seed) / WEIGHTS
        overrides += ["init=file", f"init.file={said_path(start)}"]
    if not row.on_train:
        return (*overrides, f"threads={options.workers}")
    if options.train_sentences:
        overrides.append(f"tuner.sentences={options.train_sentences}")
    shards = [o for o in options.extra if o.startswith("parallel.")]
    if row.by_domain:
        labels = data_folder(options.folder, name) / domains.LABELS
        shards = [o for o in shards if not o.startswith("parallel.shards=")]
        shards.append(f"parallel.labels={said_path(labels)}")
    return (*overrides, *shards, f"engine.workers={options.workers}", "threads=1")


def place(folder: Path, name: str, key: str, seed: int) -> Path:
    """Return the folder of a row."""
    return folder / name / f"{key}-seed{seed}"
