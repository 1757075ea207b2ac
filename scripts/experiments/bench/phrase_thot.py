"""The phrase-based decoder beside thot's ``SmtDecoder``, which comes with sil-thot.

    python scripts/experiments/bench/phrase_thot.py [--data ../shared/data/multi30k-de-en]
        [--sentences 300] [--moses ../shared/oracles/moses/phrase-table.dev.gz] [--tune 60]

Both have one phrase table: Moses's, whose counts thot takes (--moses), or one that thot extracts
from the training text (phrases of up to 7 words, 20 of a source side); and trigrams of the same
text: thot's decoder takes counts alone, and interpolates them itself; ours has modified Kneser-Ney.
Weights are thot's own, and Moses's before tuning. With --tune thot's are searched, one after the
other, for BLEU of the first sentences of those that are translated, which is in its favour. Thot
translates monotonically by default, and so does ours here (distortion limit 0), but for the last
line.

Sentences a second are of user CPU time on one thread, when all are translated a second time.
For each of thot's lines there are two ratios: that of our fastest setting with at least its BLEU,
and that of the setting whose BLEU is nearest.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import thot.alignment as ta
import thot.translation as tt
from timing import user

from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.textio import iterate_lines, read_lines
from torchtune_smt.decoders.phrase import PhraseDecoder
from torchtune_smt.grammar.formats import read_phrase_table
from torchtune_smt.kbest.lists import Source
from torchtune_smt.lm import NgramModel
from torchtune_smt.lm.estimate import estimate
from torchtune_smt.metrics.corpus import corpus_bleu
from torchtune_smt.models import Model

ORDER = 3
ITERATIONS = 5
# Pop limits and distortion limits of ours.
OURS = ((1, 0), (2, 0), (5, 0), (10, 0), (50, 0), (500, 0), (500, 6))
# Hypotheses that a stack of thot's keeps.
THOT = (10, 50)
FACTORS = (0.25, 0.5, 2.0, 4.0)
WEIGHTS = {
    "Distortion0_0": 0.3,
    "LM0_0": 0.5,
    "WordPenalty0_0": -1.0,
    "PhrasePenalty0_0": 0.2,
    "UnknownWordPenalty0_0": 1.0,
}
Text = Sequence[list[str]]


def train_thot(folder: Path, source: Text, target: Text, moses: Path | None) -> None:
    """Write alignment models, a phrase table and counts of trigrams, in thot's formats.

    The phrase table is Moses's, where one is given.
    """
    for name, (left, right) in {"invswm": (source, target), "swm": (target, source)}.items():
        model = ta.FastAlignModel()
        for pair in zip(left, right, strict=True):
            model.add_sentence_pair(*pair)
        model.start_training()
        for _ in range(ITERATIONS):
            model.train()
        model.end_training()
        model.print(str(folder / f"tm_{name}"))
        with (folder / f"{name}.links").open("w", encoding="utf-8") as file:
            for pair in zip(left, right, strict=True):
                file.write(giza(*pair, model.get_best_alignment(*pair)[1].to_numpy()))
    if moses is None:
        extract(folder)
    else:
        from_moses(moses, folder / "tm.ttable")
    # Models of lengths and of cuts: those that sil-thot's own trainer begins with.
    for ending, text in (
        ("lambda", "0.7 0.7"),
        ("srcsegmlentable", "Uniform"),
        ("trgcutstable", "0.999"),
        ("trgsegmlentable", "Geometric"),
    ):
        (folder / f"tm.{ending}").write_text(text, encoding="utf-8")
    write_counts(folder / "lm", target)


def extract(folder: Path) -> None:
    """Extract a phrase table."""
    extractor = tt.AlignmentExtractor()
    extractor.open(str(folder / "swm.links"))
    extractor.symmetrize1(str(folder / "invswm.links"), str(folder / "links"), transpose=True)
    extractor.close()
    parameters = tt.PhraseExtractParameters()
    parameters.max_target_phrase_length = 7
    phrases = tt.PhraseModel()
    phrases.build(str(folder / "links"), parameters, pseudo_ml=False)
    phrases.print_phrase_table(str(folder / "tm.ttable"), n=20)
    phrases.clear()


def giza(left: list[str], right: list[str], linked) -> str:
    """Return a sentence pair with its links in GIZA++'s format."""

    def places(of) -> str:
        return "".join(f"{j + 1} " for j in range(len(right)) if of[j])

    alone = [not linked[:, j].any() for j in range(len(right))]
    words = [f"NULL ({{ {places(alone)}}})"]
    words += [f"{word} ({{ {places(linked[i])}}})" for i, word in enumerate(left)]
    return f"# 1\n{' '.join(right)}\n{' '.join(words)}\n"


