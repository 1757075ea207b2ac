"""Words, fields and numbers; and messages that quote them."""

import contextlib
import math
import re
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchtune_smt.core.errors import InputError, shown
from torchtune_smt.core.text import finite_number, is_word, split_fields, split_words, whole_number

# Characters that some program or other takes for a blank, or for a digit.
LETTERS = st.sampled_from("a| \t\u00a0\u2009\u3000\u2028\x85\x0b\x0c\x1c\x1f\ufeff\u0661")
LINES = st.text(LETTERS, max_size=12)


@given(LINES)
def test_words_are_separated_by_blanks_and_tabs_alone(line):
    words = re.findall("[^ \t]+", line)
    assert split_words(line) == words
    assert split_words(line + "\r\n") == words
    assert is_word(line) == (words == [line])


@given(LINES)
def test_fields_are_separated_by_the_word_of_three_bars(line):
    fields = split_fields(line)
    assert "|||".join(fields) == line
    expected = [[]]
    for word in re.findall("[^ \t]+", line):
        if word == "|||":
            expected.append([])
        else:
            expected[-1].append(word)
    assert [split_words(field) for field in fields] == expected


NUMBERS = st.text(st.sampled_from("0123456789+-.eE_ \u0661\u2028\u00a0nainfx"), max_size=7)


@given(NUMBERS)
@example("1e400")
@example("\u0661")
@example("1_0")
@example("infinity")
def test_numbers_are_pythons_in_plain_ascii(text):
    whole = all("0" <= letter <= "9" for letter in text) and 0 < len(text) <= 9
    assert whole_number(text) == (int(text) if whole else None)
    number = None
    if all(letter in "0123456789+-.eE" for letter in text):
        with contextlib.suppress(ValueError):
            number = float(text) if math.isfinite(float(text)) else None
    assert finite_number(text) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_what_is_written_is_read_back(number):
    assert finite_number(repr(number)) == number
    assert finite_number(f"{number:.400f}") == number


@given(st.text(st.one_of(LETTERS, st.characters()), max_size=40))
def test_a_message_is_one_printable_line(text):
    message = str(InputError(f"{text} is bad", path=f"a{text}", line=3))
    assert message.isprintable()
    if text.isprintable():
        assert message == f"a{text}:3: {text} is bad"


@pytest.mark.parametrize("long", ["x" * 10**7, "x y\n" * 10**6, "\r" * 10**6])
def test_what_is_quoted_is_shortened(long):
    message = f"the value '{long}' is no number; write another"
    assert len(shown(message)) < 7000
    assert shown(message).startswith(f"the value '{long[:1].replace(chr(13), chr(92) + 'r')}")
    assert shown(message).endswith("is no number; write another")
    tracemalloc.start()
    error = InputError(message, path="file", line=1)
    assert tracemalloc.get_traced_memory()[1] < 4 * len(message) + 10**6
    tracemalloc.stop()
    assert str(error) == f"file:1: {shown(message)}"


def test_what_people_read_is_not_shortened():
    message = "has no weight for " + ", ".join(f"feature_{i}" for i in range(100))
    assert shown(message) == message
