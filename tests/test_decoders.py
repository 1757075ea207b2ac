"""What holds for both decoders: threads, forks, weights, derivations, unknown words."""

import math
from collections import Counter, namedtuple
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from commands import run_command
from hiero_reference import DENSE, GAPS, Rule, features_of, to_grammar
from phrase_reference import NAMES, OWN, Phrase, reordering_names, to_table

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Uncovered
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.decoders.phrase import PhraseDecoder
from torchtune_smt.features import LexReordering, RuleId, RuleShape, SourceNgram, WordAlignment
from torchtune_smt.grammar import read_grammar
from torchtune_smt.grammar.formats import read_phrase_table
from torchtune_smt.grammar.reordering import ReorderingType
from torchtune_smt.kbest.lists import Source
from torchtune_smt.lm import DISCOUNT_FALLBACK, NgramModel, estimate, write_arpa
from torchtune_smt.models import Model

WORDS = [f"w{i}" for i in range(12)]
HIERARCHICAL = ReorderingType.parse("hier-msd-bidirectional-fe")


@pytest.fixture(scope="module")
def toy_sources():
    rng = np.random.default_rng(7)
    return [Source(i, rng.choice([*WORDS, "?"], rng.integers(1, 25)).tolist()) for i in range(30)]


class Toy(namedtuple("Toy", ["kind", "model", "dense", "values", "options"])):
    """Makes decoders of a random model of a few hundred rules."""

    def __call__(self, **options):
        return self.kind(self.model, **self.options | options)

    def weights(self, decoder, names=None):
        assert decoder.dense_names == self.dense
        weights = Weights(self.dense if names is None else names)
        weights.set(self.dense, self.values)
        return weights


def random_rules(rng):
    rules = [Rule((w,), (w.upper(),), (0.0, 0.0)) for w in WORDS]
    for _ in range(300):
        source = rng.choice(WORDS, rng.integers(1, 4)).tolist()
        target = [w.upper() for w in rng.choice(WORDS, rng.integers(1, 4))]
        if rng.random() < 0.5:
            source.insert(rng.integers(len(source) + 1), "[1]")
            target.insert(rng.integers(len(target) + 1), "[1]")
            if rng.random() < 0.5 and len(source) > 2 and source[-1] != "[1]":
                source.append("[2]")
                target.insert(rng.integers(len(target) + 1), "[2]")
        rules.append(Rule(tuple(source), tuple(target), tuple(rng.normal(size=2))))
    return rules


@pytest.fixture(scope="module", params=["hiero", "phrase"])
def toy(request):
    rules = random_rules(np.random.default_rng(5))
    rng = np.random.default_rng(6)
    text = [[w.upper() for w in rng.choice(WORDS, rng.integers(3, 12))] for _ in range(400)]
    lm = NgramModel.from_ngrams(estimate(text, 3, DISCOUNT_FALLBACK))
    options = {"k": 20, "pop_limit": 30}
    if request.param == "hiero":
        options["templates"] = [RuleId(), SourceNgram(), RuleShape()]
        values = [0.3, 0.2, 0.5, -1.0, -0.1, -0.5, 0.1]
        return Toy(HieroDecoder, Model(to_grammar(rules), lm), DENSE, values, options)
    phrases = [
        Phrase(rule.source, rule.target, rule.values, tuple(-rng.random(6)))
        for rule in rules
        if not {*GAPS} & {*rule.source}
    ]
    options |= {"templates": [RuleId(), LexReordering()], "distortion_limit": 4}
    names = [*NAMES, *reordering_names(HIERARCHICAL), *OWN]
    values = [0.3, 0.2, *[0.4] * 6, 0.1, 0.5, -0.1, -0.2, 1.0]
    model = Model(to_table(phrases, HIERARCHICAL), lm)
    return Toy(PhraseDecoder, model, names, values, options)


def as_lists(kbests):
    """Everything in k-best lists, for comparison."""
    parts = [(*k.strings(), k.rows.begin, k.rows.feature, k.rows.value, k.score) for k in kbests]
    return [[array.tolist() for array in arrays] for arrays in parts]


def names_in(decoder):
    return decoder.features.names(range(len(decoder.features)))


