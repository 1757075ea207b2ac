"""Weights of a speech recogniser's lists: exact lines beside a grid and Optuna, in one run.

    python scripts/experiments/bench/lists_peers.py [--lists FOLDER] [--small]

--lists has folders of ESPnet's form with a `text` each: `dev_clean` and `dev_other`, to tune on,
and `test_clean`; or these packed with tar and xz. The grid is that of icefall, 24 × 24 scales of
two scores where the third has 1, in blocks of NumPy's; Optuna (`pip install optuna`; TPE, 200
trials) searches the same square. Each has the lists with their errors in memory. Prints word error
rates, seconds of the processor in turn, and ratios. --small: on lists that are made up, to see that
it runs.
"""

from __future__ import annotations

import argparse
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from timing import in_turn, peer

from torchtune_smt import KBestLists, measured
from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.evaluation.tuned import references_of_files, with_references
from torchtune_smt.kbest.forms import read_lists
from torchtune_smt.metrics import WordErrorRate
from torchtune_smt.tuners.lines import Candidates, candidates_of
from torchtune_smt.tuners.mert import Auto

LISTS = Path(__file__).resolve().parents[4] / "shared/data/librispeech-nbest"
SCALES = np.array(
    "0.01 0.05 0.08 0.1 0.3 0.5 0.6 0.7 0.9 1.0 1.1 1.2 "
    "1.3 1.5 1.7 1.9 2.0 2.1 2.2 2.3 2.5 3.0 4.0 5.0".split(),
    np.float64,
)
# Points of the grid whose scores lie in memory at a time.
BLOCK = 24
TRIALS = 200


def read(folder: Path) -> Iterator[tuple[str, KBestLists]]:
    """Yield sets of lists with their errors."""
    names = Vocabulary()
    for name in ("dev_clean", "dev_other", "test_clean"):
        stored = read_lists(folder / name, features=names)
        found = references_of_files([str(folder / name / "text")], stored)
        lists, references = with_references(stored, found, name, count=True)
        yield name, measured(lists, references, WordErrorRate())


def made(seed: int) -> KBestLists:
    """Return lists whose third score alone says little of errors."""
    draw = np.random.default_rng(seed)
    errors = draw.integers(0, 4, (60, 5))
    texts = [[" ".join(["a"] * (4 - e) + ["b"] * e) for e in row] for row in errors.tolist()]
    scores = -errors[:, :, None] * [1.0, 0.5, 0.1] + draw.normal(size=(60, 5, 3))
    features = [
        [dict(zip(("decoder", "ctc", "lm"), one, strict=True)) for one in row]
        for row in scores.tolist()
    ]
    return measured(
        KBestLists.of_strings(texts, features), [[["a"] * 4]] * len(texts), WordErrorRate()
    )


def errors_of(some: Candidates, points: Float64) -> Int64:
    """Return the errors at some points, float64 [points, 3]."""
    score = points @ some.features
    lengths = np.diff(some.begin)
    if (lengths == lengths[0]).all():
        best = score.reshape(len(points), -1, lengths[0]).argmax(axis=2) + some.begin[:-1]
    else:
        parts = np.split(score, some.begin[1:-1], axis=1)
        best = np.stack([part.argmax(axis=1) for part in parts], axis=1) + some.begin[:-1]
    errors: Int64 = some.statistics[:, 0][best].sum(axis=1).astype(np.int64)
    return errors


def grid(some: Candidates) -> Float64:
    """Return the best point of the grid."""
    a, b = np.meshgrid(SCALES, SCALES, indexing="ij")
    points = np.column_stack([np.ones(a.size), a.ravel(), b.ravel()])
    blocks = np.split(points, points.shape[0] // BLOCK)
    best: Float64 = points[np.concatenate([errors_of(some, block) for block in blocks]).argmin()]
    return best


def optuna_of(optuna: Any, trials: int, some: Candidates) -> Float64:
    """Return the best point that Optuna finds."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial: Any) -> int:
        own = [trial.suggest_float(name, 0.01, 5.0, log=True) for name in ("a", "b")]
        return int(errors_of(some, np.array([[1.0, *own]]))[0])

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=trials)
    return np.array([1.0, study.best_params["a"], study.best_params["b"]])


def lines(lists: KBestLists) -> Float64:
    """Return the weights that `tuner=auto` finds, from the lists' own."""
    return Auto().solve(lists, np.array([0.6, 0.4, 0.6]), (0,)).weights


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lists", type=Path, default=LISTS)
    parser.add_argument("--small", action="store_true", help="to see that it runs")
    options = parser.parse_args()
    if options.small:
        sets = {"dev": made(0), "test_clean": made(1)}
    else:
        with tempfile.TemporaryDirectory() as folder:
            packed = sorted(options.lists.glob("*.tar.xz"))
            for one in packed:
                with tarfile.open(one) as file:
                    file.extractall(folder, filter="data")
            sets = dict(read(Path(folder) if packed else options.lists))
    optuna, said = peer("optuna"), []
    test = candidates_of(sets["test_clean"])[1]
    for name, lists in sets.items():
        if name == "test_clean":
            continue
        some = candidates_of(lists)[1]
        works: dict[str, Callable[[], Float64]] = {
            "lines": partial(lines, lists),
            "grid": partial(grid, some),
        }
        if optuna is not None:
            trials = 10 if options.small else TRIALS
            works["optuna"] = partial(optuna_of, optuna, trials, some)
        times = in_turn(works, 1 if options.small else 3)
        rates = {
            what: [
                -100 * float(where.score(where.statistics[where.chosen(weights)].sum(axis=0)))
                for where in (some, test)
            ]
            for what, weights in ((what, work()) for what, work in works.items())
        }
        for what, (own, other) in rates.items():
            ratio = times["lines"].median / times[what].median
            print(
                f"{name}, {what}: {own:.3f}%, on test_clean {other:.3f}%; "
                f"{times[what].said(1)} s, of which lines take {ratio:.2f} times as long"
            )
        said.append(
            f"{name}: "
            + "; ".join(
                f"{what} {rates[what][0]:.3f}% in {times[what].median:.2f} s" for what in works
            )
        )
    print(f"figure lists_peers: {'. '.join(said)}")


if __name__ == "__main__":
    main()
