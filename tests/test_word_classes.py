"""Word classes: found as the text is most probable, kept with a model, and used by templates."""

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from commands import example
from hiero_reference import Rule, to_grammar
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.decoders.rule_features import RuleFeatures
from torchtune_smt.features import LexReordering, RuleId, RuleShape, SourceNgram, WordAlignment
from torchtune_smt.grammar import extract_grammar
from torchtune_smt.lm.classes import WordClasses, read_classes, word_classes, write_classes
from torchtune_smt.lm.estimate import DISCOUNT_FALLBACK
from torchtune_smt.models import BitextModel, FileModel, MosesModel, load_model
from torchtune_smt.models.base import model_origin

END = "</s>"


def likelihood(text, classes):
    """Log likelihood under p(class | class before) p(word | class), of relative frequencies."""
    stream = [END, *(word for sentence in text for word in (*sentence, END))]
    kinds = [classes.get(word, END) for word in stream]
    pairs, before = Counter(pairwise(kinds)), Counter(kinds[:-1])
    words, behind = Counter(stream[1:]), Counter(kinds[1:])
    return sum(
        math.log(pairs[a, b] / before[a]) + math.log(words[word] / behind[b])
        for word, a, b in zip(stream[1:], kinds, kinds[1:], strict=False)
    )


def slow_classes(text, count):
    """What the exchange algorithm does, with the likelihood of the whole text for each move."""
    often = Counter(word for sentence in text for word in sentence)
    classes = {word: str(i % count) for i, (word, _) in enumerate(often.most_common())}
    found = [likelihood(text, classes)]
    for _ in range(30):
        start = dict(classes)
        for word, _ in often.most_common():
            best, own = found[-1], classes[word]
            for k in map(str, range(count)):
                value = likelihood(text, classes | {word: k})
                if value > best + 1e-6:
                    best, own = value, k
            classes[word] = own
            found.append(best)
        if classes == start:
            break
    return classes, found


texts = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), max_size=12)


@given(texts, st.integers(1, 5))
def test_each_move_is_that_of_the_whole_likelihood(text, count):
    expected, likelihoods = slow_classes(text, count)
    assert word_classes(text, count) == expected
    assert likelihoods == sorted(likelihoods)


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_files_of_mkcls(ends, tmp_path):
    (tmp_path / "classes").write_bytes(ends.join(["haus\t12", "\u00a0 7", "a b", ""]).encode())
    found = read_classes(tmp_path / "classes")
    assert found == {"haus": "12", "\u00a0": "7", "a": "b"}
    write_classes(tmp_path / "again", found)
    assert (tmp_path / "again").read_text("utf-8") == "haus\t12\n\u00a0\t7\na\tb\n"


def test_files_that_are_none(tmp_path):
    for lines, said in {
        "a\t1\nb\n": "classes:2: expected a word, a tab and its class, not 'b'",
        "0101\ta\t7\n": "classes:1: expected",
        "a\t1\nb\t1\na\t2\n": "classes:3: has 'a' again",
    }.items():
        (tmp_path / "classes").write_text(lines)
        with pytest.raises(InputError, match=said):
            read_classes(tmp_path / "classes")


CLASSES = WordClasses(
    {"ein": "1", "das": "1", "haus": "2", "[X]": "a:b"}, {"a": "1", "the": "1", "house": "2"}, "x"
)


def names_of(rule, templates, copied=()):
    """Return the names of a rule's features, and of those of words that are copied."""
    store = RuleFeatures(to_grammar([rule]), templates, Vocabulary(), (), CLASSES)
    of = store.of_sentence(np.zeros(1, np.int64), copied)
    rows = np.split(of.id[of.feature], of.begin[1:-1])
    return [store.features.names(row) for row in rows]


class SlowId(RuleId):
    """A template of a user's own, which no kernel spells."""

    def features(self, source, target):
        return super().features(source, target)


@pytest.mark.parametrize("kind", [RuleId, SlowId])
def test_templates_are_given_classes(kind):
    rule = Rule(("das", "[1]", "haus", "[X]"), ("[1]", "the", "rest"), (0.0, 0.0))
    templates = [kind(), kind(classes=True), SourceNgram(classes=True)]
    assert names_of(rule, templates, ["ein", "the", "new"]) == [
        [
            "rule_id:das_[1]_haus_%5BX%5D~[1]_the_rest",
            "class_rule_id:1_[1]_2_a%3Ab~[1]_1_unk",
            "class_source_ngram:1_[X]",
            "class_source_ngram:[X]_2",
            "class_source_ngram:2_a%3Ab",
        ],
        # A word is copied to the target side, where others have classes.
        ["rule_id:ein~ein", "class_rule_id:1~unk"],
        ["rule_id:the~the", "class_rule_id:unk~1"],
        ["rule_id:new~new", "class_rule_id:unk~unk"],
    ]
    (alone,) = names_of(rule, [kind(classes=True), RuleShape()])
    assert sorted(alone) == ["class_rule_id:1_[1]_2_a%3Ab~[1]_1_unk", "rule_shape:T_[1]_T~[1]_T"]


