"""Words that no rule covers: found, copied or dropped, counted and told."""

import math
from pathlib import Path
from typing import Literal

import pytest
from commands import Run, run_command

from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.decoders.phrase import PhraseDecoder
from torchtune_smt.decoders.uncovered import Uncovered
from torchtune_smt.features import RuleId, RuleShape, WordAlignment
from torchtune_smt.grammar import read_grammar
from torchtune_smt.grammar.formats import read_phrase_table
from torchtune_smt.kbest.lists import Source
from torchtune_smt.lm import DISCOUNT_FALLBACK, NgramModel, estimate, write_arpa
from torchtune_smt.models import Model

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
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("model")
    text = [["the", "dog"], ["the", "cat"], ["here", "is", "a", "dog"]] * 5
    write_arpa(folder / "lm.arpa", estimate(text, 2, DISCOUNT_FALLBACK))
    (folder / "grammar").write_text(RULES)
    return Model(read_grammar(folder / "grammar"), NgramModel.load(folder / "lm.arpa", cache=False))


WEIGHTS = FrozenWeights.of(
    {"LanguageModel": 1.0, "WordPenalty": -0.1, "PassThrough": -1.0, "Count": 1.0, "Glue": -0.2}
    | {"LM0_0": 0.5, "UnknownWordPenalty0_0": 1.0, "WordPenalty0_0": -1.0, "Distortion0_0": 1.0}
)


def test_which_words_are_covered(model: Model) -> None:
    decoder = HieroDecoder(model)
    # `ist` has a rule, which needs `da`; `der` has one with `hund` alone.
    assert decoder.uncovered(Source(0, SENTENCE.split())) == ["ist", "xx", "yy", "xx"]
    assert decoder.uncovered(Source(0, "ist der hund da".split())) == []
    assert decoder.uncovered(Source(0, ["der"])) == ["der"]
    assert decoder.uncovered(Source(0, [])) == []


@pytest.mark.parametrize("unknown", ["keep", "drop"])
def test_rules_are_not_looked_for_again_after_decoding(
    model: Model, unknown: Literal["keep", "drop"], monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = [SENTENCE, "ist der hund da", "", SENTENCE]
    sources = [Source(i, sentence.split()) for i, sentence in enumerate(sentences)]
    expected = [HieroDecoder(model).uncovered(source) for source in sources]
    decoder = HieroDecoder(model, unknown=unknown)
    decoder.decode(sources, WEIGHTS)
    with monkeypatch.context() as patch:
        patch.setattr(decoder.grammar, "sentence_grammar", None)
        assert [decoder.uncovered(source) for source in sources] == expected
    # An equal sentence is another one: it may be of the training bitext.
    assert decoder.uncovered(Source(0, SENTENCE.split())) == expected[0]


def test_dropped_words_leave_the_rest_as_it_is(model: Model) -> None:
    source = Source(0, SENTENCE.split())
    keep, drop = (HieroDecoder(model, unknown=unknown, k=50) for unknown in ("keep", "drop"))
    kept, dropped = (d.decode([source], WEIGHTS)[0] for d in (keep, drop))
    assert kept.text(0) == "the dog ist xx a yy xx"
    assert dropped.text(0) == "the dog a"
    # Covered words may still be copied; the others are in no entry of the list.
    texts = {dropped.text(h) for h in range(len(dropped))}
    assert "der hund a" in texts
    assert all(not {"ist", "xx", "yy"} & {*text.split()} for text in texts)
    # Each of the words that are dropped counts as one that is passed through, without any words.
    ids, values = dropped.row(0)
    row = dict(zip(drop.features.names(ids), values.tolist(), strict=True))
    assert row["PassThrough"] == 4
    assert row["WordPenalty"] == pytest.approx(-3 * math.log10(math.e))
    assert "LanguageModel_OOV" not in row
    score, _ = model.language_model.score(["the", "dog", "a"])
    assert row["LanguageModel"] == pytest.approx(score)
    (kbest,) = drop.decode([Source(0, ["xx", "yy"])], WEIGHTS)
    assert [kbest.text(h) for h in range(len(kbest))] == [""]


@pytest.mark.parametrize("kind", [HieroDecoder, PhraseDecoder])
def test_features_and_derivations_of_dropped_words(
    kind: type, model: Model, tmp_path: Path
) -> None:
    """Their target sides are empty, and nothing is linked to them; covered words are copied."""
    if kind is PhraseDecoder:
        (tmp_path / "phrases").write_text(PHRASES)
        model = Model(read_phrase_table(tmp_path / "phrases"), model.language_model)
    templates = [RuleId(), RuleShape(), *([WordAlignment()] if kind is PhraseDecoder else [])]
    source = Source(0, SENTENCE.split())
    for unknown, side in (("keep", "xx"), ("drop", "")):
        decoder = kind(model, templates=templates, unknown=unknown)
        (kbest,) = decoder.decode([source], WEIGHTS)
        assert kbest.text(0) == ("the dog ist xx a yy xx" if side else "the dog a")
        feature, value = kbest.row(0)
        row = dict(zip(decoder.features.names(feature), value.tolist(), strict=True))
        assert row[f"rule_id:xx~{side}"] == 2
        assert row.get("rule_shape:T~", 0) == (0 if side else 4)
        assert kind is HieroDecoder or row[f"alignment:xx~{side}"] == 2
        names = decoder.features.names(decoder.feature_ids([source]))
        assert (f"rule_id:xx~{side}" in names) and "rule_id:der~der" in names
        parts = decoder.derivation(source, WEIGHTS).parts
        assert [part.target for part in parts if part.source == "xx"] == [side] * 2


def test_what_is_said(model: Model) -> None:
    decoder = HieroDecoder(model)
    uncovered = Uncovered(decoder)
    uncovered.add([Source(0, ["eine"])])
    assert uncovered.text("keep") is None
    uncovered.add([Source(1, SENTENCE.split())])
    assert uncovered.text("keep") == "4 of 8 words are unknown, and copied: xx, ist, yy"
    assert uncovered.text("drop") == "4 of 8 words are unknown, and dropped: xx, ist, yy"
    assert uncovered.text(None) == "4 of 8 words are in no rule: xx, ist, yy"
    uncovered.add([Source(2, [f"z{i}" for i in range(99)])])
    said = uncovered.text("keep") or ""
    assert said.startswith("103 of 107 words") and said.endswith(", ...") and len(said) < 76


def test_translate(run: Run, tmp_path: Path) -> None:
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
