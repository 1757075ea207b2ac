"""Words where systems were tuned, and in their features: planted, and counted by hand."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from test_overlap import analyse, rows

from torchtune_smt.evaluation.features import spellings
from torchtune_smt.features import RuleId
from torchtune_smt.kbest.sentences import Sentences

WORDS = st.sampled_from(["program", "programme", "a", ":"])


@given(
    st.lists(st.lists(st.lists(WORDS, max_size=5), max_size=2), max_size=5),
    st.lists(st.tuples(st.lists(WORDS, max_size=3), st.lists(WORDS, max_size=3)), max_size=8),
)
def test_counts(
    references: list[list[list[str]]], rules: list[tuple[list[str], list[str]]]
) -> None:
    # As names are spelt: a colon is no word of a name.
    def named(words: list[str]) -> list[str]:
        return ["%3A" if word == ":" else word for word in words]

    names = [name for s, t in rules for name in RuleId().features(named(s), named(t))]
    words = ["program", "programme", ":", "missing"]
    found = spellings(words, references, [*names, "LM", "shape:[1]"])
    for one in found:
        assert one.tokens == sum(r.count(one.word) for sentence in references for r in sentence)
        assert one.features == sum(one.word in target for _, target in rules)
    assert [one.word for one in found] == words


@pytest.fixture
def corpora(tmp_path: Path) -> Path:
    """A run that was tuned on American English, and one that was on a sample of British."""
    us, uk = ["the program", "a program of programs"], [f"the programme {n}" for n in range(9)]
    for name, lines, tuner in (
        ("us", us, {"tune_on": "dev", "sentences": None}),
        ("uk", uk, {"tune_on": "train", "sentences": 4}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "x.de").write_text("das programm\n" * len(lines))
        (folder / "x.en").write_text("".join(f"{line}\n" for line in lines))
        data = {"name": name, "source_language": "de", "target_language": "en"}
        data |= {tuner["tune_on"]: [str(folder / f"x.{e}") for e in ("de", "en")]}
        config = {"data": data, "tuner": tuner, "seed": 7}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        weights = {"rule_id:programm~program": 0.5, "rule_id:das_programm~the_program": -1.0}
        if name == "uk":
            weights = {"rule_id:das_programm~the_programme": 0.5, "rule_id:programm~program": 0.0}
            weights |= {"alignment:programm~programme": 1.0, "rule_id:x~program": 0.25}
        with gzip.open(folder / "weights.txt.gz", "wt") as file:
            file.writelines(f"{n} {w}\n" for n, w in (weights | {"LanguageModel": 1.0}).items())
    return tmp_path


def test_planted_spellings(corpora: Path) -> None:
    given = ["spellings", "us", "uk", "words=[program,programme,'3']"]
    found = rows(analyse(corpora, *given, "table=csv", "plot=spellings.svg"))
    drawn = Sentences.of([[]] * 9, [[["x"]]] * 9).drawn(4, 7)
    assert [list(row.values()) for row in found] == [
        ["program", "2", "0", "2", "1"],
        ["programme", "0", "4", "0", "2"],
        ["3", "0", str(int(3 in drawn)), "0", "0"],
    ]
    head = ["word", "references of us", "references of uk", "features of us", "features of uk"]
    assert list(found[0]) == head
    assert (corpora / "spellings.svg").read_bytes().startswith(b"<?xml")
    text = analyse(corpora, *given, 'match="^rule_id:"').check().out
    assert "| programme | 0 | 4 | 0 | 1 |" in text
    assert "- uk: tuned on train, 4 sentences; sparse features with a weight: 2\n" in text


def test_bad_input(corpora: Path) -> None:
    (corpora / "weights").write_text("rule_id:a~b 1\nLM 1\n")
    (corpora / "bad").mkdir()
    (corpora / "bad" / "weights.txt.gz").write_bytes((corpora / "us/weights.txt.gz").read_bytes())
    (corpora / "bad" / "config.yaml").write_text("data: {}\ntuner: {tune_on: test}\nseed: 1\n")
    for arguments, message in (
        (["us", "uk"], "words is missing; give them with words=[WORD,WORD,...]"),
        (["us", "words=[a,a]"], "words must be a list of words, none twice, as in [programme,"),
        (["us", "words=['a b']"], "words must be a list of words, none twice"),
        (["weights", "words=[a]"], "weights: "),
        (["bad", "words=[a]"], "bad/config.yaml: does not say what was tuned on; the run folder"),
        (["us", "words=[a]", "rows=3"], "rows=3: spellings takes no such option"),
    ):
        outcome = analyse(corpora, "spellings", *arguments)
        assert (outcome.code, outcome.err.count("\n")) == (1, 1)
        assert outcome.err.startswith(f"error: {message}"), outcome.err
