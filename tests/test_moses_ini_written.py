"""A moses.ini that is written says what the one before it says, but for the weights."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.models.moses_ini import Feature, MosesIni, read_moses_ini
from torchtune_smt.models.moses_ini_writing import write_moses_ini

SECTIONS = {
    "input-factors": ["0"],
    "mapping": ["0 T 0"],
    "distortion-limit": ["6"],
    "stack": ["200"],
    "cube-pruning-pop-limit": ["70"],
    "weight-file": ["sparse"],
    "feature": [
        "UnknownWordPenalty",
        "WordPenalty",
        "PhrasePenalty",
        "PhraseDictionaryMemory num-features=2 path=/table table-limit=30",
        "LexicalReordering name=R num-features=2 type=monotonicity-backward-fe path=/reordering",
        "Distortion",
        "KENLM name=LM1 path=/lm.arpa",
    ],
    "weight": [
        "UnknownWordPenalty0= 1",
        "WordPenalty0= -1",
        "PhrasePenalty0= 0.2",
        "PhraseDictionaryMemory0= 0.1 0.2",
        "R= 0.3 0.3",
        "Distortion0= 0.3",
        "LM1= 0.5",
    ],
}
BEHIND = ["", " ", "\t", " # words", "# [weight]", "\t# [stack] #"]
BETWEEN = ["", "# words", " # [feature]", "\t#path=a"]


@st.composite
def inis(draw: st.DrawFn) -> str:
    """Its sections in any order, with blanks and comments where they may stand."""
    optional = [name for name in SECTIONS if name not in ("feature", "weight")]
    chosen = ["feature", "weight", *draw(st.lists(st.sampled_from(optional), unique=True))]
    lines = []
    for name in draw(st.permutations(chosen)):
        for line in (f"[{name}]", *SECTIONS[name]):
            before = draw(st.sampled_from(["", " ", "\t"]))
            lines.append(before + line + draw(st.sampled_from(BEHIND)))
            lines += draw(st.lists(st.sampled_from(BETWEEN), max_size=1))
    return "\n".join(lines) + draw(st.sampled_from(["", "\n"]))


def without_lines(ini: MosesIni) -> MosesIni:
    """The same without what tells one file from another."""

    def bare(feature: Feature) -> Feature:
        return replace(feature, line=0)

    assert ini.reordering is not None
    return replace(
        ini,
        path=Path(),
        weights={},
        weight_file=None,
        weight_lines={},
        phrases=bare(ini.phrases),
        language_model=bare(ini.language_model),
        reordering=bare(ini.reordering),
    )


@given(inis(), st.booleans(), st.booleans())
def test_all_but_the_weights_stays(text: str, moved: bool, sparse: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "moses.ini").write_text(text)
        ini = read_moses_ini(folder / "moses.ini")
        weights = {name: 1 / (3 + i) for i, name in enumerate(ini.weights)}
        (folder / "other").mkdir()
        path = folder / "other" / "tuned.ini" if moved else folder / "tuned.ini"
        write_moses_ini(path, ini, weights, "mine" if sparse else None)
        tuned = read_moses_ini(path)
        assert tuned.weights == weights
        assert without_lines(tuned) == without_lines(ini)
        assert tuned.weight_file == (path.parent / "mine" if sparse else None)
        # What is not read is kept as well.
        assert ("0 T 0" in path.read_text()) == ("0 T 0" in text)


@pytest.mark.parametrize("comment", [" # tuned by hand", "\t#[x]", "  "])
def test_a_comment_behind_the_name_of_a_section(tmp_path: Path, comment: str) -> None:
    names = ("feature", "weight", "distortion-limit")
    text = "".join(f"[{name}]{comment}\n" + "\n".join([*SECTIONS[name], ""]) for name in names)
    (tmp_path / "moses.ini").write_text(text)
    ini = read_moses_ini(tmp_path / "moses.ini")
    write_moses_ini(tmp_path / "tuned.ini", ini, {"LM0_0": 9.0})
    assert (tmp_path / "tuned.ini").read_text().count("[weight]") == 1
    tuned = read_moses_ini(tmp_path / "tuned.ini")
    assert tuned.limits == ini.limits == {"distortion_limit": 6, "table_limit": 30}
    assert {name: value for name, value in tuned.weights.items() if value} == {"LM0_0": 9.0}


def test_penalties_that_have_a_weight_are_added(tmp_path: Path) -> None:
    """The decoder has all of them, and so has Moses where [feature] names them."""
    kept = ("PhraseDictionaryMemory", "LexicalReordering", "KENLM", "R=", "LM1=")
    text = "".join(
        f"[{name}]\n" + "".join(f"{line}\n" for line in SECTIONS[name] if line.startswith(kept))
        for name in ("feature", "weight")
    )
    (tmp_path / "moses.ini").write_text(text)
    ini = read_moses_ini(tmp_path / "moses.ini")
    weights = {**dict.fromkeys(ini.weights, 0.5), "PhrasePenalty0_0": 0.25, "Distortion0_0": 0.0}
    weights["UnknownWordPenalty0_0"] = 2.0
    write_moses_ini(tmp_path / "tuned.ini", ini, weights)
    tuned = read_moses_ini(tmp_path / "tuned.ini")
    assert tuned.weights == {name: value for name, value in weights.items() if value}
    assert without_lines(tuned) == without_lines(ini)
    lines = (tmp_path / "tuned.ini").read_text().splitlines()
    assert lines.count("PhrasePenalty") == lines.count("UnknownWordPenalty") == 1
    assert not {"WordPenalty", "Distortion"} & set(lines)
