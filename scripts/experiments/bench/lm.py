"""Language model: load time, query speed, estimation time, beside KenLM's.

    python scripts/experiments/bench/lm.py [--shared ../shared]

Needs the corpora and oracles beside the repository; KenLM's queries are timed where its Python
module is installed. lmplz is not run: its recorded user CPU time (0.4 s) is scaled by a
calibration, the sum of ten million squares in pure Python, which took 0.33 to 0.50 s on the
machine where it was recorded. All times are CPU seconds of this process; compilation is not in
them.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from timing import in_turn, peer

from torchtune_smt.core.archive import cache_path
from torchtune_smt.core.textio import read_lines
from torchtune_smt.lm import NgramModel, estimate, read_arpa, write_arpa
from torchtune_smt.lm.kernels import score_sentences

LMPLZ_SECONDS = 0.4
LMPLZ_CALIBRATION = (0.33, 0.50)


def median(work: Callable[[], object], repeats: int = 5) -> float:
    """Return the median CPU time of some repeats, in seconds; one run before warms up."""
    return in_turn({"": work}, repeats)[""].median


def load_times(arpa: Path) -> NgramModel:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / arpa.name
        shutil.copyfile(arpa, path)
        fresh = median(lambda: NgramModel.load(path, cache=False), 3)
        model = NgramModel.load(path)
        cached = median(lambda: NgramModel.load(path))
        megabytes = cache_path(path).stat().st_size / 1e6
        ngrams = model.tables.nodes.size - 1
        print(f"{path.name}: {ngrams} n-grams of order 1 to {model.order}")
        rate = ngrams / fresh / 1e6
        print(f"  load from ARPA (gz)    {fresh * 1e3:9.1f} ms   {rate:.2f} M n-grams/s")
        print(f"  load from cache        {cached * 1e3:9.1f} ms   {megabytes:.0f} MB")
        print(f"  ratio ARPA / cache     {fresh / cached:9.0f}")
        return NgramModel.load(path, cache=False)


def queries(model: NgramModel, arpa: Path, lines: list[str]) -> None:
    sentences = [line.split() for line in lines]
    ids = model.word_ids([word for words in sentences for word in words])
    begin = np.cumsum([0] + [len(words) for words in sentences], dtype=np.int64)
    total = np.empty(len(sentences))
    count = ids.size + len(sentences)

    def run(words: np.ndarray) -> float:
        args = (*model.tables, words, begin, model.begin_state, model.end_word, total)
        return count / median(lambda: score_sentences(*args)) / 1e6

    in_order = run(ids)
    shuffled = run(np.random.default_rng(0).permutation(ids))
    print(f"queries, {count} words (million/s on one core)")
    print(f"  running text           {in_order:9.2f}")
    print(f"  words shuffled         {shuffled:9.2f}")
    strings = count / median(lambda: model.score_all([line.split() for line in lines]), 3) / 1e6
    print(f"  from strings           {strings:9.2f}   NgramModel.score_all, splitting included")
    kenlm = peer("kenlm")
    if kenlm is None:
        return
    oracle = kenlm.Model(str(arpa))
    theirs = count / median(lambda: [oracle.score(line) for line in lines], 3) / 1e6
    print(f"  KenLM (Python module)  {theirs:9.2f}   from strings, splitting included")
    print(f"  ratio to KenLM         {strings / theirs:9.2f}   both from strings")
    print(f"  ratio to KenLM         {in_order / theirs:9.2f}   own from ids, as in a decoder")


def estimation(train: list[str]) -> None:
    sentences = [line.split() for line in train]
    own = median(lambda: estimate(sentences), 3)
    ngrams = estimate(sentences)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "own.arpa"
        written = median(lambda: write_arpa(path, ngrams), 3)
        read_arpa(path)
    calibration = median(lambda: sum(i * i for i in range(10**7)), 3)
    low, high = (LMPLZ_SECONDS * calibration / seconds for seconds in reversed(LMPLZ_CALIBRATION))
    print(f"estimation, order 5, {len(sentences)} sentences")
    print(f"  estimate               {own:9.2f} s")
    print(f"  write the ARPA         {written:9.2f} s")
    print(f"  lmplz, scaled          {low:.2f} to {high:.2f} s (calibration {calibration:.2f} s)")
    print(f"  ratio lmplz / own      {low / (own + written):.2f} to {high / (own + written):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="benchmark of the language model")
    default = Path(__file__).resolve().parents[4] / "shared"
    parser.add_argument("--shared", type=Path, default=default)
    shared = parser.parse_args().shared
    arpa = shared / "oracles" / "lm" / "multi30k.en.5gram.arpa.gz"
    train = read_lines(shared / "data" / "multi30k-de-en" / "train.en.gz")
    queries(load_times(arpa), arpa, train)
    estimation(train)


if __name__ == "__main__":
    main()