def test_rules_of_one_form_of_classes_share_a_feature():
    """That is what they are for; `min_count` is still of the rule."""
    rules = [Rule(("das",), (word,), (0.0, 0.0)) for word in ("the", "a", "house")]
    grammar = to_grammar(rules)
    counts = np.array([9.0, 9.0, 1.0])
    grammar.rule_counts = counts.__getitem__  # type: ignore[method-assign]
    store = RuleFeatures(grammar, [RuleId(5, classes=True)], Vocabulary(), (), CLASSES)
    of = store.of_sentence(np.arange(3))
    assert store.features.names(of.id[of.feature]) == ["class_rule_id:1~1"] * 2
    assert of.begin.tolist() == [0, 1, 2, 2]


def test_links_and_orders_of_classes():
    grammar = extract_grammar([["das", "haus"]], [["the", "house"]], [[(0, 0), (1, 1)]])
    templates = [
        WordAlignment(classes=True),
        LexReordering(classes=True, lexicalized=True, behind=False),
    ]
    store = RuleFeatures(grammar, templates, Vocabulary(), ["swap"], CLASSES)
    whole = [" ".join(grammar.rule_text(rule)[0]) for rule in range(len(grammar))].index("das haus")
    of = store.of_sentence(np.array([whole]))
    rows = np.split(of.id[of.feature], of.begin[1:-1])
    orders = [f"class_lex_reordering:{kind}:1_2~1_2" for kind in ("before_swap", "nonmonotone")]
    links = ["class_alignment:1~1", "class_alignment:2~2"]
    assert [store.features.names(row) for row in rows] == [links, orders, []]


@pytest.fixture(scope="module")
def bitext():
    whole = example().require("train")
    return Corpus(*(part[:60] for part in (whole.source, whole.references, whole.lines)), {})


@pytest.fixture
def built(bitext, tmp_path):
    options = {"order": 3, "discount_fallback": DISCOUNT_FALLBACK, "iterations": 2, "folds": 0}
    settings = BitextModel(str(tmp_path / "model"), "fast_align", classes=5, **options)
    settings.build(bitext, lambda step: None)
    return settings


def test_a_model_keeps_its_classes(bitext, built):
    model = load_model(built.folder)
    assert model.classes[:2] == (word_classes(bitext.source, 5), word_classes(bitext.targets, 5))
    assert replace(built, classes=None).why_not_built(bitext) is None
    said = []
    more = replace(built, classes=6).open(lambda: bitext, report=said.append).classes
    assert "it was built with classes=5, not 6" in said[0]
    # All else is there already.
    assert [line.split()[0] for line in said[1:]] == [*["shared"] * 3, "found", "found"]
    assert more is not None and more.digest != model.classes.digest
    assert len(set(more.source.values())) == 6


def test_classes_that_a_folder_has_not(bitext, built, tmp_path):
    other = replace(built, folder=str(tmp_path / "other"), classes=None)
    other.build(bitext, lambda step: None)
    model = load_model(other.folder)
    assert model.classes is None
    with pytest.raises(ValueError, match=r"class_rule_id features need .* model\.classes=50"):
        RuleFeatures(model.grammar, [RuleId(classes=True)], Vocabulary(), (), model.classes)
    assert other.why_not_built(bitext) is None
    # Those of the model beside it are the same.
    said = []
    replace(other, classes=5).build(bitext, said.append)
    assert all(line.startswith("shared") for line in said)
    assert load_model(other.folder).classes == load_model(built.folder).classes


def test_weights_belong_to_classes_if_a_template_looks_at_them(built):
    model = load_model(built.folder)
    for template in (RuleId(), RuleId(classes=True)):
        origins = [
            model_origin("de-en", one, [template], [{}]).comments()
            for one in (model, replace(model, classes=CLASSES))
        ]
        assert (origins[0] == origins[1]) != template.classes


def test_classes_of_files(built, tmp_path):
    grammar = tmp_path / "grammar"
    grammar.write_text("[X] ||| das ||| the ||| F=1\n")
    arpa = f"{built.folder}/lm.arpa.gz"
    files = [tmp_path / "source", tmp_path / "target"]
    for path, classes in zip(files, CLASSES[:2], strict=True):
        write_classes(path, classes)
    source = FileModel(str(grammar), arpa, None, *map(str, files))
    found = source.open(example).classes
    assert found is not None and found[:2] == CLASSES[:2]
    assert FileModel(str(grammar), arpa).open(example).classes is None
    swapped = FileModel(str(grammar), arpa, None, *map(str, reversed(files)))
    with pytest.raises(
        InputError, match="target: has 0 words of the model's source side, and .* 1"
    ):
        swapped.open(example)
    for kind in (FileModel, MosesModel):
        with pytest.raises(ValueError, match="source_classes and target_classes go together"):
            kind("g", "l", source_classes="c")
