"""Gains from a file."""

import gzip
import logging

import pytest
from test_metrics import kbest_of

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.metrics import ExternalScores

REFERENCES = [[["a"]], [["b"]]]

SCORES = """\
1 ||| the dog ||| -0.5
0 ||| a house ||| 0.25
0 |||  ||| -2e-1
0|||a\ttree |||1
0 ||| a house ||| 0.250
1 ||| ||| 0
1 ||| x ||| y ||| 0.75
"""


@pytest.fixture
def scores(tmp_path):
    """Write a file of scores and return its path."""

    def write(text, name="scores.txt"):
        path = tmp_path / name
        data = text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


@pytest.mark.parametrize("name", ["scores.txt", "scores.txt.gz"])
def test_scores_are_found_by_sentence_and_words(scores, name):
    words = Vocabulary(["dog"])
    bound = ExternalScores(scores(SCORES, name)).bind(REFERENCES, words)
    words.intern(["later"])
    first = kbest_of(0, [["a", "tree"], [], ["a", "house"], ["a", "tree"]], words)
    assert list(bound.gains(first)) == [1, -0.2, 0.25, 1]
    second = kbest_of(1, [["x", "|||", "y"], ["the", "dog"], []], words)
    assert list(bound.gains(second)) == [0.75, -0.5, 0]


def test_a_missing_hypothesis_is_named(scores):
    path = scores(SCORES)
    words = Vocabulary()
    bound = ExternalScores(path).bind(REFERENCES, words)
    message = f"{path}: has no score of 'the house', a hypothesis of sentence 1 .*missing=worst"
    with pytest.raises(InputError, match=message):
        bound.gains(kbest_of(1, [["the", "dog"], ["the", "house"]], words))


def test_a_missing_hypothesis_takes_the_worst_score(scores, caplog):
    words = Vocabulary()
    bound = ExternalScores(scores(SCORES), missing="worst").bind([*REFERENCES, [["c"]]], words)
    strings = [["the", "dog"], *([f"w{i}"] for i in range(12))]
    with caplog.at_level(logging.WARNING):
        assert list(bound.gains(kbest_of(1, strings, words))) == [-0.5] * 13
        assert list(bound.gains(kbest_of(0, [["a", "house"], ["a"]], words))) == [0.25, -0.2]
    assert bound.n_missing == 13
    reports = [record.getMessage().partition(": ")[2] for record in caplog.records]
    text = "hypotheses had no score and took the lowest of their sentence, lastly"
    assert reports == [f"1 {text} 'w0' of sentence 1", f"10 {text} 'w9' of sentence 1"]
    with pytest.raises(InputError, match="no score of 'c', a hypothesis of sentence 2 .*score it$"):
        bound.gains(kbest_of(2, [["c"]], words))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "expected 'sentence"),
        ("0 ||| a house", "expected 'sentence"),
        ("0 a house 0.3", "expected 'sentence"),
        ("one ||| a house ||| 0.3", "'one' is no number of a sentence"),
        ("-1 ||| a house ||| 0.3", "'-1' is no number of a sentence"),
        ("0 ||| a ||| nan", "the score 'nan' is no finite number"),
        ("0 ||| a ||| -inf", "the score '-inf' is no finite number"),
        ("0 ||| a ||| ", "the score '' is no finite number"),
        ("0 ||| a  house ||| 0.3", "scores a hypothesis 0.3 that an earlier line scores 0.25"),
    ],
)
def test_bad_lines_are_located(scores, line, message):
    path = scores(f"{SCORES}{line}\n")
    with pytest.raises(InputError, match=f"^{path}:8: {message}"):
        ExternalScores(path)


def test_other_errors(scores, tmp_path):
    with pytest.raises(InputError, match="no such file"):
        ExternalScores(tmp_path / "nothing.txt")
    with pytest.raises(InputError, match="scores sentence 1 .*there are 1 sentences"):
        ExternalScores(scores(SCORES)).bind([[["a"]]], Vocabulary())