def assert_alike(found, expected, tolerance=0.0):
    """Compare lists of two decoders, whose ids may differ."""
    for a, b in zip(found, expected, strict=True):
        assert a.index == b.index
        assert a.score.tolist() == pytest.approx(b.score.tolist(), abs=tolerance)
        assert [a.text(h) for h in range(len(a))] == [b.text(h) for h in range(len(b))]
        for h in range(len(a)):
            assert features_of(a, h) == pytest.approx(features_of(b, h), abs=tolerance)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_threads_and_batches_change_nothing(toy, toy_sources):
    # Longer than a timer can wait.
    alone, together = toy(), toy(threads=4, seconds=1e10)
    weights = toy.weights(alone)
    one_by_one = [kbest for s in toy_sources for kbest in alone.decode([s], weights)]
    at_once = together.decode(toy_sources, weights)
    at_once.check()
    assert at_once.features is together.features and at_once.words is together.words
    assert as_lists(one_by_one) == as_lists(at_once)
    assert [kbest.index for kbest in at_once] == list(range(len(toy_sources)))
    assert names_in(alone) == names_in(together)
    assert len(alone.decode([], weights)) == 0


@pytest.mark.parametrize("unknown", ["keep", "drop"])
def test_what_is_kept_changes_nothing(toy, toy_sources, unknown):
    """Whatever fits, and however often a sentence comes, lists and ids of features are the same.

    One of the same number with other words is another one.
    """
    rng = np.random.default_rng(3)
    without = toy(keep_mb=0, unknown=unknown)
    decoders = [toy(keep_mb=mb, unknown=unknown, threads=t) for mb, t in ((0.02, 1), (100, 3))]
    sources = [*toy_sources, Source(99, ["nobody", "knows", "this"]), Source(0, ["w1"])]
    for _ in range(5):
        some = [sources[i] for i in rng.permutation(len(sources))[: len(sources) * 2 // 3]]
        values = rng.normal(size=len(without.features))
        expected = None
        for decoder in (without, *decoders):
            weights = toy.weights(decoder)
            weights.set(without.features.names(range(values.size)), values)
            found = as_lists(decoder.decode(some, weights))
            expected = found if expected is None else expected
            assert found == expected
            assert names_in(decoder) == names_in(without)
            assert [decoder.uncovered(s) for s in some] == [without.uncovered(s) for s in some]
    few, all_of_them = (decoder._kept for decoder in decoders)
    assert len(without._kept) == 0
    assert 0 < len(few) < len(all_of_them) <= len(sources)
    assert 0 < few.nbytes <= 20_000


def test_what_a_fork_meets_and_keeps_stays_with_it(toy, toy_sources):
    decoder, other = toy(keep_mb=100), toy()
    weights = toy.weights(decoder)
    decoder.decode(toy_sources[:3], weights)
    names = names_in(decoder)
    fork = decoder.fork()
    found = fork.decode(toy_sources[3:], weights)
    assert_alike(found, other.decode(toy_sources[3:], weights), 1e-12)
    assert len(fork.features) > len(names) == len(decoder.features)
    assert names_in(fork)[: len(names)] == names == names_in(decoder)
    # Ids of features that it meets first are not those of the decoder that it was forked from.
    for source in reversed(toy_sources):
        fork.decode([source], weights)
    for one in (decoder, fork, decoder, fork):
        for source in (toy_sources[0], toy_sources[-1]):
            expected = toy().decode([source], weights)
            assert_alike(one.decode([source], weights), expected, 1e-12)


def test_siblings_decode_in_threads(toy, toy_sources):
    """What one meets all know; the lists are those of a decoder that is alone."""
    decoder, other = toy(), toy()
    weights = toy.weights(decoder)
    siblings = [decoder.sibling() for _ in range(3)]
    batches = [[source] for source in toy_sources] * 2
    with ThreadPoolExecutor(len(siblings)) as pool:
        # Each has every third, and in the second round those of others.
        parts = [(n, batches[n::3]) for n in range(len(siblings))]
        found = list(pool.map(lambda p: [siblings[p[0]].decode(b, weights) for b in p[1]], parts))
    for (_, part), lists in zip(parts, found, strict=True):
        for sources, kbests in zip(part, lists, strict=True):
            assert kbests.features is decoder.features
            assert_alike(kbests, other.decode(sources, weights), 1e-12)
    assert sorted(names_in(decoder)) == sorted(names_in(other))


def test_weights_are_read_by_name(toy, toy_sources):
    """In whatever order they are, of however many features, and before a rule is first seen."""
    decoder, fresh = toy(), toy()
    weights = toy.weights(decoder)
    sources = toy_sources[:6]
    decoder.decode(sources, weights)
    names = names_in(decoder)[weights.n_dense :]
    rng = np.random.default_rng(1)
    values = rng.normal(size=len(names))
    weights.set(names, values)
    before, dimension = weights.parameter.tolist(), len(weights.features)
    expected = decoder.decode(sources, weights)
    # Decoding changes none.
    assert weights.parameter.tolist() == before and len(weights.features) == dimension
    for dense in ([], toy.dense[:-1], toy.dense[::-1], [*toy.dense, "More"]):
        other = toy.weights(decoder, dense)
        other.features.intern(["another:feature"])
        shuffled = rng.permutation(len(names))
        other.set([names[i] for i in shuffled], values[shuffled])
        for one, tolerance in ((decoder, 0.0), (fresh, 1e-9)):
            assert_alike(one.decode(sources, other), expected, tolerance)


def test_weights_of_the_sentences_alone_are_read(toy, toy_sources):
    decoder = toy()
    weights = toy.weights(decoder)
    decoder.decode(toy_sources, weights)
    asked = []

    class Asked:
        version = 0

        def read(self, features, ids):
            asked.extend(ids.tolist())
            return weights.read(features, ids)

    shortest = sorted(toy_sources, key=lambda source: len(source.words))[:3]
    kbests = decoder.decode(shortest, Asked())
    assert set(asked) >= set(np.concatenate([k.rows.feature for k in kbests]).tolist())
    assert len(set(asked)) < 0.7 * len(decoder.features)


def yields(part, side):
    """The words that a derivation covers, or that it gives."""
    found = []
    for symbol in getattr(part, side).split():
        gap = symbol in GAPS and part.parts
        found += yields(part.parts[int(symbol[1]) - 1], side) if gap else [symbol]
    return found


def used(part):
    return [part, *(rule for inner in part.parts for rule in used(inner))]


def test_derivations_are_those_of_the_best_translations(toy, toy_sources):
    """In the order of the target side; what they cover is the sentence, each word once."""
    decoder = toy(unique=False)
    weights = toy.weights(decoder)
    sources = [*toy_sources, Source(30, [])]
    nested = jumps = 0
    for source, kbest in zip(sources, decoder.decode(sources, weights), strict=True):
        whole = decoder.derivation(source, weights)
        assert [w for p in whole.parts for w in yields(p, "target")] == kbest.text(0).split()
        covered = [place for p in whole.parts for place in range(p.begin, p.end)]
        assert sorted(covered) == list(range(len(source.words)))
        jumps += covered != sorted(covered)
        rules = [rule for part in whole.parts for rule in used(part)]
        for rule in rules:
            assert source.words[rule.begin : rule.end] == yields(rule, "source")
        names = Counter(
            name for r in rules for name in RuleId().features(r.source.split(), r.target.split())
        )
        features = features_of(kbest, 0)
        assert {n: v for n, v in features.items() if n.startswith("rule_id:")} == names
        if toy.kind is HieroDecoder:
            assert features.get("Glue", 0) == max(0, len(whole.parts) - 1)
        nested += sum(len(rule.parts) == 2 for rule in rules)
    assert nested if toy.kind is HieroDecoder else jumps


def test_sentences_that_are_too_long(toy):
    decoder = toy(max_words=3)
    with pytest.raises(ValueError, match="sentence 7 has 60,?000 words, and at most 3"):
        sources = [Source(0, ["w1"] * 3), Source(7, ["w1"] * 60_000)]
        decoder.decode(sources, toy.weights(decoder))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_search_that_takes_too_long(toy, threads):
    decoder = toy(pop_limit=500, seconds=0.01, threads=threads)
    message = r"^sentence 3 .*900 words, 'w1 w1 w1 w1 w1 w1': .*seconds"
    with pytest.raises(InputError, match=message):
        decoder.decode([Source(3, ["w1"] * 900)], toy.weights(decoder))


RULES = """\
[X] ||| der hund ||| the dog ||| Count=1
[X] ||| eine ||| a ||| Count=1
[X] ||| ist [X,1] da ||| here is [X,1] ||| Count=1
"""
PHRASES = """\
der hund ||| the dog ||| 0.5 0.5 0.5 0.5 ||| 0-0 1-1
eine ||| a ||| 0.5 0.5 0.5 0.5 ||| 0-0
"""
SENTENCE = "der hund ist xx eine yy xx"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    text = [["the", "dog"], ["the", "cat"], ["here", "is", "a", "dog"]] * 5
    write_arpa(folder / "lm.arpa", estimate(text, 2, DISCOUNT_FALLBACK))
    (folder / "grammar").write_text(RULES)
    return Model(read_grammar(folder / "grammar"), NgramModel.load(folder / "lm.arpa", cache=False))


WEIGHTS = FrozenWeights.of(
    {"LanguageModel": 1.0, "WordPenalty": -0.1, "PassThrough": -1.0, "Count": 1.0, "Glue": -0.2}
    | {"LM0_0": 0.5, "UnknownWordPenalty0_0": 1.0, "WordPenalty0_0": -1.0, "Distortion0_0": 1.0}
)


def test_which_words_are_covered(model):
    decoder = HieroDecoder(model)
    # `ist` has a rule, which needs `da`; `der` has one with `hund` alone.
    for text, expected in ((SENTENCE, "ist xx yy xx"), ("ist der hund da", ""), ("der", "der")):
        assert decoder.uncovered(Source(0, text.split())) == expected.split()
    uncovered = Uncovered(decoder)
    uncovered.add([Source(0, ["eine"])])
    assert uncovered.text("keep") is None
    uncovered.add([Source(1, SENTENCE.split())])
    assert uncovered.text(None) == "4 of 8 words are in no rule: xx, ist, yy"
    uncovered.add([Source(2, [f"z{i}" for i in range(99)])])
    said = uncovered.text("keep") or ""
    assert said.startswith("103 of 107 words") and said.endswith(", ...") and len(said) < 76


@pytest.mark.parametrize("kind", [HieroDecoder, PhraseDecoder])
def test_features_and_derivations_of_dropped_words(kind, model, tmp_path):
    """Their target sides are empty, and nothing is linked to them; covered words are copied."""
    if kind is PhraseDecoder:
        (tmp_path / "phrases").write_text(PHRASES)
        model = Model(read_phrase_table(tmp_path / "phrases"), model.language_model)
    templates = [RuleId(), RuleShape(), *([WordAlignment()] if kind is PhraseDecoder else [])]
    source = Source(0, SENTENCE.split())
    for unknown, side in (("keep", "xx"), ("drop", "")):
        decoder = kind(model, templates=templates, unknown=unknown, k=50)
        kbest, nothing = decoder.decode([source, Source(1, ["xx", "yy"])], WEIGHTS)
        texts = [kbest.text(h) for h in range(len(kbest))]
        assert texts[0] == ("the dog ist xx a yy xx" if side else "the dog a")
        row = features_of(kbest, 0)
        if not side:
            # Covered words may still be copied; the others are in no entry of the list.
            assert kind is PhraseDecoder or "der hund a" in texts
            assert all(not {"ist", "xx", "yy"} & {*text.split()} for text in texts)
            assert [nothing.text(h) for h in range(len(nothing))] == [""]
        if not side and kind is HieroDecoder:
            # Each that is dropped counts as one that is passed through, without any words.
            logp, _ = model.language_model.score("the dog a".split())
            expected = {"PassThrough": 4, "WordPenalty": -3 * math.log10(math.e)}
            assert {name: row.get(name, 0) for name in DENSE[2:6]} == pytest.approx(
                expected | {"LanguageModel": logp, "LanguageModel_OOV": 0}
            )
        assert row[f"rule_id:xx~{side}"] == 2
        assert row.get("rule_shape:T~", 0) == (0 if side else 4)
        assert kind is HieroDecoder or row[f"alignment:xx~{side}"] == 2
        names = decoder.features.names(decoder.feature_ids([source]))
        assert (f"rule_id:xx~{side}" in names) and "rule_id:der~der" in names
        parts = decoder.derivation(source, WEIGHTS).parts
        assert [part.target for part in parts if part.source == "xx"] == [side] * 2


def test_translate(run, tmp_path):
    (tmp_path / "in").write_text("xyzzy der zug plugh\n\n")
    arguments = [f"weights={run.weights}", f"input={tmp_path / 'in'}"]
    kept = run_command("translate", *arguments, folder=run.place).check()
    assert {"xyzzy", "plugh"} <= {*kept.out.split()}
    assert "2 of 4 words are unknown, and copied: xyzzy, plugh" in kept.err
    dropped = run_command("translate", *arguments, "decoder.unknown=drop", folder=run.place)
    assert not {"xyzzy", "plugh"} & {*dropped.check().out.split()}
    assert dropped.out.split()
    assert "and dropped: xyzzy, plugh" in dropped.err
    assert dropped.out.count("\n") == 2
    # And of the sets, once in a run's report.
    assert run.outcome.out.count("words are unknown, and copied") == 2
