#!/usr/bin/env python
"""What makes a better system: compounds, two decoders in one list, MBR, mean weights.

    python scripts/experiments/reproduce/better.py [--small] [--rows ROW ...] [--seeds 1 2 3 4 5]
        [--publish docs/results/better]

Each row is a run of train.py on dev; its weights translate dev, devtest and test twice, by the best
hypothesis and by minimum Bayes risk (`ROW_mbr`), and the mean of the weights of all its seeds does,
too (`ROW_mean`). Runs that are done are not done again. Tables are `table.md` and `table.csv`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import forecast
import tables
from command_line import (
    CORPORA,
    add_common,
    add_corpora,
    add_rows,
    check_seeds,
    chosen_corpora,
    ended,
    said,
    stand_ins,
)
from domains import chosen, dataset_of, read_set, write_sets
from green2013_moses import templates
from measured import versions
from published import merged
from runs import LOG, REPOSITORY, START, TRANSLATIONS, WEIGHTS, Run, complete, read_log, said_path
from tables import Group, Result, Section
from tuned import BATCH, Corpus

from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.textio import atomic_writer
from torchtune_smt.core.weights_io import save_weights
from torchtune_smt.metrics import BleuPlusOne
from torchtune_smt.metrics.lists import minimum_risk
from torchtune_smt.models.moses_ini import read_any_weights

SCRIPT: Final = "scripts/experiments/reproduce/better.py"
TITLE: Final = "A better system: what each step adds"
NOTES: Final = (
    "BLEU is sacrebleu's corpus BLEU-4 (lowercased, `tokenize=none`). All rows are tuned on dev: "
    "dense ones by k-best MIRA, others by the default tuner (online, AdaGrad, L1). MBR: of the "
    "list under the same weights the hypothesis with the largest expected BLEU+1. Mean: the mean "
    "of the weights of the seeds. p: of the difference from `phrase` with the same seed "
    "(approximate randomisation), and in parentheses after Holm's correction for the column."
)
SETS: Final = ("dev", "devtest", "test")
SEEDS: Final = (1, 2, 3, 4, 5)
CSV: Final = "table.csv"
MEASURED: Final = REPOSITORY / "docs" / "results" / "better" / CSV
MBR, MEAN = "_mbr", "_mean"
# Hypotheses of a list that MBR compares.
LONGEST: Final = 100
BASELINE: Final = "phrase"
TANAKA: Final = "tanaka"
# Pairs of its bitext that are devtest: it has none.
TANAKA_DEVTEST: Final = 1000
_PHRASES: Final = ("experiment=green2013", "metric=nakov")
_DENSE_PHRASES: Final = ("decoder=phrase", "model=phrase")


class Row(NamedTuple):
    """A row: how it is called, and its overrides of train.py."""

    method: str
    features: str
    overrides: tuple[str, ...]

    @property
    def batch(self) -> bool:
        """Whether it has iterations; else it has epochs."""
        return not {_MIRA[0], _MERT[0]}.isdisjoint(self.overrides)

    @property
    def folders(self) -> tuple[tuple[str, str], ...]:
        """The options that name folders of models, and what is built there."""
        if "decoder=joint" in self.overrides:
            return tuple((f"model.{kind}.folder", kind) for kind in ("hiero", "phrase"))
        phrases = not {_PHRASES[0], _DENSE_PHRASES[0]}.isdisjoint(self.overrides)
        return (("model.folder", "phrase" if phrases else "hiero"),)


def cut_off(templates: str, least: int | str) -> str:
    """Return the override that names templates with a `min_count` for each."""
    return templates.replace("}", f",min_count:{least}}}")


SPLIT: Final = "data.split_compounds=de"
# Each part has the sparse features that it has by itself.
_OWN: Final = (
    "decoder.hiero.templates=[rule_id,source_ngram,rule_shape]",
    "decoder.phrase.templates=[rule_id,alignment,lex_reordering]",
)
# Each part begins with the weights that it has by itself, and what is learnt is pulled to these.
_STARTED: Final = (
    *("decoder=joint", "features=green2013_joint", *_OWN),
    *("init=file", "tuner.towards=start", "optimizer.regularize_dense=true"),
)
_DENSE: Final = ("features=dense",)
_MIRA: Final = ("tuner=mira", *_DENSE)
_MERT: Final = ("tuner=mert", *_DENSE)
_CLASSES: Final = "model.classes=50"
_AVERAGE: Final = "tuner.result=average"
_CLM: Final = "model.class_order=6"
_STARTED_CLM: Final = (
    *(*_STARTED, "model.hiero.classes=50", "model.phrase.classes=50"),
    *("model.hiero.class_order=6", "model.phrase.class_order=6"),
)
_LEXICALIZED: Final = templates("RuleId", "WordAlignment", "LexReordering,lexicalized:true")
_FORMS: Final = {
    "phrase": templates("RuleId,classes:true", "WordAlignment,classes:true", "LexReordering"),
    "hiero": templates("RuleId,classes:true", "SourceNgram,classes:true", "RuleShape"),
}
_KINDS: Final = {
    "phrase": Row("phrases", "+PT+AL+LO", _PHRASES),
    "hiero": Row("Hiero", "sparse", ()),
    "hiero_mira": Row("Hiero, k-best MIRA", "dense", _MIRA),
    "joint": Row("both in one list", "those of both", (*_PHRASES, "decoder=joint", *_OWN)),
    "joint_started": Row("both in one list, from the weights of each", "those of both", _STARTED),
    "phrase_mira": Row("phrases, k-best MIRA", "dense", (*_DENSE_PHRASES, *_MIRA)),
    "hiero_mert": Row("Hiero, MERT", "dense", _MERT),
    "phrase_mert": Row("phrases, MERT", "dense", (*_DENSE_PHRASES, *_MERT)),
    "hiero_dense": Row("Hiero", "dense", _DENSE),
    "phrase_dense": Row("phrases", "dense", (*_DENSE_PHRASES, *_DENSE)),
    "joint_mira": Row("both in one list, k-best MIRA", "dense", ("decoder=joint", *_MIRA)),
    "joint_started_mira": Row(
        "both in one list, from the weights of each, k-best MIRA",
        "dense",
        ("decoder=joint", *_MIRA, "init=file"),
    ),
    # Of words and their classes, and of classes alone.
    "phrase_classes": Row(
        "phrases", "+PT+AL+LO, classes, too", (*_PHRASES, "features=phrase_classes", _CLASSES)
    ),
    "phrase_forms": Row("phrases", "+PT+AL+LO of classes", (*_PHRASES, _FORMS["phrase"], _CLASSES)),
    "hiero_classes": Row("Hiero", "sparse, classes, too", ("features=sparse_classes", _CLASSES)),
    "phrase_lex": Row("phrases", "+PT+AL, LO of phrases", (*_PHRASES, _LEXICALIZED)),
    # As cross-validation within dev has it (within_dev.py).
    "phrase_cut": Row(
        "phrases", "+PT+AL, LO of phrases, cut off", (*_PHRASES, cut_off(_LEXICALIZED, 2))
    ),
    "hiero_forms": Row("Hiero", "sparse, of classes", (_FORMS["hiero"], _CLASSES)),
    # As strong as cross-validation within dev has it (within_dev.py).
    "hiero_l1": Row("Hiero, L1 chosen within dev", "sparse", ("regularizer.strength=0.3",)),
    # The mean of the weights after all epochs, in the place of those of the best one.
    "phrase_average": Row("phrases, mean of epochs", "+PT+AL+LO", (*_PHRASES, _AVERAGE)),
    "hiero_average": Row("Hiero, mean of epochs", "sparse", (_AVERAGE,)),
    # Of whole translations: bigrams of classes, a language model of classes.
    "phrase_ngrams": Row(
        "phrases",
        "+PT+AL+LO, bigrams of classes",
        (*_PHRASES, "features=phrase_ngrams", _CLASSES),
    ),
    "hiero_ngrams": Row(
        "Hiero", "sparse, bigrams of classes", ("features=sparse_ngrams", _CLASSES)
    ),
    "phrase_clm": Row("phrases, class LM", "+PT+AL+LO", (*_PHRASES, _CLASSES, _CLM)),
    "hiero_clm": Row("Hiero, class LM", "sparse", (_CLASSES, _CLM)),
    "joint_started_clm": Row(
        "both in one list, from the weights of each, class LM", "those of both", _STARTED_CLM
    ),
}
# Source words that may lie between a phrase and the next one, in the place of what the model says.
_DISTORTION: Final = {"_far": (-1, "any distortion"), "_near": (6, "distortion up to 6")}
_LIMITED: Final = _KINDS | {
    f"{key}{suffix}": Row(
        f"{row.method}, {said}",
        row.features,
        (*row.overrides, f"decoder{'.phrase' * key.startswith('joint')}.distortion_limit={limit}"),
    )
    for (suffix, (limit, said)), (key, row) in product(_DISTORTION.items(), _KINDS.items())
    if key.removesuffix("_mira").removesuffix("_clm") in ("phrase", "joint_started")
}
ROWS: Final = _LIMITED | {
    f"{key}_de": Row(f"{row.method}, compounds split", row.features, (*row.overrides, SPLIT))
    for key, row in _LIMITED.items()
}

# Elsewhere there are no such compounds, or the model says the same of distortion by itself.
_ONLY: Final = {"_de": ("multi30k",), "_far": ("multi30k", "fisher"), "_near": (TANAKA,)}


def rows_of(name: str) -> list[str]:
    """Return the rows that say something on a corpus."""
    others = [suffix for suffix, corpora in _ONLY.items() if name not in (*corpora, "example")]
    return [key for key in ROWS if not any(f"{suffix}_" in f"{key}_" for suffix in others)]


def overrides_of(name: str, row: Row, given: argparse.Namespace) -> list[str]:
    """Return the overrides of train.py of a row, but for its seed."""
    place = said_path(given.folder / name)
    words = "-de" if SPLIT in row.overrides else ""
    found = [*row.overrides, f"data={name}", "data.test=null", "threads=1"]
    if name == TANAKA:
        found.append(f"data.folders=[{place}/data]")
    found += [f"{option}={place}/model-{kind}{words}" for option, kind in row.folders]
    if given.small:
        found.append(f"tuner.{'iterations' if row.batch else 'epochs'}=2")
    return [*found, *given.set]


def write_tanaka(folder: Path) -> None:
    """Write Tanaka with the last pairs of its bitext as devtest, if it is not there."""
    if folder.is_dir():
        return
    dataset = dataset_of(TANAKA)
    bitext = read_set(dataset, "train")
    end = len(bitext.source) - TANAKA_DEVTEST
    sets = {
        "train": chosen(bitext, range(end)),
        "devtest": chosen(bitext, range(end, len(bitext.source))),
    } | {one: read_set(dataset, one) for one in ("dev", "test")}
    write_sets(folder, dataset, sets)


def place(name: str, key: str, seed: int, given: argparse.Namespace) -> Path:
    """Return the folder of a row."""
    folder: Path = given.folder / name / key / f"seed{seed}"
    return folder


def translate(
    corpus: Corpus, overrides: Sequence[str], folder: Path, ways: Sequence[str] = ("", MBR)
) -> None:
    """Translate all sets with the weights in a folder, by the best hypothesis and by MBR."""
    names = [name for name in SETS if not (folder / f"{name}{ways[-1]}{TRANSLATIONS}").is_file()]
    if not names:
        return
    decoder, weights = corpus.system(overrides, folder)
    for name in names:
        texts: dict[str, list[str]] = {how: [] for how in ways}
        sources = corpus.sources(name)
        for begin in range(0, len(sources), BATCH):
            lists = decoder.decode(sources[begin : begin + BATCH], weights, k=LONGEST)
            for how in ways:
                some = minimum_risk(lists, BleuPlusOne(), 1.0, 1) if how == MBR else lists
                texts[how] += [kbest.text(0) for kbest in some]
        for how, lines in texts.items():
            with atomic_writer(folder / f"{name}{how}{TRANSLATIONS}") as file:
                file.writelines(f"{line}\n" for line in lines)


def judge(
    corpus: Corpus, name: str, key: str, run: Run, given: argparse.Namespace, **described: Any
) -> None:
    """Translate with a row's weights, and keep what comes out: of the best hypothesis, and MBR."""
    row, beside = ROWS[key.removesuffix(MEAN)], place(name, BASELINE, described["seed"], given)
    ways = {"": run.folder} | ({} if given.no_mbr else {MBR: run.folder / "mbr"})
    known = Result.load(ways.get(MBR, run.folder))
    compared = beside == run.folder or not (beside / f"test{TRANSLATIONS}").is_file()
    if known is not None and (compared or known.p_test is not None):
        return
    translate(corpus, run.overrides, run.folder, list(ways))
    for how, folder in ways.items():
        method = f"{row.method}{', mean of weights' * key.endswith(MEAN)}{', MBR' * (how == MBR)}"
        scores = {one: corpus.bleu(one, run.folder / f"{one}{how}{TRANSLATIONS}") for one in SETS}
        result = Result(
            row=f"{key}{how}",
            corpus=name,
            method=method,
            tuning_set="dev",
            features=row.features,
            language_models="",
            training_sentences=0,
            reused=0,
            command=as_command(given),
            overrides=list(run.overrides),
            versions=versions(),
            **(described | scores),
        )
        for one in ("devtest", "test"):
            base, own = (
                at / f"{one}{h}{TRANSLATIONS}" for at, h in ((beside, ""), (run.folder, how))
            )
            if base != own and base.is_file():
                setattr(result, f"p_{one}", corpus.p_value(one, base, own))
        folder.mkdir(exist_ok=True)
        result.save(folder)


