"""The weights of a moses.ini, whatever model they are of."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import run_command

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.kbest_files import KBestFiles
from torchtune_smt.kbest.formats import read_lists
from torchtune_smt.models.moses_ini import read_any_weights, read_moses_ini
from torchtune_smt.models.moses_ini_writing import export_to_ini, write_moses_ini

# A chart decoder's model with two language models, and features that nobody here knows.
INI = """\
[input-factors]
0
1
[feature]
UnknownWordPenalty
PhraseDictionaryMemory name=TranslationModel0 num-features=2 path=rules
PhraseDictionaryMemory name=TranslationModel1 num-features=1 path=glue tuneable=true
KENLM name=TargetLM path=lm.bin order=5
KENLM name=LM_big path=big.bin order=5
OpSequenceModel name=OSM num-features=5 path=osm.bin
WordTranslationFeature name=WT simple=1
Odd without settings
[weight]
UnknownWordPenalty0= 1
TranslationModel0= 0.25 -0.5
TranslationModel1= 1.0 # glue
TargetLM = 0.5
LM_big= 0.125
OSM=0.1 0.2 0.3 0.4 0.5
WT_auf~on= 2
[weight-file]
sparse
"""
SPARSE = "# sparse\nWT_das~the 0.75\nPP_a~~b -1\n"
NAMED = {
    "UnknownWordPenalty0_0": 1.0,
    "TranslationModel0_0": 0.25,
    "TranslationModel0_1": -0.5,
    "TranslationModel1_0": 1.0,
    "TargetLM_0": 0.5,
    "LM_big": 0.125,
    **{f"OSM_{i}": (i + 1) / 10 for i in range(5)},
    "WT_auf~on": 2.0,
    "WT_das~the": 0.75,
    "PP_a~~b": -1.0,
}
# What the language model prefers is not what the phrase table does.
LIST = """\
0 ||| a ||| TargetLM= -1 LM_big= -1 TM0= -2 -8 ||| 0
0 ||| b ||| TargetLM= -5 LM_big= -1 TM0= -2 -1 ||| 0
"""
PHRASE_INI = """\
[feature]
UnknownWordPenalty
WordPenalty
PhrasePenalty
PhraseDictionaryMemory name=TM_x num-features=1 path=table
Distortion
KENLM name=TargetLM path=lm.arpa
[weight]
WordPenalty0= -1
PhrasePenalty0= -0.2
TM_x= 0.1
Distortion0= 0.3
TargetLM= 0.5
"""
IN_DECODER = {
    "WordPenalty0_0": -1.0,
    "PhrasePenalty0_0": -0.2,
    "TM_x_0": 0.1,
    "Distortion0_0": 0.3,
    "LM0_0": 0.5,
    "UnknownWordPenalty0_0": 1.0,
}
ARPA = "\\data\\\nngram 1=3\n\n\\1-grams:\n-1 <s>\n-1 </s>\n-2 <unk>\n\n\\end\\\n"
DATA = ["data=files", "data.name=x", "data.source_language=de", "data.target_language=en"]


def named(path: Path, *, phrase_decoder: bool = False) -> dict[str, float]:
    names, values = read_any_weights(path, phrase_decoder=phrase_decoder)
    return dict(zip(names, values.tolist(), strict=True))


def write_ini(folder: Path, text: str = INI) -> Path:
    (folder / "sparse").write_text(SPARSE)
    path = folder / "moses.ini"
    path.write_text(text)
    return path


def test_weights_of_a_model_that_is_not_supported(tmp_path: Path) -> None:
    path = write_ini(tmp_path)
    assert named(path) == NAMED
    with pytest.raises(InputError, match=r":10: the feature OpSequenceModel is not supported"):
        read_moses_ini(path)


def test_names_are_those_of_the_lists(tmp_path: Path) -> None:
    """Those that a line of Moses's with these features has, however many values they have."""
    write_ini(tmp_path)
    row = "UnknownWordPenalty0= 1 TranslationModel0= 1 2 TranslationModel1= 1 TargetLM= 1 LM_big= 1"
    row += " OSM= 1 2 3 4 5 WT_auf~on= 1 WT_das~the= 1 PP_a~~b= 1"
    (tmp_path / "list").write_text(f"0 ||| a ||| {row} ||| 0\n")
    features = read_lists(tmp_path / "list", "moses").lists.features
    assert features is not None
    assert set(features) == named(tmp_path / "moses.ini").keys()


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("-0.5", "x", 15, "'x' is no finite number"),
        ("-0.5", "nan", 15, "'nan' is no finite number"),
        ("TargetLM = 0.5", "TargetLM =", 17, "has no weights; write `Name= 0.5`"),
        ("TargetLM = 0.5", "TargetLM 0.5", 17, "has no weights; write `Name= 0.5`"),
        ("TargetLM = 0.5", "= 0.5", 17, "has no name; write `Name= 0.5`"),
        ("OSM=", "LM_big=", 19, "LM_big has weights already; remove one line"),
        ("WT_auf~on", "OSM_4", 20, "OSM_4 has a weight already, in line 19; remove one of them"),
        ("WT_auf~on", "WT_das~the", 20, "WT_das~the has a weight in {folder}/sparse as well; rem"),
        ("\nsparse", "\nother", 22, "there is no file {folder}/other; put it there, or name the"),
        ("\nsparse", "", 21, "[weight-file] is empty; write its value in the next line"),
        ("[weight-file]", "[weight]", 21, "a second [weight] (the first is in line 13)"),
    ],
)
def test_bad_weights(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    assert old in INI
    path = write_ini(tmp_path, INI.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        read_any_weights(path)
    assert str(error.value).startswith(f"{path}:{line}: {message.format(folder=tmp_path)}")


def test_no_weights(tmp_path: Path) -> None:
    head = INI.partition("[weight]")[0]
    path = write_ini(tmp_path, head)
    with pytest.raises(InputError) as error:
        read_any_weights(path)
    assert str(error.value).startswith(f"{path}: has no section [weight]; add it")
    path = write_ini(tmp_path, head + "[weight]\n# none\n")
    with pytest.raises(InputError) as error:
        read_any_weights(path)
    assert str(error.value).startswith(f"{path}:13: [weight] is empty; write a line")
    (tmp_path / "sparse").write_text("WT_das~the 1\nWT_die~the x\n")
    path.write_text(INI)
    with pytest.raises(InputError, match=r"sparse:2: has a value that is no finite number"):
        read_any_weights(path)


def test_names_in_the_phrase_decoder(tmp_path: Path) -> None:
    """They are those of its model, which knows the language model as LM0."""
    path = write_ini(tmp_path, PHRASE_INI)
    assert named(path, phrase_decoder=True) == IN_DECODER == read_moses_ini(path).weights
    in_lists = {name: value for name, value in IN_DECODER.items() if name[0] in "WPD"}
    assert named(path) == in_lists | {"TM_x": 0.1, "TargetLM_0": 0.5}
    # Of several language models nobody can say which one it is.
    names = named(write_ini(tmp_path), phrase_decoder=True)
    assert {"TargetLM_0", "LM_big_0", "WT_auf~on"} <= names.keys() and "LM0_0" not in names


def test_moses_ranks_as_rerank_does(tmp_path: Path) -> None:
    """Its language model, by a name of its own, decides between these two."""
    text = "[feature]\nKENLM name=TargetLM path=lm\n[weight]\nTargetLM= 1\nTM0= 0.1 0.01\n"
    write_ini(tmp_path, text)
    (tmp_path / "list").write_text(LIST)
    outcome = run_command("rerank", "weights=moses.ini", "input=list", folder=tmp_path).check()
    assert (outcome.out, outcome.err) == ("a\n", "")
    write_ini(tmp_path, text + "LM_big= 1\n")
    outcome = run_command("rerank", "weights=moses.ini", "input=list", folder=tmp_path).check()
    assert (outcome.out, outcome.err) == ("a\n", "")


def test_tuning_on_lists_starts_from_a_moses_ini(tmp_path: Path) -> None:
    write_ini(tmp_path, "[weight]\nTargetLM= 1\nTM0= 0.1 0.01\n[weight-file]\nsparse\n")
    (tmp_path / "list").write_text(LIST.replace("-8 |||", "-8 WT_das~the= 1 |||"))
    (tmp_path / "dev.de").write_text("x\n")
    (tmp_path / "dev.en").write_text("a\n")
    options = [*DATA, "decoder=kbest_files", "decoder.dev=list", "data.dev=[dev.de,dev.en]"]
    options += ["init=file", "init.file=moses.ini", "tuner.epochs=1", "hydra.run.dir=run"]
    options += ["data.train=null", "data.test=null", "optimizer.lr=1e-9"]
    outcome = run_command("train", *options, folder=tmp_path).check()
    assert "1 of 5 weights are left out, as their features, such as PP_a~~b, are" in outcome.out
    assert "  moses.sparse.txt      its sparse weights\n" in outcome.out
    found = named(tmp_path / "run" / "weights.txt.gz")
    assert {name: round(value, 6) for name, value in found.items()} == {
        "TargetLM_0": 1.0,
        "TM0_0": 0.1,
        "TM0_1": 0.01,
        "WT_das~the": 0.75,
    }
    # With what the lists do not have.
    written = tmp_path / "run" / "moses.ini"
    assert named(written) == found | {"PP_a~~b": -1.0}
    # From there, in the same folder: it is read at the end, too.
    again = [*options, "init.file=run/moses.ini", "overwrite=true"]
    before = named(written)
    outcome = run_command("train", *again, folder=tmp_path).check()
    assert "the one that tuning began with is in this folder" in outcome.out
    assert named(written) == before
    outcome = run_command(
        "train", *options, "decoder.features=dense", "overwrite=true", folder=tmp_path
    )
    assert "decoder.features may leave out features of moses.ini" in outcome.check().out
    assert not written.exists() and not (tmp_path / "run" / "moses.sparse.txt").exists()


def test_translating_with_a_language_model_of_another_name(tmp_path: Path) -> None:
    write_ini(tmp_path, PHRASE_INI)
    (tmp_path / "table").write_text("ein haus ||| a house ||| 0.5\nhaus ||| home ||| 0.5\n")
    (tmp_path / "lm.arpa").write_text(ARPA)
    (tmp_path / "dev.de").write_text("ein haus\nhaus ein haus\n")
    (tmp_path / "dev.en").write_text("a house\nhome a house\n")
    options = [*DATA, "decoder=phrase", "model=moses", "model.ini=moses.ini"]
    translate = [*options, "input=dev.de", "n_best=1", "weights=moses.ini"]
    outcome = run_command("translate", *translate, folder=tmp_path).check()
    assert "left out" not in outcome.err
    row = outcome.out.splitlines()[0].split(" ||| ")
    values = {name: float(value) for name, value in (pair.split("=") for pair in row[2].split())}
    total = sum(IN_DECODER.get(name, 0.0) * value for name, value in values.items())
    assert float(row[3]) == pytest.approx(total) and values["LM0_0"] != 0
    train = [*options, "init=file", "init.file=moses.ini", "data.dev=[dev.de,dev.en]"]
    train += ["data.test=null", "tuner.epochs=1", "features=dense", "hydra.run.dir=run"]
    outcome = run_command("train", *train, folder=tmp_path).check()
    assert "left out" not in outcome.out
    # And back: what the run writes has the weights, by the names of the file.
    tuned = named(tmp_path / "run" / "weights.txt.gz")
    written = named(tmp_path / "run" / "moses.ini", phrase_decoder=True)
    assert {name: value for name, value in written.items() if value} == tuned
    assert tuned["LM0_0"] == named(tmp_path / "run" / "moses.ini")["TargetLM_0"]


def test_weights_of_lists_are_written(tmp_path: Path) -> None:
    """By the names that lists have, as well as by those of the decoder."""
    ini = read_moses_ini(write_ini(tmp_path, PHRASE_INI))
    for language_model, phrases in (("TargetLM_0", "TM_x"), ("LM0_0", "TM_x_0")):
        write_moses_ini(tmp_path / "tuned.ini", ini, {language_model: 3.0, phrases: 2.0})
        tuned = read_moses_ini(tmp_path / "tuned.ini").weights
        assert {n: v for n, v in tuned.items() if v} == {"LM0_0": 3.0, "TM_x_0": 2.0}


def tuned_weights(dense: dict[str, float], sparse: dict[str, float]) -> Weights:
    weights = Weights(list(dense))
    named = dense | sparse
    weights.set(list(named), list(named.values()))
    return weights


def test_tuned_weights_in_the_ini_that_they_began_with(tmp_path: Path) -> None:
    path = write_ini(tmp_path)
    (tmp_path / "run").mkdir()
    dense = {"TargetLM_0": 3.0, "TranslationModel0_1": 0.0, "TranslationModel0_0": 0.1 + 0.2}
    sparse = {"WT_auf~on": -7.0, "WT_das~the": 0.0, "WT_neu~new": 1e-300, "LM_big": 4.0}
    assert export_to_ini(tmp_path / "run", path, tuned_weights(dense, sparse)) is None
    written = tmp_path / "run" / "moses.ini"
    # What the lists do not have keeps its weight, in [weight] and in the file of sparse weights.
    expected = NAMED | dense | sparse
    del expected["WT_das~the"]
    assert named(written) == expected
    others = [text.partition("[weight]")[0].split("\n") for text in (INI, written.read_text())]
    assert [line.replace(f"={tmp_path}/", "=") for line in others[1]][: len(others[0]) - 1] == (
        others[0][:-1]
    )
    # And again, from what was written.
    (tmp_path / "next").mkdir()
    assert export_to_ini(tmp_path / "next", written, tuned_weights(dense, sparse)) is None
    assert named(tmp_path / "next" / "moses.ini") == expected


def test_ini_without_sparse_weights(tmp_path: Path) -> None:
    path = write_ini(tmp_path, PHRASE_INI)
    (tmp_path / "run").mkdir()
    assert export_to_ini(tmp_path / "run", path, tuned_weights({"TargetLM_0": 2.0}, {})) is None
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == ["moses.ini"]
    written = tmp_path / "run" / "moses.ini"
    assert read_moses_ini(written).weights == IN_DECODER | {"LM0_0": 2.0}


def test_weights_that_the_ini_has_no_line_for(tmp_path: Path) -> None:
    path = write_ini(tmp_path)
    (tmp_path / "run").mkdir()
    more = tuned_weights({"TargetLM_0": 3.0, "Distortion0_0": 0.5}, {})
    note = export_to_ini(tmp_path / "run", path, more)
    assert note == (
        f"no moses.ini is written: Distortion0_0 has a weight, and [weight] of {path} has no line "
        "for it"
    )
    note = export_to_ini(tmp_path, path, tuned_weights({"TargetLM_0": 3.0}, {}))
    assert note == "no moses.ini is written: the one that tuning began with is in this folder"
    assert path.read_text() == INI and not list((tmp_path / "run").iterdir())


def test_totals_of_moses_with_sparse_features(shared: Path, tmp_path: Path) -> None:
    folder = shared / "oracles" / "moses"
    shutil.copy(folder / "moses.sparse.tuned.best-dev.ini", tmp_path / "moses.ini")
    shutil.copy(folder / "sparse-weights.txt", tmp_path / "run4.sparse-weights")
    decoder = KBestFiles(unique=False)
    stored = decoder.read("dev", [folder / "dev.100best.sparse.gz"], for_tuning=True)
    weights = Weights(decoder.dense_names)
    start = named(tmp_path / "moses.ini")
    assert len(start) > 1000
    weights.set(list(start), list(start.values()))
    assert stored.lists.score is not None and stored.lists.entry is not None
    for kbest in decoder.decode(decoder.sources("dev")[:100], weights):
        totals = stored.lists.score[np.searchsorted(stored.lists.entry, kbest.entry)]
        # 100 for each unknown word is in the total, but not among the features.
        rest = kbest.score - totals
        assert np.abs(rest - 100 * np.round(rest / 100)).max() < 1.5e-3
