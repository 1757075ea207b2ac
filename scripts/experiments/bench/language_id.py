#!/usr/bin/env python3
"""The language of short pieces of text from hashed character n-grams: sparse optimizers compared.

Pieces of 5 to 20 characters of the corpora's training sentences have their n-grams of 1 to 5
characters hashed to 10^7 rows of ``nn.EmbeddingBag(10**7, languages, sparse=True)``. Each method
has a process of its own for each setting; the setting is chosen on other pieces: of those within a
standard error of the best accuracy, the one with the fewest rows. Told are the accuracy on a third
set, rows that are not 0, CPU seconds of training, and the memory that it took besides the data.

    python scripts/experiments/bench/language_id.py [--data FOLDER [--small] [--methods NAME ...]
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from timing import cpu

# Corpora of which a file of each language is read, and the language.
FILES = {
    "multi30k-de-en/train.de.gz": "de",
    "multi30k-de-en/train.en.gz": "en",
    "fisher-es-en/train.es.gz": "es",
    "fisher-es-en/train.en.gz": "en",
    "tanaka-ja-en/train.ja.gz": "ja",
    "tanaka-ja-en/train.en.gz": "en",
}
BATCH = 100
# Learning rates and strengths that are tried.
GRIDS = {
    "AdaGrad, L1": [(0.1, s) for s in (1e-5, 3e-5, 1e-4, 3e-4)],
    "FTRL, L1": [(0.1, s) for s in (0.003, 0.01, 0.03, 0.1)],
    "AdaGrad, group lasso": [(0.1, s) for s in (1e-5, 3e-5, 1e-4, 3e-4)],
    "torch.optim.Adagrad": [(lr, 0.0) for lr in (0.03, 0.1, 0.3)],
    "torch.optim.SparseAdam": [(lr, 0.0) for lr in (0.001, 0.003, 0.01)],
    "SGDClassifier, l1": [(0.0, s) for s in (1e-6, 1e-5, 1e-4)],
    "vowpalwabbit, l1": [(0.5, s) for s in (1e-7, 1e-6, 1e-5)],
}


def pieces_of(data: Path, count: int, seed: int) -> tuple[list[str], list[int], list[str]]:
    """Return so many pieces of each language, their labels, and the languages."""
    generator = np.random.default_rng(seed)
    texts: dict[str, list[str]] = {}
    for name, language in FILES.items():
        if (data / name).is_file():
            with gzip.open(data / name, "rt", encoding="utf-8") as file:
                texts.setdefault(language, []).extend(line.strip() for line in file)
    languages = sorted(texts)
    pieces, labels = [], []
    for label, language in enumerate(languages):
        lines = [line for line in texts[language] if len(line) >= 5]
        for number in generator.integers(len(lines), size=count):
            line, length = lines[number], int(generator.integers(5, 21))
            begin = int(generator.integers(max(1, len(line) - length + 1)))
            pieces.append(line[begin : begin + length])
            labels.append(label)
    order = generator.permutation(len(pieces))
    return [pieces[i] for i in order], [labels[i] for i in order], languages


def hashed(pieces: list[str], dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes of all n-grams (int64), piece by piece, and where those of each begin."""
    text = np.frombuffer("".join(pieces).encode("utf-32-le"), np.uint32).astype(np.uint64)
    lengths = np.array([len(piece) for piece in pieces])
    owner = np.repeat(np.arange(lengths.size), lengths)
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(text.size)
    found, of = [], []
    state = np.zeros(text.size, np.uint64)
    for n in range(1, 6):
        size = text.size - n + 1
        state = (state[:size] ^ text[n - 1 :]) * np.uint64(0x9E3779B97F4A7C15)
        state ^= state >> np.uint64(29)
        inside = left[:size] >= n
        found.append((state[inside] % np.uint64(dimension)).astype(np.int64))
        of.append(owner[:size][inside])
    owners = np.concatenate(of)
    order = np.argsort(owners, kind="stable")
    begin = np.searchsorted(owners[order], np.arange(lengths.size + 1))
    return np.concatenate(found)[order], begin


