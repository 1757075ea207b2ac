"""Table 1 of Liu et al. (2013): python scripts/reproduce/liu2013.py [--small].

Tunes each row with a run of train.py, tries the weights on devtest and test, and writes table.md,
table.csv and bleu-by-features.png; chance-in-groups.png, too, where groups come from Algorithm 2.
Rows that are finished are not run again, and one that was stopped is taken up where it was: the
same command goes on. Two commands with different --corpora may share a --folder and run side by
side. Rows of a part of the training data have folders that say so (oscar-5000), so that a --folder
may have them beside those of all of it.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

import forecast
import tables
from alike import Key, groups_of, labelled, shared
from command_line import (
    CORPORA,
    add_common,
    add_corpora,
    add_rows,
    check_counts,
    check_seeds,
    chosen_corpora,
    ended,
    said,
    stand_ins,
)
from diagnosis import Diagnosis, plot_diagnosis, read_diagnosis
from measured import measured, training_sentences
from published import merged_by, read_results, void
from runs import (
    LOG,
    REPOSITORY,
    SWEEP,
    Run,
    complete,
    drop_kept,
    lengthen,
    read_log,
    retarget,
    sweep,
)
from tables import NOT_COMPARED, Published, Section
from tuned import DEVTEST, SIGNIFICANCE, TEST, Corpus

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import atomic_writer

BASELINE: Final = "pro_dev"
# A row that tunes on training data then takes less than two hours on one core.
TRAIN_SENTENCES: Final = 2000
SMALL_SENTENCES: Final = 200
SMALL: Final = ("decoder.pop_limit=20", "decoder.k=50")
NOT_AGAIN: Final = "not computed again"
TITLE: Final = "Liu et al. (2013), Table 1"
NOTES: Final = (
    "BLEU is sacrebleu's corpus BLEU-4 (lowercased, `tokenize=none`). p: of the difference from "
    "PRO on dev with default features, by approximate randomisation (10,000 trials); bold below "
    f"0.05; `{NOT_AGAIN}`: the translations are not there any more; `{NOT_COMPARED}`: the baseline "
    "has been done again since, elsewhere, or is not there with the same seed and options; a row "
    "with other options than PRO on dev names them. "
    "Active: weights that are not 0, dense ones among them; for OSCAR groups with such a weight. "
    "Reused: those of them that fire in the 1000 best translations of a sentence of test. "
    "Iterations: the one with the best BLEU on dev, whose weights were kept, and all. "
    "Minutes: of tuning, in wall-clock time, and on a processor: one thread unless the command has "
    "`--threads`.",
    "Training data is decoded with leave-one-out grammars and, as `language models` says, with "
    "those of the other folds (`folds`) or with the one that has seen it (`full`, as in the "
    "paper). Where not all of it was tuned on, the sample is drawn with the seed.",
)


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

# Of PRO on dev in each iteration of tuner=grouping, by default.
DEV_ITERATIONS: Final = 10
# What rows took that were done before, and the sizes of the training data.
CSV: Final = "table.csv"
MEASURED: Final = REPOSITORY / "docs" / "results" / "liu2013" / CSV
SENTENCES: Final = {"multi30k": 29_000, "fisher": 18_872, "example": 1200}


@dataclass
class Result(tables.Result):
    """What came out of a row on a corpus.

    Attributes
    ----------
    diagnosis : Diagnosis
        What its run says of its groups.
    """

    diagnosis: Diagnosis = field(default_factory=dict)


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


def do_row(key: str, corpus: Corpus, name: str, seed: int, options: Options) -> Result | None:
    """Tune a row, or what is left of it, and try its weights; None if tuning failed.

    Raises
    ------
    InputError
        Its folder has a run with other options, or what it takes over is not there.
    """
    row = ROWS[key]
    part = part_of(name, row, options)
    folder = place(options.folder / name, key, seed, part)
    before = Result.load(folder)
    run = Run(folder, row_overrides(name, row, seed, options))
    points: list[dict[str, Any]] = []
    resuming: tuple[str, ...] = ()
    if sweeps(row, seed, options):
        found = choose(row, corpus, run, options)
        if found is None:
            return None
        points, chosen, run, resuming = found
    else:
        chosen = taken_over(key, name, seed, options)
        run = Run(folder, (*run.overrides, *chosen.split()))
    # Where --iterations is another one now.
    iterations = retarget(run)
    if not complete(run, resuming or iterations):
        return None
    if before is not None and before.overrides == list(run.overrides) and before.points == points:
        return before
    result = measured(
        Result,
        run,
        corpus,
        folder,
        row=key,
        corpus=name,
        method=row.method,
        tuning_set=row.tuning_set,
        features=row.features,
        language_models=row.language_models,
        training_sentences=training_sentences(row.tuning_set, part, corpus),
        seed=seed,
        chosen=chosen,
        points=points,
        command=options.command,
        diagnosis=read_diagnosis(run.folder),
    )
    if run.folder != folder:
        shutil.copyfile(run.folder / DEVTEST, folder / DEVTEST)
    result.save(folder)
    return result


def sweeps(row: Row, seed: int, options: Options) -> bool:
    """Return whether a row chooses options itself."""
    return bool(row.swept and options.grids and seed == options.seeds[0])


def taken_over(key: str, name: str, seed: int, options: Options) -> str:
    """Return the values of options that a row has and does not choose, as `Result.chosen` does.

    They are what another row, or this one with the first seed, has chosen, here or in the table
    that --publish names, and without --sweep the default ones if it has not been done.

    Raises
    ------
    InputError
        With --sweep it has not been done.
    """
    found = chosen_before(key, name, seed, options)
    if found is not None:
        return found
    if options.grids:
        other = ROWS[key].like or key
        raise InputError(
            f"takes over what {other} chooses with seed {options.seeds[0]}, and that has not been "
            f"done there with these options: run --rows {other} too, or name a table that has it "
            "with --publish"
        )
    print(f"  {defaults(key)}, by default", flush=True)
    return defaults(key)


def chosen_before(key: str, name: str, seed: int, options: Options) -> str | None:
    """Return the values that `taken_over` does; None if they have not been chosen yet."""
    row, first = ROWS[key], options.seeds[0]
    other = row.like or key
    if not ROWS[other].swept:
        return ""
    if other == key and seed == first:
        return None
    part = part_of(name, ROWS[other], options)
    # What was chosen with other options for all rows says nothing here.
    alike = shared(corpus_overrides(name, options))
    like = Result.load(place(options.folder / name, other, first, part))
    if like is not None and shared(like.overrides) == alike:
        return like.chosen
    wanted = Key(other, part or SENTENCES[name] * ("train" in ROWS[other].tuning_set), first)
    for like in [] if options.publish is None else read_results(options.publish / CSV, Result):
        if like.corpus == name and Key.of(like) == wanted and shared(like.overrides) == alike:
            return like.chosen
    return None


def defaults(key: str) -> str:
    """Return the values of options that a row, or the one that it is like, has by default."""
    return " ".join(f"{option}={DEFAULTS[option]}" for option in ROWS[ROWS[key].like or key].swept)


def in_turn(keys: Sequence[str]) -> list[str]:
    """Return rows in the order in which they are done: those that others take over come first."""
    ordered: list[str] = []
    for key in keys:
        ordered += [one for one in (ROWS[key].like, key) if one in keys and one not in ordered]
    return ordered


def choose(
    row: Row, corpus: Corpus, run: Run, options: Options
) -> tuple[list[dict[str, Any]], str, Run, tuple[str, ...]] | None:
    """Choose what a row sweeps, an option after the other; None if all runs of one have failed.

    Returns
    -------
    points : list of dict
        See `Result`.
    chosen : str
        As `Result` has it.
    run : Run
        With what was chosen, which may be done, or begun: by the shorter run that chose it.
    resuming : tuple of str
        See `runs.complete`.
    """
    points: list[dict[str, Any]] = []
    chosen: tuple[str, ...] = ()
    begun = sweep_run(run, options)
    shorter = (options.sweep_iterations or math.inf) <= most_iterations(row, options)
    for option in row.swept:
        folder = begun.folder / option if chosen else begun.folder
        # What the last option is chosen from has all others as the row will.
        kept = shorter and option == row.swept[-1]
        tried_with = Run(folder, (*begun.overrides, *chosen))
        found = sweep(option, options.grids[option], tried_with, kept)
        if not found:
            return None
        tried = [_point(corpus, one) for one in found]
        best = max(range(len(tried)), key=lambda i: tried[i]["devtest"])
        points += tried
        chosen = (*chosen, tried[best]["option"])
        last = found[best]
    if options.sweep_iterations is None:
        return points, " ".join(chosen), last, ()
    whole = Run(run.folder, (*run.overrides, *chosen))
    resuming = lengthen(whole, last)
    for one in found:
        drop_kept(one)
    return points, " ".join(chosen), whole, resuming


def sweep_run(run: Run, options: Options) -> Run:
    """Return the run that a row's option is chosen with: the row's own, or a shorter one."""
    if options.sweep_iterations is None:
        return run
    shorter = f"tuner.iterations={options.sweep_iterations}"
    overrides = tuple(shorter if o.startswith("tuner.iterations=") else o for o in run.overrides)
    return Run(run.folder / SWEEP, overrides)


def _point(corpus: Corpus, run: Run) -> dict[str, Any]:
    """Return what came out of a value of a sweep."""
    log = read_log(run.folder)
    return {
        "option": run.overrides[-1],
        "dev": log.dev,
        "devtest": corpus.score("devtest", run.overrides, run.folder),
        "active": log.active,
        "minutes": run.minutes,
        "cpu_minutes": run.cpu_minutes,
    }


def results_of(folder: Path) -> dict[Key, tuple[Result, Path]]:
    """Return what is done in a corpus's folder, and where it is, in the order of the table.

    Where a part of the training data had no folder of its own, it is found, too; one that has is
    taken first.
    """
    found = {}
    for key in ROWS:
        name = re.compile(rf"{key}(-\d+)?(-seed\d+)?")
        for path in sorted(folder.glob(f"{key}*"), key=lambda path: len(path.name)):
            result = Result.load(path) if name.fullmatch(path.name) else None
            if result is not None:
                found[Key.of(result)] = result, path
    return {key: found[key] for key in in_order(found)}


def in_order(keys: Iterable[Key]) -> list[Key]:
    """Return keys in the order of the table: more training sentences come first."""
    rows = list(ROWS)
    known = [key for key in keys if key.row in ROWS]
    return sorted(known, key=lambda k: (rows.index(k.row), -k.training_sentences, k.seed))


def compare_rows(corpus: Corpus, folder: Path) -> None:
    """Compare rows with the baseline of the same seed and options, where that is still to do.

    Rows whose translations are gone have no p-value then, and neither have those without a
    baseline.
    """
    done = results_of(folder)
    baselines = {key.seed: found for key, found in done.items() if key.row == BASELINE}
    for key, (result, own) in done.items():
        if key.row == BASELINE:
            continue
        baseline, base = baselines.get(key.seed, (None, own))
        if baseline is None and result.p_test is not None:
            # Compared with one that is not there any more.
            continue
        if baseline is None or shared(baseline.overrides) != shared(result.overrides):
            if result.significance != NOT_COMPARED:
                void(result)
                result.save(own)
            continue
        scores = [baseline.devtest, baseline.test]
        if result.compared == scores and result.significance == SIGNIFICANCE:
            continue
        files = [(base / file, own / file) for file in (DEVTEST, TEST)]
        if all(path.is_file() for pair in files for path in pair):
            result.p_devtest = corpus.p_value("devtest", *files[0])
            result.p_test = corpus.p_value("test", *files[1])
            result.significance = SIGNIFICANCE
        else:
            result.p_devtest = result.p_test = None
            result.significance = NOT_AGAIN
        result.compared = scores
        result.save(own)


def write_tables(folder: Path, output: Path) -> None:
    """Write table.md, table.csv and the pictures of all rows that are done.

    Rows that the folder has from before, and that were not done again, stay. So does the picture of
    chance in groups where these do not say what it shows.
    """
    sections, everything, silent = [], [], []
    diagnoses: dict[str, list[Diagnosis]] = {}
    for name, about in CORPORA.items():
        done = {key: result for key, (result, _) in results_of(folder / name).items()}
        results = with_kept(done, output, name)
        if not results:
            continue
        groups = groups_of(results, BASELINE)
        more = [*tables.over_seeds(groups, BASELINE), *_missing(results)]
        sections.append(Section(name, about, [labelled(group)[0] for group in groups], more))
        everything.append(Section(name, about, results))
        sizes = tables.several_sizes(results)
        # Published before tables had it.
        silent += [
            f"{name}/{result.row}"
            for result in results
            if "tuner=grouping" in result.overrides
            and not result.diagnosis
            and Key.of(result) not in done
        ]
        diagnosis_of = {Key.of(result): result.diagnosis for result in results}
        for result in (result for group in groups for result in labelled(group)):
            if found := diagnosis_of[Key.of(result)]:
                said = f"{name}: {tables.name(result, sizes)}"
                diagnoses.setdefault(said, []).append(found)
    if not sections:
        return
    published = {key: row.published for key, row in ROWS.items() if row.published is not None}
    text = tables.markdown(TITLE, [*NOTES, *not_begun(sections)], sections, published, BASELINE)
    with atomic_writer(output / "table.md") as file:
        file.write(text)
    tables.write_csv(output / CSV, everything)
    tables.plot(output / "bleu-by-features.png", sections)
    picture = output / "chance-in-groups.png"
    if silent and picture.is_file():
        silent = list(dict.fromkeys(silent))
        print(f"{picture} stays as it was: {CSV} does not have what {', '.join(silent)} say there")
    elif diagnoses:
        plot_diagnosis(picture, diagnoses)


def with_kept(done: Mapping[Key, Result], output: Path, name: str) -> list[Result]:
    """Return results and the published ones that were not done again, in the order of the table.

    Those have no p-value any more where the baseline has other scores now, or other options.
    """
    found, _, changed = merged_by(Key.of, done, output / CSV, Result, name)
    baselines = {key.seed: key for key in found if key.row == BASELINE}
    for key in found.keys() - done.keys():
        beside = baselines.get(key.seed, key)
        alike = shared(found[beside].overrides) == shared(found[key].overrides)
        if key.row != BASELINE and (beside in changed or not alike):
            void(found[key])
    return [found[key] for key in in_order(found)]


def _missing(results: Sequence[Result]) -> list[str]:
    """Return which rows have not been run, and which of their seeds, as lines of Markdown."""
    known = {result.row for result in results}
    lines = []
    if left := [key for key in ROWS if key not in known]:
        lines += [f"Not run: {', '.join(f'`{key}`' for key in left)}.", ""]
    if seeds := [said for key in ROWS if key in known for said in _missing_seeds(key, results)]:
        lines += [f"Seeds that were not run: {'; '.join(seeds)}.", ""]
    return lines


def _missing_seeds(key: str, results: Sequence[Result]) -> Iterator[str]:
    """Yield which seeds a row does not have, but others, with the same sentences if it has any."""
    of_train = [result for result in results if "train" in ROWS[result.row].tuning_set]
    sizes = sorted({result.training_sentences for result in of_train}, reverse=True)
    on_train = "train" in ROWS[key].tuning_set
    for size in sizes if on_train else [0]:
        beside = [r for r in of_train if r.training_sentences == size] if on_train else results
        own = {result.seed for result in beside if result.row == key}
        left = sorted({result.seed for result in beside} - own)
        of_size = f", {size:,} training sentences" if on_train and len(sizes) > 1 else ""
        if left:
            yield f"`{key}`{of_size} ({', '.join(map(str, left))})"


def not_begun(sections: Sequence[Section]) -> list[str]:
    """Return which corpora have no row, as a note; the example is none of the experiments."""
    there = {section.corpus for section in sections}
    left = [] if there == {"example"} else sorted({"multi30k", "fisher"} - there)
    return [f"Nothing has been run of {name}." for name in left]


def dev_iterations(overrides: Sequence[str]) -> int:
    """Return how many iterations on dev one of a row on training data has, at most.

    Where none are for tuning, it is translated once.
    """
    if "tuner=grouping" not in overrides:
        return int("tuner.tune_on=train" in overrides)
    given = [o.partition("=")[2] for o in overrides if o.startswith("tuner.dev.iterations=")]
    return int(given[-1]) if given else DEV_ITERATIONS


def is_done(key: str, name: str, seed: int, options: Options) -> bool:
    """Return whether there is a result of what would be run now, for a row."""
    row = ROWS[key]
    folder = place(options.folder / name, key, seed, part_of(name, row, options))
    result = Result.load(folder)
    if result is None:
        return False
    if sweeps(row, seed, options):
        chosen: str | None = result.chosen
        values = [(option, value) for option in row.swept for value in options.grids[option]]
        if [point["option"] for point in result.points] != [f"{o}={float(v)}" for o, v in values]:
            return False
    else:
        chosen = chosen_before(key, name, seed, options)
        if chosen is None and not options.grids:
            chosen = defaults(key)
    overrides = row_overrides(name, row, seed, options)
    return chosen is not None and result.overrides == [*overrides, *chosen.split()]


def forecasts(
    keys: Sequence[str], names: Sequence[str], options: Options
) -> Iterator[tuple[str, bool, float | None]]:
    """Yield what `forecast.print_hours` takes."""
    measured = forecast.read_measured(MEASURED)
    for name in names:
        for key in keys:
            row = ROWS[key]
            # Other rows that were never measured learn groups, as OSCAR's do.
            like = (key, key.removesuffix("_full"), "oscar")
            known = next((k for k in like if (name, k) in measured), "oscar")
            sentences = options.train_sentences or SENTENCES.get(name, 0)
            dev = 0.0, 0.0
            if (name, known) in measured and (name, BASELINE) in measured:
                once = measured[name, BASELINE].cpu_minutes
                dev = (
                    once * dev_iterations(measured[name, known].overrides),
                    once * dev_iterations(row.overrides),
                )
            values = sum(len(options.grids.get(option, ())) for option in row.swept)
            for seed in options.seeds:
                # Values are tried with the first seed alone.
                tried = values if seed == options.seeds[0] else 0
                iterations = most_iterations(row, options)
                iterations *= not tried or options.sweep_iterations is not None
                iterations += tried * (options.sweep_iterations or most_iterations(row, options))
                hours = forecast.hours(measured, name, known, sentences, iterations, dev)
                done = is_done(key, name, seed, options)
                yield f"{name}/{key}" + (f", seed {seed}" if seed != 1 else ""), done, hours


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(
        description="Runs the rows of Table 1 of Liu et al. (2013), and writes the table. Rows "
        "that are finished are not run again; the same command goes on after an interruption."
    )
    add_corpora(parser)
    add_rows(parser, list(ROWS))
    parser.add_argument(
        "--train-sentences",
        type=int,
        metavar="N",
        help="tune on a sample of the training data; 0: all (default: "
        f"{TRAIN_SENTENCES:,}; with --small: {SMALL_SENTENCES})",
    )
    parser.add_argument(
        "--iterations", type=int, metavar="T", help="at most (default: 15; with --small: 3)"
    )
    parser.add_argument(
        "--dev-only-iterations",
        type=int,
        metavar="T",
        help="of rows that tune on dev alone (default: as --iterations)",
    )
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="choose the strengths of L1 and OSCAR on devtest, as the paper did",
    )
    parser.add_argument(
        "--sweep-iterations",
        type=int,
        metavar="T",
        help="choose them from runs of so many iterations, each, and go on with the chosen one",
    )
    for name, what in {
        "strengths": "of L1",
        "rates": "step sizes of L1",
        "lambda2s": "of OSCAR",
        "fractions": "of λ_max, for groups of the minimum",
    }.items():
        default = " ".join(f"{value:g}" for value in GRIDS[name])
        parser.add_argument(
            f"--{name}",
            type=float,
            nargs="+",
            metavar="VALUE",
            help=f"{what}, that --sweep tries (default: {default})",
        )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[1],
        metavar="SEED",
        help="options are chosen with the first one (default: 1)",
    )
    parser.add_argument("--threads", type=int, default=1, help="cores a run (default: 1)")
    add_common(parser, "liu2013")
    options = parser.parse_args(arguments)
    if options.small and options.corpora:
        parser.error("--small has a corpus of its own: leave --corpora out")
    if options.sweep_iterations is not None and not options.sweep:
        parser.error("--sweep-iterations needs --sweep")
    if options.train_sentences is not None and options.train_sentences < 0:
        parser.error("--train-sentences must be 0 or more")
    check_counts(
        parser, options, "iterations", "dev_only_iterations", "sweep_iterations", "threads"
    )
    check_seeds(parser, options.seeds)
    for name, values in GRIDS.items():
        if getattr(options, name) is None:
            setattr(options, name, list(values))
        elif not options.sweep:
            parser.error(f"--{name} needs --sweep")
    return options


def as_command(given: argparse.Namespace) -> str:
    """Return the command that repeats the results, wherever they are written."""
    words = ["python scripts/reproduce/liu2013.py"]
    words += said(given, {"small": False, **dict.fromkeys(["corpora", "train_sentences"])})
    words += said(given, {"iterations": None, "dev_only_iterations": None})
    if given.sweep:
        # Also where they are the default ones.
        grids = dict.fromkeys(GRIDS)
        words += said(given, {"sweep": False, "sweep_iterations": None, **grids})
    return " ".join([*words, *said(given, {"seeds": [1], "threads": 1, "set": []})])


def as_options(given: argparse.Namespace) -> Options:
    """Return the options of all rows."""
    sentences, iterations = given.train_sentences, given.iterations
    if sentences is None:
        sentences = SMALL_SENTENCES if given.small else TRAIN_SENTENCES
    if iterations is None:
        iterations = 3 if given.small else 15
    dev_only = given.dev_only_iterations
    grids = {STRENGTH: given.strengths, RATE: given.rates}
    grids |= {LAMBDA2: given.lambda2s, FRACTION: given.fractions}
    return Options(
        folder=given.folder.resolve(),
        publish=None if given.publish is None else given.publish.resolve(),
        command=as_command(given),
        train_sentences=sentences,
        iterations=iterations,
        dev_only_iterations=iterations if dev_only is None else dev_only,
        seeds=tuple(given.seeds),
        threads=given.threads,
        grids=grids if given.sweep else {},
        sweep_iterations=given.sweep_iterations,
        extra=(*(SMALL if given.small else ()), *given.set),
    )


def do_rows(given: argparse.Namespace) -> list[str]:
    """Do rows and write the tables; return which have failed."""
    options = as_options(given)
    # Models of the repository are found, and built, there.
    os.chdir(REPOSITORY)
    keys = in_turn(given.rows or sorted(ROWS, key=lambda key: key != BASELINE))
    names = chosen_corpora(given)
    if given.forecast:
        rows = forecasts(keys, names, options)
        forecast.print_hours(rows, MEASURED.relative_to(REPOSITORY))
        return []
    failed = []
    for name in names:
        corpus = Corpus(corpus_overrides(name, options), stand_ins(given))
        # Seed by seed, so that rows can be compared before all seeds are done.
        for seed, key in product(options.seeds, keys):
            print(f"{name}: {key}, seed {seed}", flush=True)
            part = part_of(name, ROWS[key], options)
            why = f"see {place(options.folder / name, key, seed, part) / LOG}"
            try:
                result = do_row(key, corpus, name, seed, options)
            except InputError as error:
                result, why = None, str(error)
            if result is None:
                failed.append(f"{name}/{key}, seed {seed}")
                print(f"  failed; {why}", flush=True)
                continue
            compare_rows(corpus, options.folder / name)
            write_tables(options.folder, options.folder)
            print(
                f"  devtest {result.devtest:.2f}, test {result.test:.2f}, {result.active:,} "
                f"active, {result.reused:,} reused, {result.minutes:.1f} minutes",
                flush=True,
            )
    if options.publish is not None:
        write_tables(options.folder, options.publish)
    print(options.folder / "table.md")
    return failed


def main() -> int:
    given = parse(sys.argv[1:])
    return ended(lambda: do_rows(given))


if __name__ == "__main__":
    sys.exit(main())
