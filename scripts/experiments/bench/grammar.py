"""Grammars: time to read a rule table, to extract one from a bitext, and to serve a sentence.

Prints seconds of process time, kernels warm, on cdec's grammar and on the training data of
Multi30k, which it looks for in a folder beside the repository.

    python scripts/experiments/bench/grammar.py [--shared ../shared] [--align]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from timing import cpu

from torchtune_smt.core.textio import read_bytes, read_lines
from torchtune_smt.grammar import (
    Grammar,
    extract_grammar,
    load_grammar,
    read_alignments,
    read_grammar,
    save_grammar,
)
from torchtune_smt.grammar.alignment import align

MAX_SPAN = 15


def calibrate() -> float:
    """Return the seconds of ten million squares in Python, to compare machines by."""
    begin = cpu()
    sum(i * i for i in range(10**7))
    return cpu() - begin


def warm_up() -> None:
    """Compile the kernels, or load them from numba's cache."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table"
        table.write_text("[X] ||| a [X,1] ||| [1] b ||| F=1\n", encoding="utf-8")
        serve(read_grammar(table), [["a", "b"]], False)
        grammar = extract_grammar([["a", "b"]] * 3, [["c"]] * 3, [[(0, 0)]] * 3)
        save_grammar(Path(folder) / "grammar", grammar)
        serve(load_grammar(Path(folder) / "grammar"), [["a", "b"]], True)


def serve(
    grammar: Grammar, sentences: Sequence[Sequence[str]], leave_out: bool
) -> tuple[float, float]:
    """Return milliseconds and rules of one sentence's grammar, in the mean."""
    begin = cpu()
    rules = 0
    for i, words in enumerate(sentences):
        ids = grammar.source_words.lookup(words)
        rules += grammar.sentence_grammar(ids, MAX_SPAN, i if leave_out else -1).rule.size
    return 1000 * (cpu() - begin) / len(sentences), rules / len(sentences)


def report_serving(
    name: str, grammar: Grammar, sentences: list[list[str]], leave_out: bool
) -> None:
    milliseconds, rules = serve(grammar, sentences, leave_out)
    print(f"  {name}: {milliseconds:.2f} ms, {rules:.0f} rules a sentence")


def read_text(path: Path) -> list[list[str]]:
    return [line.split() for line in read_lines(path)]


def bench_reading(path: Path, dev: list[list[str]]) -> None:
    begin = cpu()
    data = read_bytes(path)
    unpacked = cpu() - begin
    size = len(data)
    del data
    begin = cpu()
    grammar = read_grammar(path)
    total = cpu() - begin
    print(f"\ncdec's grammar, {len(grammar)} rules, {size / 1e6:.0f} MB of text")
    print(
        f"  read: {total:.2f} s, {unpacked:.2f} s of it unpacking; "
        f"{size / 1e6 / (total - unpacked):.0f} MB/s without"
    )
    report_serving("dev", grammar, dev, False)


def bench_extraction(
    sources: list[list[str]], targets: list[list[str]], alignment: Path, dev: list[list[str]]
) -> None:
    alignments = read_alignments(alignment, sources, targets)
    begin = cpu()
    grammar = extract_grammar(sources, targets, alignments)
    seconds = cpu() - begin
    stored = sum(array.nbytes for array in grammar.arrays.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\nextraction from {len(sources)} sentence pairs: {len(grammar)} rules")
    print(f"  {seconds:.1f} s; {stored / 1e6:.0f} MB; peak of the process {peak:.0f} MiB")
    with tempfile.TemporaryDirectory() as folder:
        save_grammar(Path(folder) / "grammar", grammar)
        del grammar
        begin = cpu()
        grammar = load_grammar(Path(folder) / "grammar")
        print(f"  load: {cpu() - begin:.3f} s")
        some = np.linspace(0, len(sources) - 1, 1000).astype(int)
        report_serving("dev", grammar, dev, False)
        report_serving("train", grammar, [sources[i] for i in some], False)
        # The first ones, since a sentence is left out by its number.
        report_serving("train, leaving one out", grammar, sources[:1000], True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--shared", type=Path, default=Path(__file__).resolve().parents[4] / "shared"
    )
    parser.add_argument("--align", action="store_true", help="time the word aligner, too")
    arguments = parser.parse_args()
    text, cdec = arguments.shared / "data" / "multi30k-de-en", arguments.shared / "oracles" / "cdec"
    if not text.is_dir() or not cdec.is_dir():
        parser.error(f"{text} and {cdec} are needed; name their folder by --shared")

    print(f"calibration: 10^7 squares in Python {calibrate():.2f} s")
    begin = cpu()
    warm_up()
    print(f"kernels: {cpu() - begin:.2f} s to load or compile")
    dev = read_text(text / "dev.de")
    sources, targets = read_text(text / "train.de.gz"), read_text(text / "train.en.gz")
    bench_reading(cdec / "grammar.dev.gz", dev)
    bench_extraction(sources, targets, cdec / "train.grow-diag-final-and.gz", dev)
    if arguments.align:
        for model in ("fast_align", "hmm"):
            begin = cpu()
            align(sources, targets, model=model)
            print(f"\nword alignment by {model}: {cpu() - begin:.1f} s")


if __name__ == "__main__":
    main()
