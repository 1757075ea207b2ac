"""Record KenLM's scores of two small models: ``python tests/data/lm/record.py``.

Needs the Python module ``kenlm``. Writes kneser-ney.arpa (estimated from sentences.txt),
pruned.arpa (a third of its longer n-grams taken away, some of which end longer ones; no <unk>;
back-off weights left out where they are 0) and scores.json: for each model a list of
[sentence, bos, eos, log10 probability, unknown words].
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import kenlm

from torchtune_smt.core.textio import atomic_writer, read_lines
from torchtune_smt.lm import estimate, write_arpa

HERE = Path(__file__).parent


def main() -> None:
    """Write the files."""
    rng = random.Random(1)
    sentences = [line.split() for line in read_lines(HERE / "sentences.txt")]
    full, pruned = HERE / "kneser-ney.arpa", HERE / "pruned.arpa"
    write_arpa(full, estimate(sentences, 4, discount_fallback=(0.5, 1.0, 1.5)))
    _prune(full, pruned, rng)
    words = [*sorted({word for sentence in sentences for word in sentence}), "unseen"]
    scores = {}
    for path in (full, pruned):
        model = kenlm.Model(str(path))
        entries = scores.setdefault(path.name, [])
        for number in range(160):
            kind = number % 4
            text = list(rng.choice(sentences))
            if kind == 1:
                text = text[: rng.randrange(len(text))] + rng.choice(sentences)[-3:]
            elif kind == 2:
                text[rng.randrange(len(text))] = rng.choice(words)
            elif kind == 3:
                text = rng.choices(words, k=rng.randrange(8))
            line, bos, eos = " ".join(text), rng.random() < 0.7, rng.random() < 0.7
            unknown = sum(word not in model for word in text)
            entries.append([line, bos, eos, round(model.score(line, bos=bos, eos=eos), 6), unknown])
    with atomic_writer(HERE / "scores.json") as file:
        # One entry a line.
        rows = {name: ",\n".join(map(json.dumps, entries)) for name, entries in scores.items()}
        parts = [f'"{name}": [\n{text}\n]' for name, text in rows.items()]
        file.write("{" + ",\n".join(parts) + "}\n")


def _prune(source: Path, target: Path, rng: random.Random) -> None:
    """Take n-grams away from an ARPA file, but none that is the context of another."""
    order = 4
    by_order: list[list[list[str]]] = [[] for _ in range(order + 1)]
    n = 0
    for line in read_lines(source):
        if line.endswith("-grams:"):
            n = int(line[1])
        elif n and line and not line.startswith("\\"):
            by_order[n].append(line.split("\t"))
    by_order[1] = [fields for fields in by_order[1] if fields[1] != "<unk>"]
    contexts: set[str] = set()
    for n in range(order, 1, -1):
        by_order[n] = [f for f in by_order[n] if f[1] in contexts or rng.random() < 0.67]
        contexts = {fields[1].rsplit(" ", 1)[0] for fields in by_order[n]}
    with atomic_writer(target) as file:
        file.write("\\data\\\n")
        for n in range(1, order + 1):
            file.write(f"ngram {n}={len(by_order[n])}\n")
        for n in range(1, order + 1):
            file.write(f"\n\\{n}-grams:\n")
            for fields in by_order[n]:
                file.write("\t".join(fields[:2] if fields[2:] == ["0"] else fields) + "\n")
        file.write("\n\\end\\\n")


if __name__ == "__main__":
    main()
