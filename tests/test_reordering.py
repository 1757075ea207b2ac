"""The same words in another order: planted, and beside what is obvious and slow."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from commands import Run, example_source, run_command
from hypothesis import given
from hypothesis import strategies as st
from test_overlap import analyse, rows

from torchtune_smt.core.textio import read_lines
from torchtune_smt.evaluation.translations import Segment, reference_order, segments

SENTENCES = st.lists(st.sampled_from("abcde"), max_size=7)


def within(words: tuple[str, ...] | list[str], sentence: list[str]) -> bool:
    """Whether words stand in a sentence in their order, found by looking at all choices."""
    return tuple(words) in set(combinations(sentence, len(words)))


def longest_common_subsequence(first: list[str], second: list[str]) -> int:
    common = (k for k in range(len(first), -1, -1) for c in combinations(first, k) if c)
    return next(
        (k for k in common if any(within(c, second) for c in combinations(first, k))),
        0,
    )


@given(SENTENCES, SENTENCES)
def test_segments_have_the_same_words_in_another_order(first: list[str], second: list[str]) -> None:
    found = segments(first, second)
    for segment in found:
        assert Counter(segment.first) == Counter(segment.second)
        assert segment.first != segment.second
    for side, sentence in enumerate((first, second)):
        assert within([word for segment in found for word in segment[side]], sentence)
    shared = (Counter(first) & Counter(second)).total()
    assert bool(found) == (shared > longest_common_subsequence(first, second))


@given(st.permutations("abcdefgh"))
def test_segments_are_the_shortest(order: list[str]) -> None:
    """Of different words: those that inversions tie together."""
    words = list("abcdefgh")
    group = {word: {word} for word in words}
    for x, y in combinations(words, 2):
        if order.index(x) > order.index(y):
            together = group[x] | group[y]
            # What stands between is in the same stretch.
            for word in together:
                group[word] = together
    parts = {frozenset(one) for one in group.values() if len(one) > 1}
    found = segments(words, order)
    assert {frozenset(segment.first) for segment in found} == parts
    for segment in found:
        assert segment.first == [word for word in words if word in segment.first]
        assert segment.second == [word for word in order if word in segment.first]


def test_a_swap_between_other_words() -> None:
    first = "and lebanese prime minister fouad siniora announced that".split()
    second = "announced today the lebanese prime minister siniora that".split()
    (segment,) = segments(first, second)
    assert segment.first == "lebanese prime minister siniora announced".split()
    assert segment.second == "announced lebanese prime minister siniora".split()
    # Repeated words are no swap where they need not be one.
    assert segments("the dog sees the cat".split(), "the man the dog sees the cat".split()) == []


def test_whose_order_a_reference_has() -> None:
    segment = Segment("prime minister announced".split(), "announced prime minister".split())
    of_first = "the prime minister of lebanon announced it".split()
    of_second = "it was announced that the minister came".split()
    assert reference_order(segment, [of_first]) == "first"
    # It has no "prime".
    assert reference_order(segment, [of_second]) == "second"
    assert reference_order(segment, [of_first, of_second]) == "both"
    assert reference_order(segment, ["prime minister".split(), []]) == "neither"
    assert reference_order(segment, ["minister announced prime".split()]) == "neither"


@given(SENTENCES, st.randoms(use_true_random=False), SENTENCES)
def test_order_of_any_reference(first: list[str], random: object, reference: list[str]) -> None:
    second = sorted(first, key=lambda _: random.random())  # type: ignore[attr-defined]
    ours, theirs = ([word for word in side if word in reference] for side in (first, second))
    has = [ours != theirs and within(side, reference) for side in (ours, theirs)]
    names = {(True, True): "both", (True, False): "first", (False, True): "second"}
    expected = names.get((has[0], has[1]), "neither")
    assert reference_order(Segment(first, second), [reference]) == expected


def test_command(tmp_path: Path) -> None:
    texts = {
        "a": ["x y z", "a b c d", "same here", "p q"],
        "b": ["y x z", "c d a b", "same here", "q p"],
        "r1": ["y x w", "a b c d", "same here", "no such"],
        "r2": ["y x", "c d of a b", "same", "nothing"],
    }
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    given = ["reordering", "a", "b", "references=[r1,r2]", "plot=orders.svg"]
    found = [list(row.values()) for row in rows(analyse(tmp_path, *given, "table=csv"))]
    assert found == [
        ["1", "x y", "y x", "b"],
        ["2", "a b c d", "c d a b", "both"],
        ["4", "p q", "q p", "neither"],
    ]
    assert (tmp_path / "orders.svg").read_bytes().startswith(b"<?xml")
    text = analyse(tmp_path, *given, "rows=1").check().out
    assert "- sentences: 4, with words in another order: 3\n" in text
    assert "- segments where a reference has the order of b: 1 (33.3%)\n" in text
    assert "- the first 1 of 3 rows\n" in text


def test_sentences_of_which_something_is_said(run: Run) -> None:
    """Those whose source matches; what a run translates is read from its folder."""
    lines = read_lines(run.folder / "test.translations.txt")
    (run.place / "turned").write_text(
        "".join(f"{' '.join(reversed(li.split()))}\n" for li in lines)
    )
    sources = example_source("test")
    given = ["reordering", run.folder, "turned", "table=csv", "rows=null"]
    every = {row["sentence"] for row in rows(analyse(run.place, *given))}
    chosen = {row["sentence"] for row in rows(analyse(run.place, *given, "match='^ich '"))}
    numbers = {str(i) for i, source in enumerate(sources, 1) if source.startswith("ich ")}
    assert chosen == numbers & every
    assert 0 < len(chosen) < len(every)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a"], "reordering compares two systems, and there are 1"),
        (["a", "b"], "there is nothing to compare with: give references=[FILE,"),
        (["a", "b", "references=[a]", "match='('"], "match=( is no regular expression: "),
        (["a", "b", "references=[a]", "match=x"], "match is of source sentences, which are not "),
        (["a", "b", "references=[a]", "of=[dev]"], "of=[dev]: reordering takes no such option; "),
        (["a", "c", "references=[a]"], "c: has 2 lines, and there are references of 1 sentences"),
    ],
)
def test_bad_input(tmp_path: Path, arguments: list[str], message: str) -> None:
    for name, text in (("a", "x y\n"), ("b", "y x\n"), ("c", "y x\nz\n")):
        (tmp_path / name).write_text(text)
    outcome = run_command("analyse", "reordering", *arguments, folder=tmp_path)
    assert outcome.code == 1
    assert outcome.err.startswith(f"error: {message}")
    assert outcome.err.count("\n") == 1
