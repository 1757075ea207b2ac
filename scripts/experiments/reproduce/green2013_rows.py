"""The rows of Green et al. (2013), and those beside them: what each of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import green2013_moses
import numpy as np
from domains import chosen, dataset_of, read_set, write_set, write_sets
from runs import said_path

from torchtune_smt.core.textio import atomic_folder

# A set of 1,000 sentences, drawn once from dev where that is larger.
SMALL_DEV: Final = "dev_small"
SMALL_DEV_SENTENCES: Final = 1000
# Sentences that are tuned on; of dev with all of them, of train with --small a part of them.
SIZES: Final = {
    "multi30k": {"dev": 1014, "train5k": 5000, "train15k": 15_000},
    "fisher": {"dev": SMALL_DEV_SENTENCES, "dev_large": 3967, "train5k": 5000, "train15k": 15_000},
    "callhome": {"dev": SMALL_DEV_SENTENCES, "dev_callhome": 1000, "train5k": 5000},
    "example": {"dev": 100, "train5k": 60, "train15k": 120},
}
SETS: Final = ("dev", "dev_callhome", "dev_large", "train5k", "train15k")
ON_DEV: Final = ("dev", "dev_callhome", "dev_large")
# Pairs of CALLHOME that are held out of Fisher's bitext, and those before and between them that are
# in no set, so that no conversation is in two.
CALLHOME: Final = "callhome"
CALLHOME_TEST, CALLHOME_DEV, CALLHOME_GAP = 2000, 1000, 100
# Seeds where none are given.
SEEDS: Final = {"dev": (1, 2, 3)}
BASELINE: Final = "mira_dense"
# The same, of the code and the machine of the rows that were added to a table later.
AGAIN: Final = "mira_dense_again"


@dataclass(frozen=True)
class Row:
    """A system, and how it is tuned.

    Attributes
    ----------
    method, features : str
        As the paper names them.
    overrides : tuple of str
        Of train.py.
    sets : tuple of str
        What it is tuned on.
    baseline : str
        The row that it is compared with.
    """

    method: str
    features: str
    overrides: tuple[str, ...]
    sets: tuple[str, ...] = SETS
    baseline: str = BASELINE

    @property
    def online(self) -> bool:
        """Whether it has epochs, and not iterations."""
        return self.overrides[0] == ADAGRAD[0]


DENSE: Final = "features=dense"
PT: Final = green2013_moses.templates("RuleId")
AL_LO: Final = green2013_moses.templates("WordAlignment", "LexReordering")
ALL: Final = "features=green2013_phrase"
# Classes of reordering with the phrase pair (of the one before, for those towards what follows it).
LEXICAL: Final = "+PT+AL+LO with words"
ALL_LEXICAL: Final = green2013_moses.templates(
    "RuleId", "WordAlignment", "LexReordering,lexicalized:true"
)
ADAGRAD: Final = ("experiment=green2013",)


def _batch(method: str, tuner: str, features: str, templates: str) -> Row:
    return Row(method, features, (f"tuner={tuner}", "decoder=phrase", templates), ON_DEV)


def _later(method: str, features: str, *overrides: str) -> Row:
    return Row(method, features, overrides, ("dev",), AGAIN)


# What was chosen for these data, in place of the paper's settings: BLEU+1 makes translations short.
TUNED: Final = (*ADAGRAD, "metric=nakov")
RESTS: Final = "tuner.iterations=60"
LONG: Final = "tuner.epochs=30"
ROWS: Final = {
    "mert_dense": _batch("MERT", "mert", "dense", DENSE),
    "pro_dense": _batch("PRO", "pro", "dense", DENSE),
    BASELINE: _batch("k-best MIRA", "mira", "dense", DENSE),
    "pro_pt": _batch("PRO", "pro", "+PT", PT),
    "mira_pt": _batch("k-best MIRA", "mira", "+PT", PT),
    "pro_pt_al_lo": _batch("PRO", "pro", "+PT+AL+LO", ALL),
    "mira_pt_al_lo": _batch("k-best MIRA", "mira", "+PT+AL+LO", ALL),
    "adagrad_dense": Row("AdaGrad", "dense", (*ADAGRAD, DENSE)),
    "adagrad_pt": Row("AdaGrad, L1", "+PT", (*ADAGRAD, PT)),
    # Not in the paper.
    "adagrad_al_lo": Row("AdaGrad, L1", "+AL+LO", (*ADAGRAD, AL_LO)),
    "adagrad_pt_al_lo": Row("AdaGrad, L1", "+PT+AL+LO", ADAGRAD),
    # Two questions that the paper leaves open.
    "once_an_epoch": Row(
        "AdaGrad, L1 once an epoch",
        "+PT+AL+LO",
        (*ADAGRAD, "optimizer.regularize_each=epoch"),
        ("dev",),
    ),
    "stale": Row(
        "AdaGrad, L1, stale gradients, 2 workers",
        "+PT+AL+LO",
        (*ADAGRAD, "parallel=stale", "parallel.workers=2"),
        ("dev", "train5k"),
    ),
    "itermix": Row(
        "AdaGrad, L1, iterative mixing, 2 workers",
        "+PT+AL+LO",
        (*ADAGRAD, "parallel=itermix", "parallel.shards=2", "engine.workers=2"),
        ("dev", "train5k"),
    ),
    # With settings that were chosen for these data.
    "adagrad_dense_tuned": Row("AdaGrad, tuned", "dense", (*TUNED, DENSE)),
    "adagrad_al_lo_tuned": Row("AdaGrad, L1, tuned", "+AL+LO", (*TUNED, AL_LO)),
    "adagrad_pt_al_lo_tuned": Row("AdaGrad, L1, tuned", "+PT+AL+LO", TUNED),
    # Rows that were added later.
    AGAIN: _later("k-best MIRA, again", "dense", "tuner=mira", "decoder=phrase", DENSE),
    # Classes of reordering with words in them, as in the paper.
    "adagrad_pt_al_lo_lexical": _later("AdaGrad, L1", LEXICAL, *ADAGRAD, ALL_LEXICAL),
    "adagrad_pt_al_lo_lexical_tuned": _later("AdaGrad, L1, tuned", LEXICAL, *TUNED, ALL_LEXICAL),
    # PRO until it rests, with the paper's prior (sigma of 0.1), the default's, and one between.
    **{
        f"pro_{key}_sigma{sigma}": _later(
            f"PRO, σ = {sigma}, until it rests",
            name,
            *("tuner=pro", "decoder=phrase", override, f"tuner.solver.sigma={sigma}", RESTS),
        )
        for key, name, override in (("dense", "dense", DENSE), ("pt_al_lo", "+PT+AL+LO", ALL))
        for sigma in (0.1, 0.3, 1)
    },
    # Whether a few epochs are enough.
    "adagrad_dense_long": _later("AdaGrad, 30 epochs", "dense", *ADAGRAD, DENSE, LONG),
    "adagrad_pt_al_lo_long": _later("AdaGrad, L1, 30 epochs", "+PT+AL+LO", *ADAGRAD, LONG),
}
# Of the corpus with a test set of the bitext's own domain.
ON_CALLHOME: Final = (BASELINE, "adagrad_dense", "adagrad_pt_al_lo")


@dataclass(frozen=True)
class Options:
    """What the command line says about all rows."""

    folder: Path
    command: str
    epochs: int | None
    seeds: tuple[int, ...]
    extra: tuple[str, ...]

    def seeds_of(self, one: str) -> tuple[int, ...]:
        """Return the seeds of rows that are tuned on a set."""
        return self.seeds or SEEDS.get(one, (1,))


def rows_of(name: str, keys: Sequence[str], sets: Sequence[str]) -> list[str]:
    """Return the rows that there are of a corpus, as SET/ROW."""
    there = [one for one in sets if one in SIZES.get(name, ())]
    keys = [key for key in keys if key in (ON_CALLHOME if name == CALLHOME else ROWS)]
    return [f"{one}/{key}" for one in there for key in keys if one in ROWS[key].sets]


def runs_of(
    name: str, keys: Sequence[str], sets: Sequence[str], options: Options
) -> list[tuple[str, int]]:
    """Return rows with their seeds."""
    rows = rows_of(name, keys, sets)
    return [(row, seed) for row in rows for seed in options.seeds_of(row.partition("/")[0])]


def place(options: Options, name: str, row: str, seed: int) -> Path:
    """Return the folder of a row."""
    return options.folder / "own" / name / row / f"seed{seed}"


def small_dev(name: str, options: Options) -> list[Path]:
    """Return the files of a corpus's small dev set, written if they are not there.

    It is the same set for all seeds; none where dev is small itself.
    """
    if "dev_large" not in SIZES[name]:
        return []
    folder = options.folder / "own" / name / "data"
    dataset = dataset_of(name)
    if not folder.is_dir():
        corpus = read_set(dataset, "dev")
        lines = _small_lines(len(corpus.source))
        with atomic_folder(folder) as beside:
            languages = dataset.source_language, dataset.target_language
            write_set(beside, SMALL_DEV, chosen(corpus, lines), languages)
    source = folder / f"{SMALL_DEV}.{dataset.source_language}"
    return [source, *sorted(folder.glob(f"{SMALL_DEV}.{dataset.target_language}*"))]


def _small_lines(size: int) -> list[int]:
    return sorted(np.random.default_rng(1).choice(size, SMALL_DEV_SENTENCES, replace=False))


def write_callhome(options: Options) -> None:
    """Write Fisher with CALLHOME's own dev and test sets, if they are not there.

    These are the end of the bitext, and train is what is before them. Dev is Fisher's small one.
    """
    folder = options.folder / "own" / CALLHOME / "data"
    if folder.is_dir():
        return
    dataset = dataset_of("fisher")
    bitext, dev = (read_set(dataset, one) for one in ("train", "dev"))
    test = len(bitext.source) - CALLHOME_TEST
    own = test - CALLHOME_GAP - CALLHOME_DEV
    sets = {
        "train": chosen(bitext, range(own - CALLHOME_GAP)),
        "dev_callhome": chosen(bitext, range(own, own + CALLHOME_DEV)),
        "devtest": chosen(bitext, range(test, test + CALLHOME_TEST)),
        "dev": chosen(dev, _small_lines(len(dev.source))),
        "test": read_set(dataset, "test"),
    }
    write_sets(folder, dataset, sets)


def corpus_overrides(name: str, options: Options) -> tuple[str, ...]:
    """Return the overrides that all rows of a corpus have."""
    place = options.folder / "own" / name
    data = [f"data={name}"]
    if name == CALLHOME:
        data = ["data=fisher", f"data.folders=[{said_path(place / 'data')}]"]
    return (*data, "data.test=null", f"model.folder={said_path(place / 'model')}")


def row_overrides(
    name: str, row: str, seed: int, dev: Sequence[Path], options: Options
) -> tuple[str, ...]:
    """Return the overrides of train.py for a row.

    Parameters
    ----------
    row : str
        SET/ROW.
    dev : sequence of path
        See `small_dev`.
    """
    one, _, key = row.partition("/")
    given = ROWS[key]
    overrides = [*given.overrides, *corpus_overrides(name, options)]
    overrides += [f"seed={seed}", "threads=1"]
    if dev and one != "dev_large":
        overrides.append(f"data.dev=[{','.join(map(said_path, dev))}]")
    if name == CALLHOME and one != "dev":
        # What is tuned on CALLHOME stops by CALLHOME.
        overrides.append("data.dev=dev_callhome")
    if one not in ON_DEV:
        overrides += ["tuner.tune_on=train", "lm=folds", f"tuner.sentences={SIZES[name][one]}"]
    if options.epochs is not None:
        rounds = "epochs" if given.online else "iterations"
        overrides.append(f"tuner.{rounds}={options.epochs}")
    return (*overrides, *options.extra)
