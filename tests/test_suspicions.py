"""Data that cannot be right is told apart from data that is."""

import random
import re
import tracemalloc
from dataclasses import replace

import pytest
from commands import example, run_command
from short_example import WHOLE
from small_lists import put

from torchtune_smt.data.bitext import Corpus, find_files, read_corpus
from torchtune_smt.data.suspicions import corpus_suspicions, output_suspicions

SETS = ("train", "dev", "test")


def read_sets(name, shared=None):
    """Return the sets of a corpus."""
    if name == "example":
        whole = replace(example(), folders=str(WHOLE))
        return {split: whole.require(split, training=split == "train") for split in SETS}
    sets, folder = {}, shared / "data" / name
    for split in SETS:
        lengths = (80, 9.0) if split == "train" else None
        files = find_files(folder, split, *name[-5:].split("-"))
        sets[split] = read_corpus(*files, empty="skip", lengths=lengths)
    return sets


CORPORA = ["multi30k-de-en", "fisher-es-en", "tanaka-ja-en"]


@pytest.fixture(scope="module", params=["example", *CORPORA])
def sets(request):
    example = request.param == "example"
    return read_sets(request.param, None if example else request.getfixturevalue("shared"))


def test_nothing_is_said_of_good_data(sets):
    assert corpus_suspicions(sets) == []
    without = {name: corpus for name, corpus in sets.items() if name != "train"}
    source = {word for line in sets["train"].source for word in line}
    target = {word for line in sets["train"].targets for word in line}
    assert corpus_suspicions(without, (source, target)) == []


def shuffled(corpus):
    references = list(corpus.references)
    random.Random(1).shuffle(references)
    return replace(corpus, references=references)


def swapped(corpus):
    return replace(corpus, source=corpus.targets, references=[[line] for line in corpus.source])


def cased(line):
    return [line[0].capitalize(), *line[1:]]


def attached(line):
    return re.sub(r" ([.,!?。、])(?= |$)", r"\1", " ".join(line)).split()


def pieces(line):
    return [piece for w in line for piece in ([w[:3] + "@@", w[3:]] if len(w) > 3 else [w])]


def targets(change, corpus):
    return replace(corpus, references=[[change(line) for line in r] for r in corpus.references])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shuffled, "have next to nothing to do with each other"),
        (swapped, "are the files in the wrong order?"),
        (lambda corpus: targets(cased, corpus), "differ in case"),
        (lambda corpus: targets(attached, corpus), "are not tokenised alike"),
        (lambda corpus: targets(pieces, corpus), "pieces of words (@@ or ▁) are in"),
    ],
)
def test_a_set_that_cannot_be_right(sets, change, message):
    found = corpus_suspicions({**sets, "dev": change(sets["dev"])})
    assert found
    assert all(message in sentence and "dev" in sentence for sentence in found)


@pytest.mark.parametrize(
    ("side", "entity"), [*enumerate(["&apos;", "& apos ;"]), (1, "& # 39 ;"), (0, "&nbsp;")]
)
def test_entities_on_one_side_only(side, entity):
    texts = [[[word, *mark.split(), word] for word in "abcdefgh"] for mark in ("'", entity)]
    source, target = texts if side else reversed(texts)
    corpus = Corpus(source, [[line] for line in target], list(range(1, 9)))
    (found,) = corpus_suspicions({"train": corpus})
    name = ("source", "target")[side]
    assert "&apos;" in found and f"in the {name} of train, and" in found
    # What one language has no marks of says nothing.
    for text in texts:
        corpus = Corpus([["a", "b"]] * 8, [[line] for line in text], list(range(1, 9)))
        assert not corpus_suspicions({"train": corpus})
    found = output_suspicions("out", texts[0], [[line] for line in texts[1]])
    assert any("&apos;" in line for line in found)


@pytest.mark.parametrize("side", range(2))
def test_text_is_escaped_as_the_model_is(side):
    """A model of Moses's has entities where the text that is decoded has the characters."""
    texts = [[[word, mark, word] for word in "abcdefgh"] for mark in ("'", "&apos;")]
    letters = {*"abcdefgh", "'"}
    words = [letters, letters]
    words[side] = {*"abcdefgh", "&apos;", "&quot;"}
    for text, wrong in zip(texts, (1, 0), strict=True):
        corpus = Corpus(text, [[line] for line in text], list(range(1, 9)))
        found = corpus_suspicions({"dev": corpus}, tuple(words))
        odd = [line for line in found if "model's" in line]
        assert len(odd) == wrong
        assert not wrong or f"the model's {('source', 'target')[side]} words have ent" in odd[0]


def test_a_line_lost_in_the_middle(shared):
    sets = read_sets("multi30k-de-en", shared)
    dev = sets["dev"]
    references = dev.references[:500] + dev.references[501:] + dev.references[500:501]
    (found,) = corpus_suspicions({**sets, "dev": replace(dev, references=references)})
    assert "of dev have next to nothing to do with each other" in found
    assert "in lines 508 to 760" in found


