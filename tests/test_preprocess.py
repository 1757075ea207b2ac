import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.data.preprocess import Detokenizer, LengthFilter, Preprocessor

LINE = "Herr Dr. Müller sagt: „Das ist z.B. gut“ – oder?"


def test_all_steps() -> None:
    assert Preprocessor("de").tokens(LINE) == (
        'herr dr. müller sagt : " das ist z.b. gut " - oder ?'.split()
    )


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("lowercase", False, 'Herr Dr. Müller sagt : " Das ist z.B. gut " - oder ?'),
        ("normalize", False, "herr dr. müller sagt : „ das ist z.b. gut “ – oder ?"),
        ("tokenize", False, 'herr dr. müller sagt: "das ist z.b. gut" - oder?'),
        ("escape", True, "herr dr. müller sagt : &quot; das ist z.b. gut &quot; - oder ?"),
    ],
)
def test_each_step_alone_changes_the_text(option: str, value: bool, expected: str) -> None:
    assert " ".join(Preprocessor(**{"language": "de", option: value}).tokens(LINE)) == expected


def test_the_language_decides_about_apostrophes() -> None:
    assert Preprocessor("en").tokens("I don't") == ["i", "don", "'t"]
    assert Preprocessor("it").tokens("l'arte") == ["l'", "arte"]


@pytest.mark.parametrize("tokenize", [True, False])
def test_a_capital_i_with_a_dot_is_one_letter(tokenize: bool) -> None:
    assert Preprocessor("tr", tokenize=tokenize).tokens("İstanbul VİZE") == ["istanbul", "vize"]


def test_blanks_and_empty_lines() -> None:
    assert [Preprocessor("en").tokens(line) for line in ("A  test.", "")] == [
        ["a", "test", "."],
        [],
    ]


@given(st.text(st.one_of(st.sampled_from("a \t\u00a0\u3000\x0b\x1c"), st.characters())))
def test_no_step_only_splits_at_blanks_and_tabs(line: str) -> None:
    nothing = Preprocessor(lowercase=False, normalize=False, tokenize=False)
    assert nothing.tokens(line) == re.findall("[^ \t\n\r]+", line)


@given(st.text())
def test_tokens_hold_no_blanks(line: str) -> None:
    for word in Preprocessor("en").tokens(line):
        assert word
        assert not any(letter.isspace() for letter in word)


def test_detokenize() -> None:
    words = "two men aren &apos;t at the stove , preparing &quot; food &quot; .".split()
    assert Detokenizer("en").line(words) == 'two men aren\'t at the stove, preparing "food".'
    assert Detokenizer("en", capitalize=True).line(words).startswith("Two")
    assert Detokenizer("en", capitalize=True).line([]) == ""


def test_length_filter() -> None:
    limits = LengthFilter(max_length=10, max_ratio=3)
    assert limits.reason(10, 4) is None
    assert limits.reason(3, 9) is None
    assert limits.reason(11, 10) == "too long"
    assert limits.reason(10, 11) == "too long"
    assert limits.reason(1, 4) == "of too different lengths"
    assert limits.reason(10, 3) == "of too different lengths"


@pytest.mark.parametrize("arguments", [{"max_length": 0}, {"max_ratio": 0.5}])
def test_length_filter_refuses_what_keeps_nothing(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        LengthFilter(**arguments)  # type: ignore[arg-type]