def write_start(name: str, key: str, seed: int, given: argparse.Namespace) -> Path | None:
    """Write the weights of both parts by themselves under the names of a joint decoder's.

    Returns path, optional: of the file; None: they are not there.
    """
    weights: dict[str, float] = {}
    for part in ("hiero", "phrase"):
        row = key.replace("joint_started", part)
        if row not in ROWS:
            # Of the two, phrases alone have a limit of distortion.
            for suffix in _DISTORTION:
                row = row.replace(suffix, "")
        path = place(name, row, seed, given) / WEIGHTS
        if not path.is_file():
            return None
        names, values = read_any_weights(path)
        own = names.named(range(len(names)), values)
        weights |= {f"{part}_{feature}": value for feature, value in own.items()}
    path = place(name, key, seed, given).with_suffix(".start.txt.gz")
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_weights(path, FrozenWeights.of(weights))
    return path


def do_row(corpus: Corpus, name: str, key: str, seed: int, given: argparse.Namespace) -> bool:
    """Tune a row, or what is left of it, and try its weights; returns whether it is finished."""
    overrides = [*overrides_of(name, ROWS[key], given), f"seed={seed}"]
    if "init=file" in overrides:
        start = write_start(name, key, seed, given)
        if start is None:
            print("  the rows that it starts from have not been run", flush=True)
            return False
        overrides.append(f"{START}{said_path(start)}")
    run = Run(place(name, key, seed, given), tuple(overrides))
    if not complete(run):
        return False
    log, (begin, end) = read_log(run.folder), run.dates
    judge(
        corpus, name, key, run, given,
        active=log.active, atomic=log.active, iterations=log.iterations, best=log.best,
        minutes=run.minutes, cpu_minutes=run.cpu_minutes, begin=begin, end=end, seed=seed,
    )  # fmt: skip
    return True