def with_torch(method: str, lr: float, strength: float, train, tests, dimension: int, passes: int):
    """Train an embedding bag; return its scores of other pieces, and which rows are not 0."""
    import torch
    from torch import nn

    from torchtune_smt.optim import FTRL, AdaGrad
    from torchtune_smt.regularizers import L1, GroupLasso

    (ids, begin), labels, classes = train
    model = nn.EmbeddingBag(dimension, classes, mode="sum", sparse=True, include_last_offset=True)
    nn.init.zeros_(model.weight)
    optimizer = {
        "AdaGrad, L1": lambda p: AdaGrad(p, lr=lr, regularizer=L1(strength)),
        "FTRL, L1": lambda p: FTRL(p, lr=lr, regularizer=L1(strength), beta=1 / BATCH),
        "AdaGrad, group lasso": lambda p: AdaGrad(
            p, lr=lr, regularizer=GroupLasso(strength), rowwise=True
        ),
        "torch.optim.Adagrad": lambda p: torch.optim.Adagrad(p, lr=lr),
        "torch.optim.SparseAdam": lambda p: torch.optim.SparseAdam(p, lr=lr),
    }[method](model.parameters())
    if hasattr(optimizer, "attach"):
        optimizer.attach(model)
    ids, begin, labels = map(torch.from_numpy, (ids, begin, labels))
    generator = torch.Generator().manual_seed(1)
    start = cpu()
    for _ in range(passes):
        for chosen in torch.randperm(len(labels), generator=generator).split(BATCH):
            lengths = begin[chosen + 1] - begin[chosen]
            ends = lengths.cumsum(0)
            offsets = torch.cat([ends.new_zeros(1), ends])
            shift = torch.repeat_interleave(begin[chosen] - offsets[:-1], lengths)
            loss = nn.functional.cross_entropy(
                model(ids[torch.arange(len(shift)) + shift], offsets), labels[chosen]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    seconds = cpu() - start
    with torch.no_grad():
        scores = [model(*map(torch.from_numpy, test)).numpy() for test in tests]
        rows = int((model.weight != 0).any(1).sum())
    return scores, rows, seconds


def with_sklearn(method: str, lr: float, strength: float, train, tests, dimension, passes: int):
    """As `with_torch`."""
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import SGDClassifier

    def matrix(ids, begin):
        ones = np.ones(ids.size)
        return csr_matrix((ones, ids, begin), (begin.size - 1, dimension))

    rows, labels, _ = train
    start = cpu()
    model = SGDClassifier(
        loss="log_loss", penalty="l1", alpha=strength, max_iter=passes, tol=None, random_state=1
    ).fit(matrix(*rows), labels)
    seconds = cpu() - start
    active = int((model.coef_ != 0).any(0).sum())
    scores = [model.decision_function(matrix(*test)) for test in tests]
    # Of two languages there is one score, that of the second.
    scores = [s if s.ndim == 2 else np.stack([-s, s], 1) for s in scores]
    return scores, active, seconds


def with_vowpalwabbit(method: str, lr: float, strength: float, train, tests, dimension, passes):
    """As `with_torch`."""
    from vowpalwabbit import Workspace

    (ids, begin), labels, classes = train
    bits = int(np.ceil(np.log2(dimension * classes)))
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "model"
        options = f"--oaa {classes} --loss_function logistic -b {bits} -l {lr} --l1 {strength}"
        model = Workspace(f"{options} --quiet --readable_model {told}")

        def line(ids, begin, i):
            return "| " + " ".join(map(str, ids[begin[i] : begin[i + 1]].tolist()))

        start = cpu()
        for _ in range(passes):
            for i in np.random.default_rng(1).permutation(labels.size):
                model.learn(f"{labels[i] + 1} {line(ids, begin, i)}")
        seconds = cpu() - start
        eye = np.eye(classes + 1)[:, 1:]
        scores = [
            np.array([eye[model.predict(line(*test, i))] for i in range(test[1].size - 1)])
            for test in tests
        ]
        model.finish()
        text = told.read_text()
    # It takes the penalty off a weight when it is read, not where it lies.
    (penalty,) = re.findall(r"^l1_state (\S+)", text, re.MULTILINE)
    weights = re.findall(r"^(\d+):(\S+)", text, re.MULTILINE)
    rows = {int(number) // classes for number, w in weights if abs(float(w)) > float(penalty)}
    return scores, len(rows), seconds


def one(folder: Path, method: str, lr: float, strength: float, dimension: int, passes: int) -> None:
    """Print what a method does with a setting."""
    data = np.load(folder / "pieces.npz")
    sets = [(data[f"ids{s}"], data[f"begin{s}"]) for s in range(3)]
    labels = [data[f"labels{s}"] for s in range(3)]
    train = (sets[0], labels[0], int(data["classes"]))
    trainers = {"SGDClassifier, l1": with_sklearn, "vowpalwabbit, l1": with_vowpalwabbit}
    trainer = trainers.get(method, with_torch)
    if trainer is with_torch:
        import torch

        torch.set_num_threads(1)
        import torchtune_smt.optim  # noqa: F401
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scores, rows, seconds = trainer(method, lr, strength, train, sets[1:], dimension, passes)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pairs = zip(scores, labels[1:], strict=True)
    dev, test = (float((found.argmax(1) == right).mean()) for found, right in pairs)
    megabytes = (after - before) / 1e3
    told = {"dev": dev, "test": test, "rows": rows, "seconds": seconds, "MB": megabytes}
    print(json.dumps({**told, "lr": lr, "strength": strength}))


def main() -> int:
    """Try all methods, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="10^4 rows, few pieces, one setting")
    parser.add_argument("--data", type=Path, help="folder of the corpora")
    parser.add_argument("--pieces", type=int, default=20_000, help="of each language")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--methods", nargs="*", default=[*GRIDS], choices=[*GRIDS])
    parser.add_argument("--one", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        folder, method, *numbers = options.one
        one(Path(folder), method, *map(float, numbers[:2]), *map(int, numbers[2:]))
        return 0
    if options.data is None:
        parser.error("give the folder of the corpora with --data")
    dimension, pieces = (10**4, 300) if options.small else (10**7, options.pieces)
    with tempfile.TemporaryDirectory() as folder:
        arrays: dict[str, np.ndarray] = {}
        for s, count in enumerate((pieces, pieces // 10, pieces // 10)):
            texts, labels, languages = pieces_of(options.data, count, s)
            arrays[f"ids{s}"], arrays[f"begin{s}"] = hashed(texts, dimension)
            arrays[f"labels{s}"] = np.array(labels)
        np.savez(Path(folder) / "pieces.npz", classes=len(languages), **arrays)
        occurring = np.unique(arrays["ids0"]).size
        print(
            f"{pieces * len(languages):,} pieces of {', '.join(languages)}; {occurring:,} of "
            f"{dimension:,} rows occur"
        )
        print("| method | accuracy | rows | CPU s | MB | lr | strength |")
        print("|---|---|---|---|---|---|---|")
        for method in options.methods:
            grid = GRIDS[method][:1] if options.small else GRIDS[method]
            found = []
            for lr, strength in grid:
                numbers = [str(x) for x in (lr, strength, dimension, options.passes)]
                command = [sys.executable, __file__, "--one", folder, method, *numbers]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if "ModuleNotFoundError" in done.stderr:
                    break
                if done.returncode:
                    print(done.stderr, file=sys.stderr)
                    return 1
                found.append(json.loads(done.stdout))
            if not found:
                print(f"| {method} | not installed |")
                continue
            best = max(run["dev"] for run in found)
            error = np.sqrt(best * (1 - best) / arrays["labels1"].size)
            run = min((r for r in found if r["dev"] >= best - error), key=lambda r: r["rows"])
            print(
                f"| {method} | {100 * run['test']:.2f}% | {run['rows']:,} | {run['seconds']:.1f} | "
                f"{run['MB']:.0f} | {run['lr']:g} | {run['strength']:g} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
