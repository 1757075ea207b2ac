"""Features of a grammar that are called as some of the decoder's."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtune_smt.core.errors import InputError
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.grammar import read_grammar
from torchtune_smt.lm.model import NgramModel
from torchtune_smt.models.base import Model

ARPA = "\\data\\\nngram 1=3\n\n\\1-grams:\n-1 <s>\n-1 </s>\n-2 <unk>\n\n\\end\\\n"
RULES = """\
[X] ||| ein haus ||| a house ||| EgivenF=-0.3 FgivenE=-1.2
[X] ||| haus ||| home ||| New=1 EgivenF=-0.1
[X] ||| [X,1] haus ||| house [X,1] ||| EgivenF=-0.1 Glue=1
"""


@pytest.fixture
def language_model(tmp_path: Path) -> NgramModel:
    (tmp_path / "lm.arpa").write_text(ARPA)
    return NgramModel.load(tmp_path / "lm.arpa", may_write=False)


def test_the_line_that_names_it_first(tmp_path: Path, language_model: NgramModel) -> None:
    path = tmp_path / "grammar"
    path.write_text(RULES)
    with pytest.raises(InputError) as error:
        HieroDecoder(Model(read_grammar(path), language_model))
    assert str(error.value) == (
        f"{path}:3: the grammar has a feature Glue, and the decoder counts one of this name itself "
        "(LanguageModel, LanguageModel_OOV, WordPenalty, PassThrough, Glue); leave it out of the "
        "grammar, or give it another name"
    )


def test_places_of_features(tmp_path: Path) -> None:
    (tmp_path / "grammar").write_text(RULES)
    places = read_grammar(tmp_path / "grammar").feature_places
    assert {name: line for name, (_, line) in places.items()} == {
        "EgivenF": 1,
        "FgivenE": 1,
        "New": 2,
        "Glue": 3,
    }
    assert {path for path, _ in places.values()} == {tmp_path / "grammar"}


def test_a_grammar_of_no_file(tmp_path: Path, language_model: NgramModel) -> None:
    (tmp_path / "grammar").write_text(RULES.replace("Glue", "Other"))
    grammar = read_grammar(tmp_path / "grammar")
    grammar.dense_names = ["LanguageModel", *grammar.dense_names[1:]]
    with pytest.raises(InputError, match=r"^the grammar has a feature LanguageModel, and the"):
        HieroDecoder(Model(grammar, language_model))