def do_mean(corpus: Corpus, name: str, key: str, given: argparse.Namespace) -> None:
    """Try the mean of the weights of all seeds of a row, where they are there."""
    seeds = given.seeds if given.small else SEEDS
    files = [place(name, key, seed, given) / WEIGHTS for seed in seeds]
    if not all(file.is_file() for file in files):
        return
    run = Run(place(name, key + MEAN, 0, given), tuple(overrides_of(name, ROWS[key], given)))
    run.folder.mkdir(parents=True, exist_ok=True)
    mean = FrozenWeights(*read_any_weights(*files))
    save_weights(run.folder / WEIGHTS, mean)
    active, today = int((mean.values != 0).sum()), date.today().isoformat()
    judge(
        corpus, name, key + MEAN, run, given,
        active=active, atomic=active, iterations=0, best=0,
        minutes=0.0, cpu_minutes=0.0, begin=today, end=today, seed=0,
    )  # fmt: skip


def results_of(name: str, given: argparse.Namespace) -> dict[tuple[str, int], Result]:
    """Return the rows of a corpus that are done, in the order of the table."""
    found = {}
    for key in (f"{key}{mean}" for key in ROWS for mean in ("", MEAN)):
        for how in ("", "mbr"):
            for folder in sorted((given.folder / name / key).glob("seed*")):
                if (result := Result.load(folder / how)) is not None:
                    found[result.row, result.seed] = result
    return found