def write_counts(path: Path, text: Text) -> None:
    """Write how often n-grams and their histories occur; a word's first time is an unknown one."""
    counts: Counter[tuple[str, ...]] = Counter()
    known: set[str] = set()
    tokens = 0
    for sentence in text:
        words = ["<s>", *(word if word in known else "<unk>" for word in sentence), "</s>"]
        known.update(sentence)
        tokens += len(words)
        for n in range(1, ORDER + 1):
            counts.update(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    with path.open("w", encoding="utf-8") as file:
        for gram, count in sorted(counts.items(), key=lambda item: (len(item[0]), item[0])):
            history = tokens if len(gram) == 1 else counts[gram[:-1]]
            file.write(f"{' '.join(gram)} {history} {count}\n")
    weights = " ".join(["0.5"] * 3 * ORDER)
    path.with_name(f"{path.name}.weights").write_text(f"{ORDER} 3 10 {weights}\n", encoding="utf-8")
    with path.with_name(f"{path.name}.wp").open("w", encoding="utf-8") as file:
        file.writelines(" ".join(sentence) + "\n" for sentence in text)


def from_moses(table: Path, path: Path) -> None:
    """Write Moses's phrase table, with counts, as one of thot's."""
    with path.open("w", encoding="utf-8") as file:
        for line in iterate_lines(table):
            source, target, _, _, counts, *_ = line.split(" ||| ")
            of_target, _, together = counts.split()[:3]
            file.write(f"{target} ||| {source} ||| {of_target} {together}\n")


def as_moses(table: Path, path: Path) -> None:
    """Write thot's phrase table (target, source, the target's count, count) as one of Moses's."""
    counts: dict[tuple[str, str], float] = {}
    of_source: Counter[str] = Counter()
    of_target: Counter[str] = Counter()
    for line in iterate_lines(table):
        target, source, numbers = line.split(" ||| ")
        count = float(numbers.split()[1])
        if count > 0:
            counts[source, target] = count
            of_source[source] += count
            of_target[target] += count
    with path.open("w", encoding="utf-8") as file:
        for (source, target), count in sorted(counts.items()):
            scores = f"{count / of_target[target]:.8g} {count / of_source[source]:.8g}"
            file.write(f"{source} ||| {target} ||| {scores}\n")


def load_thot(folder: Path) -> tt.SmtModel:
    """Return thot's model with the settings that sil-thot's own users have by default."""
    model = tt.SmtModel(ta.AlignmentModelType.FAST_ALIGN)
    if not model.load_translation_model(str(folder / "tm")):
        raise RuntimeError("thot does not load its translation model")
    if not model.load_language_model(str(folder / "lm")):
        raise RuntimeError("thot does not load its language model")
    model.non_monotonicity, model.w, model.a, model.e, model.heuristic = 0, 0.4, 10, 2, 6
    model.weights = [1.0] * 7 + [0.0]
    return model


def by_thot(decoder: tt.SmtDecoder, text: Text) -> list[str]:
    """Translate with thot."""
    return [" ".join(decoder.translate(" ".join(words)).target) for words in text]


def search_weights(smt: tt.SmtModel, text: Text, references: Text) -> list[float]:
    """Return weights that are better for some sentences, each changed by factors in turn."""
    decoder = tt.SmtDecoder(smt)
    decoder.s, decoder.is_breadth_first = THOT[0], True

    def bleu(weights: list[float]) -> float:
        smt.weights = weights
        return score(by_thot(decoder, text), references)

    best = list(smt.weights)
    reached = bleu(best)
    for _ in range(2):
        for i in range(len(best)):
            for factor in FACTORS:
                tried = [weight * factor if i == j else weight for j, weight in enumerate(best)]
                if best[i] and (found := bleu(tried)) > reached:
                    best, reached = tried, found
    decoder.clear()
    smt.weights = best
    return best


def score(lines: list[str], references: Text) -> float:
    """Return corpus BLEU."""
    return corpus_bleu(lines, [[" ".join(words)] for words in references]).score


def report(
    name: str, translate: Callable[[Text], list[str]], text: Text, references: Text
) -> tuple[float, float]:
    """Translate, print what came out, and return BLEU and sentences a second."""
    # What is loaded or compiled at first is not counted.
    translate(text)
    begin = user()
    lines = translate(text)
    speed = len(text) / (user() - begin)
    bleu = score(lines, references)
    print(f"{name:42} {speed:8.1f} sentences/s   BLEU {bleu:6.2f}", flush=True)
    return bleu, speed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = Path(__file__).resolve().parents[4] / "shared" / "data" / "multi30k-de-en"
    parser.add_argument("--data", type=Path, default=default, help="train.de(.gz), dev.de, ...")
    parser.add_argument("--sentences", type=int, default=300, help="of dev")
    parser.add_argument("--pairs", type=int, default=29_000, help="of train")
    parser.add_argument("--moses", type=Path, help="a phrase table of Moses's, with counts")
    parser.add_argument("--tune", type=int, default=0, help="sentences that search thot's weights")
    arguments = parser.parse_args()

    def read(name: str, count: int) -> Text:
        path = arguments.data / name
        path = path if path.exists() else path.with_name(f"{name}.gz")
        return [line.split() for line in read_lines(path)[:count]]

    source, target = (read(f"train.{side}", arguments.pairs) for side in ("de", "en"))
    text = read("dev.de", arguments.sentences)
    references = read("dev.en" if (arguments.data / "dev.en").exists() else "dev.en.0", len(text))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train_thot(folder, source, target, arguments.moses)
        path = arguments.moses
        if path is None:
            path = folder / "phrase-table"
            as_moses(folder / "tm.ttable", path)
        table = read_phrase_table(path)
        print(f"{len(table):,} phrase pairs, {len(source):,} sentence pairs, {len(text):,} of dev")
        smt = load_thot(folder)
        if arguments.tune:
            found = search_weights(smt, text[: arguments.tune], references[: arguments.tune])
            print(f"thot's weights: {' '.join(f'{weight:g}' for weight in found)}", flush=True)
        peers = []
        for stack in THOT:
            decoder = tt.SmtDecoder(smt)
            decoder.s, decoder.is_breadth_first = stack, True
            label = f"thot, S = {stack}"
            peers.append((label, *report(label, partial(by_thot, decoder), text, references)))
            decoder.clear()
        smt.clear()
    model = NgramModel.from_ngrams(estimate(target, ORDER, (0.5, 1.0, 1.5)))
    # Each score counts as much as all of two do in Moses.
    scores = {name: 0.8 / len(table.dense_names) for name in table.dense_names}
    snapshot = FrozenWeights.of(WEIGHTS | scores)
    ours = []
    for pop, distortion in OURS:
        mine = PhraseDecoder(
            Model(table, model),
            k=1,
            pop_limit=pop,
            stack_size=pop,
            distortion_limit=distortion,
        )

        def by_us(text: Text, decoder: PhraseDecoder = mine) -> list[str]:
            sources = [Source(i, words) for i, words in enumerate(text)]
            return [kbest.text(0) for kbest in decoder.decode(sources, snapshot)]

        label = f"ours, pop limit {pop}, distortion limit {distortion}"
        ours.append((label, *report(label, by_us, text, references)))
    for label, bleu, speed in peers:
        as_good = [one for one in ours if one[1] >= bleu]
        nearest = min(ours, key=lambda one: abs(one[1] - bleu))
        for what, chosen in (
            ("as good", max(as_good, key=lambda one: one[2], default=None)),
            ("nearest", nearest),
        ):
            if chosen is None:
                print(f"{label}: no setting of ours has its BLEU")
            else:
                print(f"{label}: {chosen[2] / speed:.1f} times as fast, {what}: {chosen[0]}")


if __name__ == "__main__":
    main()