def test_lines_are_those_of_the_files():
    """Other lines were left out before these."""
    rng = random.Random(1)
    rows = [[f"{rng.randrange(300)}" for _ in range(5 + i % 7)] for i in range(60)]
    references = [[row, other] for row, other in zip(rows, rows[7:] + rows[:7], strict=True)]
    dev = Corpus(rows, references, list(range(101, 161)))
    (found,) = corpus_suspicions({"dev": dev})
    assert found.startswith("lines 101 to 160 of reference 1 of dev have hardly more words")


def test_words_that_nobody_told_apart(shared):
    sets = read_sets("tanaka-ja-en", shared)
    for name, corpus in sets.items():
        sets[name] = replace(corpus, source=[["".join(line)] for line in corpus.source])
    found = corpus_suspicions(sets)
    for name in sets:
        assert any(f"the source of {name} has" in s and "split into words" in s for s in found)


def test_sets_that_share_sentences(sets):
    dev, test = sets["dev"], sets["test"]
    (found,) = corpus_suspicions({**sets, "test": dev})
    assert f"{len(dev):,} of {len(dev):,} sentences of test are in dev" in found
    first = [[row[0]] for row in dev.references]
    more = sets["train"].followed_by(replace(dev, references=first))
    (found,) = corpus_suspicions({**sets, "train": more})
    assert f"{len(dev):,} of {len(dev):,} sentences of dev are in train" in found
    # A few common sentences are no fault: one in ten here.
    part = len(test) // 10
    mixed = replace(
        test,
        source=dev.source[:part] + test.source[part:],
        references=dev.references[:part] + test.references[part:],
    )
    assert corpus_suspicions({**sets, "test": mixed}) == []


def test_of_a_large_text_only_shared_pairs_are_held():
    words = [[f"w{i}"] for i in range(20_000)]
    train = Corpus(words, [[line] for line in words], list(range(1, len(words) + 1)))
    dev = Corpus(words[:9], train.references[:9], train.lines[:9])
    tracemalloc.start()
    assert "9 of 9" in corpus_suspicions({"train": train, "dev": dev}, (set(), set()))[0]
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def hypotheses(corpus):
    """Return what a decoder might say: every sixth word is lost, every tenth another one."""
    rng = random.Random(2)
    words = [word for line in corpus.targets for word in line]
    return [
        [rng.choice(words) if rng.random() < 0.1 else w for w in line if rng.random() < 5 / 6]
        for line in corpus.targets
    ]


def test_translations_beside_their_references(sets):
    dev = sets["dev"]
    lines = [line or ["x"] for line in hypotheses(dev)]
    assert output_suspicions("out", lines, dev.references) == []
    for change, message, options in (
        (cased, "out and the references differ in case", {"case": False}),
        (attached, "out and the references are not tokenised alike", {"tokens": False}),
        (pieces, "pieces of words (@@ or ▁) are in out, and none in the references", {}),
    ):
        changed = [change(line) for line in lines]
        (found,) = output_suspicions("out", changed, dev.references)
        assert message in found
        if options:
            assert output_suspicions("out", changed, dev.references, **options) == []
    for wrong in (dev.source, lines[1:] + lines[:1]):
        (found,) = output_suspicions("out", wrong, dev.references)
        assert "of out have hardly more words in common" in found


def test_warnings_of_stored_lists(whole_place):
    tmp_path = whole_place
    dev = read_sets("example")["dev"]
    for change, count in ((list, 0), (cased, 1)):
        rows = [
            f"{i} ||| {' '.join(change(line))} ||| a= {h} b= {h * h} ||| 0\n"
            for i, row in enumerate(dev.references)
            for h, line in enumerate(row)
        ]
        # An empty one, which is the first.
        rows.insert(0, "0 |||  ||| a= 9 b= 9 ||| 0\n")
        put(tmp_path, {"lists": "".join(rows)})
        options = ["decoder=kbest_files", "decoder.dev=lists", "init=zero", "data.test=null"]
        options += ["tuner.epochs=1", "metric=nakov", f"hydra.run.dir=run{count}"]
        outcome = run_command("train", *options, folder=tmp_path).check()
        assert outcome.err.count("warning: decoder.dev and the references differ in case") == count
        assert outcome.err.count("warning") == count


def test_warnings_of_evaluate(tmp_path):
    lines = read_sets("example")["dev"].targets
    for name, change in (("good", list), ("cased", cased)):
        put(tmp_path, {name: [" ".join(change(line)) for line in lines]})
    arguments = ["systems=[good,cased]", "references=good", "metrics=[bleu]"]
    outcome = run_command("evaluate", *arguments, folder=tmp_path).check()
    assert outcome.err.count("warning") == 1
    assert "warning: cased and the references differ in case" in outcome.err
    outcome = run_command("evaluate", *arguments, "lowercase=true", folder=tmp_path).check()
    assert outcome.err.count("warning") == 0