def write_tables(given: argparse.Namespace, output: Path) -> None:
    """Write table.md and table.csv of all rows that are done; published ones stay."""
    lines, sections = [f"# {TITLE}", "", NOTES, ""], []
    order = [f"{key}{mean}" for key in ROWS for mean in ("", MEAN)]
    for name, about in CORPORA.items():
        found = merged(results_of(name, given), output / CSV, Result, name).results.values()
        results = sorted(found, key=lambda r: (order.index(r.row.removesuffix(MBR)), r.row, r.seed))
        if not results:
            continue
        sections.append(Section(name, about, results))
        lines += [f"## {name}", "", about, "", *tables.header(results)]
        lines += [
            "| row | method | features | seed | active | dev | devtest | p | test | p "
            "| CPU minutes |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        columns = [tables.p_column(results, one, lambda _: BASELINE) for one in ("devtest", "test")]
        for r, *p in zip(results, *columns, strict=True):
            cells = [r.row, r.method, r.features, str(r.seed or ""), f"{r.active:,}"]
            cells += [f"{r.dev:.2f}", f"{r.devtest:.2f}", p[0], f"{r.test:.2f}", p[1]]
            lines.append(f"| {' | '.join([*cells, f'{r.cpu_minutes:.1f}'])} |")
        by_row: dict[str, list[Result]] = {}
        for r in results:
            by_row.setdefault(r.row, []).append(r)
        groups = [Group("", some, by_row.get(BASELINE, ())) for some in by_row.values()]
        done = {(r.row, r.seed) for r in results}
        missing = []
        for key in rows_of(name):
            if left := [str(seed) for seed in SEEDS if (key, seed) not in done]:
                missing.append(f"{key} (seed {', '.join(left)})")
        lines += ["", *tables.over_seeds(groups, BASELINE)]
        lines += [f"Missing, as they were not run: {'; '.join(missing) or 'none'}."]
        lines += [""]
    if sections:
        with atomic_writer(output / "table.md") as file:
            file.write("\n".join(lines))
        tables.write_csv(output / CSV, sections)


def forecasts(given: argparse.Namespace) -> Iterator[tuple[str, bool, float | None]]:
    """Yield what `forecast.print_hours` takes."""
    known = forecast.read_measured(MEASURED) if MEASURED.is_file() else {}
    keys = [(name, key) for name in chosen_corpora(given) for key in given.rows or rows_of(name)]
    for (name, key), seed in product(keys, given.seeds):
        rounds = tables.ITERATIONS if ROWS[key].batch else tables.EPOCHS
        done = Result.load(place(name, key, seed, given)) is not None
        yield f"{name}/{key}, seed {seed}", done, forecast.hours(known, name, key, 0, rounds)


def as_command(given: argparse.Namespace) -> str:
    """Return the command that repeats the results, wherever they are written."""
    defaults = {"small": False, "rows": None, "seeds": list(SEEDS), "set": [], "no_mbr": False}
    return " ".join([f"python {SCRIPT}", *said(given, defaults)])


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(
        description="Runs rows that each add something to a system, and writes their table. Rows "
        "that are finished are not run again; the same command goes on after an interruption."
    )
    add_corpora(parser, TANAKA)
    add_rows(parser, list(ROWS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--no-mbr", action="store_true", help="leave `ROW_mbr` out")
    add_common(parser, "better")
    given = parser.parse_args(arguments)
    check_seeds(parser, given.seeds)
    return given


def do_rows(given: argparse.Namespace) -> list[str]:
    """Do rows and write the tables; return which have failed."""
    given.folder = given.folder.resolve()
    publish = None if given.publish is None else given.publish.resolve()
    # Paths below the repository are given to runs as seen from there.
    os.chdir(REPOSITORY)
    if given.forecast:
        forecast.print_hours(forecasts(given), MEASURED.relative_to(REPOSITORY))
        return []
    failed = []
    for name in chosen_corpora(given):
        if name == TANAKA:
            write_tanaka(given.folder / name / "data")
        for key in given.rows or rows_of(name):
            overrides = overrides_of(name, ROWS[key], given)
            corpus = Corpus(overrides, {"dev": "dev", **stand_ins(given)})
            for seed in given.seeds:
                print(f"{name}: {key}, seed {seed}", flush=True)
                if not do_row(corpus, name, key, seed, given):
                    failed.append(f"{name}/{key}, seed {seed}")
                    print(f"  failed; see {place(name, key, seed, given) / LOG}", flush=True)
            do_mean(corpus, name, key, given)
            write_tables(given, given.folder)
    if publish is not None:
        write_tables(given, publish)
    print(given.folder / "table.md")
    return failed


def main() -> int:
    given = parse(sys.argv[1:])
    return ended(lambda: do_rows(given))


if __name__ == "__main__":
    sys.exit(main())
