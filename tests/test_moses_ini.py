"""Moses's configuration files: what is read, what is refused, and what is written."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from commands import run_command
from hypothesis import given
from hypothesis import strategies as st
from small_lists import ON_LISTS, put
from test_grammar_formats import ARPA, PHRASES, REORDERING, TYPE, written

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.decoders.phrase import PhraseDecoder
from torchtune_smt.grammar.file_grammar import NO_LIMIT
from torchtune_smt.kbest.forms import read_lists
from torchtune_smt.models.files import MosesModel
from torchtune_smt.models.moses_ini import read_any_weights, read_moses_ini
from torchtune_smt.models.moses_ini_writing import export_to_ini, write_moses_ini

INI = """\
# A comment
[input-factors]
0
[mapping]
0 T 0
[distortion-limit]
6
[feature]
UnknownWordPenalty
WordPenalty
PhrasePenalty
PhraseDictionaryMemory name=TranslationModel0 num-features=4 path=table.gz table-limit=30
LexicalReordering name=LexicalReordering0 num-features=6 type=wbe-msd-bidirectional-fe-allff \
path=reordering
Distortion
KENLM name=LM1 factor=0 path=lm.arpa order=5
[weight]
UnknownWordPenalty0= 1
WordPenalty0= -1
PhrasePenalty0= 0.2
TranslationModel0= 0.1 0.2 0.3 0.4
LexicalReordering0= 0.3 0.3 0.3 0.3 0.3 0.5
Distortion0= 0.3
LM1= 0.5
[stack]
200
"""
# A chart decoder's model with two language models, and features that nobody here knows.
OTHER = """\
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
NAMED = {"UnknownWordPenalty0_0": 1.0, "TranslationModel0_0": 0.25, "TranslationModel0_1": -0.5}
NAMED |= {"TranslationModel1_0": 1.0, "TargetLM_0": 0.5, "LM_big": 0.125}
NAMED |= {f"OSM_{i}": (i + 1) / 10 for i in range(5)}
NAMED |= {"WT_auf~on": 2.0, "WT_das~the": 0.75, "PP_a~~b": -1.0}
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
IN_DECODER = {"WordPenalty0_0": -1.0, "PhrasePenalty0_0": -0.2, "Distortion0_0": 0.3}
IN_DECODER |= {"TM_x_0": 0.1, "LM0_0": 0.5, "UnknownWordPenalty0_0": 1.0}
DATA = ["data=files", "data.name=x", "data.source_language=de", "data.target_language=en"]


def named(path, *, phrase_decoder=False):
    names, values = read_any_weights(path, phrase_decoder=phrase_decoder)
    return dict(zip(names, values.tolist(), strict=True))


def write_ini(folder, text=OTHER):
    (folder / "sparse").write_text(SPARSE)
    return written(folder / "moses.ini", text)


def test_a_model_and_its_weights(shared, tmp_path):
    ini = read_moses_ini(write_ini(tmp_path, INI))
    assert ini.limits == {"distortion_limit": 6, "stack_size": 200, "table_limit": 30}
    assert ini.file_of(ini.phrases) == tmp_path / "table.gz"
    assert ini.weights["LM0_0"] == 0.5 and len(ini.weights) == 15
    assert [ini.weights[f"TranslationModel0_{i}"] for i in range(4)] == [0.1, 0.2, 0.3, 0.4]
    assert ini.weight_file is None
    path = write_ini(tmp_path)
    assert named(path) == NAMED
    with pytest.raises(InputError, match=r":10: the feature OpSequenceModel is not supported"):
        read_moses_ini(path)
    text = INI.replace("[distortion-limit]\n6", "[distortion-limit]\n-1")
    text = text.replace("-limit=30", "-limit=0").replace(
        "[stack]\n2", "[cube-pruning-pop-limit]\n7"
    )
    limits = {"distortion_limit": -1, "table_limit": NO_LIMIT, "pop_limit": 700}
    assert read_moses_ini(write_ini(tmp_path, text)).limits == limits
    for path in sorted((shared / "oracles" / "moses").glob("*.ini")):
        if "sparse" not in path.name:
            assert len(read_moses_ini(path).weights) == 15


def test_names_are_those_of_the_lists_or_of_the_decoder(tmp_path):
    """In lists, those that a line of Moses's has, however many values features have."""
    path = write_ini(tmp_path)
    row = "UnknownWordPenalty0= 1 TranslationModel0= 1 2 TranslationModel1= 1 TargetLM= 1 LM_big= 1"
    row += " OSM= 1 2 3 4 5 WT_auf~on= 1 WT_das~the= 1 PP_a~~b= 1"
    (tmp_path / "list").write_text(f"0 ||| a ||| {row} ||| 0\n")
    features = read_lists(tmp_path / "list", "moses").lists.features
    assert features is not None and set(features) == named(path).keys()
    # Of several language models nobody can say which one is the decoder's.
    names = named(path, phrase_decoder=True)
    assert {"TargetLM_0", "LM_big_0", "WT_auf~on"} <= names.keys() and "LM0_0" not in names
    path = write_ini(tmp_path, PHRASE_INI)
    assert named(path, phrase_decoder=True) == IN_DECODER == read_moses_ini(path).weights
    in_lists = {name: value for name, value in IN_DECODER.items() if name[0] in "WPD"}
    assert named(path) == in_lists | {"TM_x": 0.1, "TargetLM_0": 0.5}


# What is changed, the line, and what the message has in it.
BAD_MODELS = [
    ("LM1= 0.5\n", "", 15, "LM1 has no weights"),
    ("LM1= 0.5", "LM1= 0.5\nLM2= 0.5", 24, "no LM2"),
    ("0.1 0.2 0.3 0.4", "0.1", 20, "TranslationModel0 has 1 weights, and 4"),
    ("Distortion\n", "Distortion\nGeneration\n", 15, "Generation is not supported"),
    ("Distortion\n", "Distortion\nDistortion\n", 15, "a second Distortion"),
    ("Distortion\n", "Distortion name=D\n", 14, "one not called Distortion0"),
    ("Distortion\n", "Distortion\nLexicalReordering type=msd-forward-f\n", 15, "second reordering"),
    ("Distortion\n", "Distortion x\n", 14, "'x' is no setting"),
    ("type=wbe-msd-", "type=wbe-", 13, "type of a reordering model"),
    ("name=LM1", "name=TranslationModel0", 15, "another feature is called TranslationModel0"),
    ("path=table.gz", "path=table.gz path=b", 12, "stands here twice"),
    ("name=LexicalReordering0", "name=LM0", 13, "is called LM0"),
    ("# A comment", "comment", 1, "stands before the first [section]"),
    ("[distortion-limit]\n6", "[distortion-limit]\n6\n7", 8, "has 2 values"),
    ("[distortion-limit]\n6", "[distortion-limit]\nsix", 7, "'six' is no whole number"),
    ("[input-factors]\n0", "[input-factors]\n0\n1", 4, "only factor 0"),
    ("num-features=4", "output-factor=0,1", 12, "only factor 0"),
    ("factor=0", "factor=1", 15, "only factor 0"),
    ("\n6\n", "\n-2\n", 7, "distortion-limit must be -1 or more, not -2"),
    ("-limit=30", "-limit=-1", 12, "table-limit must be 0 or more, not -1"),
    ("\n200\n", "\n0\n", 25, "stack must be 1 or more, not 0"),
]
BAD_WEIGHTS = [
    ("-0.5", "nan", 15, "no name with finite numbers"),
    ("OSM=", "LM_big=", 19, "LM_big has weights already"),
    ("WT_auf~on", "OSM_4", 20, "OSM_4 has a weight already, in line 19"),
    ("WT_auf~on", "WT_das~the", 20, "WT_das~the has a weight in {folder}/sparse as well"),
    ("[weight-file]", "[weight]", 21, "second [weight] (the first is in line 13)"),
    (OTHER.partition("[weight]")[2], "\n# none\n", 13, "has no weights"),
]


@pytest.mark.parametrize(
    ("text", "old", "new", "line", "message"),
    [(INI, *case) for case in BAD_MODELS] + [(OTHER, *case) for case in BAD_WEIGHTS],
)
def test_bad_lines(tmp_path, text, old, new, line, message):
    assert old in text
    path = write_ini(tmp_path, text.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        read_moses_ini(path) if text is INI else read_any_weights(path)
    assert (error.value.path, error.value.line) == (path, line)
    assert message.format(folder=tmp_path) in str(error.value)


# The model that it names


@pytest.fixture
def files(tmp_path):
    return put(tmp_path, {"table.gz": PHRASES, "reordering": REORDERING, "lm.arpa": ARPA})


def test_the_model_of_a_moses_ini(files):
    ini = written(files / "moses.ini", INI)
    model = MosesModel(str(ini)).open(pytest.fail)
    assert len(model.grammar) == 4
    held, said = INI.replace("PhrasePenalty\n", "PhrasePenalty tuneable=false\n"), []
    MosesModel(str(written(files / "held.ini", held))).open(pytest.fail, report=said.append)
    assert said == [
        f"{files}/held.ini: tuneable=false is not heeded: tuning changes PhrasePenalty0"
    ]
    assert model.grammar_part.name == f"{files / 'table.gz'} with {files / 'reordering'} as {TYPE}"
    # The decoder's limits are those of the file, unless its own options say otherwise.
    decoder = PhraseDecoder(model, stack_size=7)
    assert (decoder.distortion_limit, decoder.table_limit) == (6, 30)
    assert (decoder.stack_size, decoder.pop_limit) == (7, 500)
    with pytest.raises(ValueError, match="scores how phrases are reordered"):
        HieroDecoder(model)
    written(files / "lm.arpa", "mmap lm http://kheafield.com/code format version 5\n")
    with pytest.raises(InputError, match="is a binary of KenLM"):
        MosesModel(str(ini)).open(pytest.fail)


def test_the_text_of_a_binary_table(files):
    """What the file says of the table holds for its text, and its weights for anybody."""
    kind = "ProbingPT"
    (files / "run").mkdir()
    text = INI.replace("PhraseDictionaryMemory", kind)
    ini = put(files, {"text": PHRASES, "moses.ini": text}) / "moses.ini"
    assert "TranslationModel0_3" in named(ini)
    model = MosesModel(str(ini), phrase_table=str(files / "text"))
    opened = model.open(pytest.fail)
    assert opened.grammar.dense_names[:2] == ["TranslationModel0_0", "TranslationModel0_1"]
    assert opened.limits["table_limit"] == 30
    assert model.export(files / "run", tuned_weights({"TranslationModel0_1": 0.75})) is None
    tuned = read_moses_ini(files / "run" / "moses.ini")
    assert (tuned.phrases.kind, tuned.weights["TranslationModel0_1"]) == (kind, 0.75)
    (files / "table.gz").unlink()
    put(files, {"table.gz/probing_hash.dat": b""})
    with pytest.raises(InputError, match=r"is a binary .*gz; name it with model.phrase_table$"):
        MosesModel(str(ini)).open(pytest.fail)
    written(ini, text.replace(kind, f"PhraseDictionaryMemory path=a\n{kind}", 1))
    with pytest.raises(InputError, match=":13: a second"):
        model.open(pytest.fail)


@pytest.mark.parametrize("weights", ["0.1 0.2 0.3", "0.1 0.2 0.3 0.4 0.5"])
def test_weights_for_other_scores_than_those_of_the_table(files, weights):
    """Without num-features= the table says how many there are."""
    text = INI.replace("num-features=4 ", "")
    ini = written(files / "moses.ini", text)
    assert len(MosesModel(str(ini)).open(pytest.fail).grammar) == 4
    written(ini, text.replace("0.1 0.2 0.3 0.4", weights))
    message = f":20: TranslationModel0 has {len(weights.split())} weights, and .* has 4 scores"
    with pytest.raises(InputError, match=message):
        MosesModel(str(ini)).open(pytest.fail)


# What is written

BEHIND = ["", " ", "\t", " # words", "# [weight]", "\t# [stack] #"]
BETWEEN = ["", "# words", " # [feature]", "\t#path=a"]
PLACED = INI.replace("path=", "path=/") + "[cube-pruning-pop-limit]\n70\n[weight-file]\nsparse"
SECTIONS = dict(part.rstrip().split("]\n") for part in PLACED.split("[")[1:])


@st.composite
def inis(draw):
    """Its sections in any order, with blanks and comments where they may stand."""
    optional = [name for name in SECTIONS if name not in ("feature", "weight")]
    chosen = ["feature", "weight", *draw(st.lists(st.sampled_from(optional), unique=True))]
    lines = []
    for name in draw(st.permutations(chosen)):
        for line in (f"[{name}]", *SECTIONS[name].splitlines()):
            before = draw(st.sampled_from(["", " ", "\t"]))
            lines.append(before + line + draw(st.sampled_from(BEHIND)))
            lines += draw(st.lists(st.sampled_from(BETWEEN), max_size=1))
    return "\n".join(lines) + draw(st.sampled_from(["", "\n"]))


def without_lines(ini):
    """The same without what tells one file from another."""
    features = ini.phrases, ini.language_model, ini.reordering
    return ini.limits, [replace(one, line=0) for one in features]


@given(inis(), st.booleans(), st.booleans())
def test_all_but_the_weights_stays(text, moved, sparse):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        ini = read_moses_ini(written(folder / "moses.ini", text))
        weights = {name: 1 / (3 + i) for i, name in enumerate(ini.weights)}
        (folder / "other").mkdir()
        path = folder / "other" / "tuned.ini" if moved else folder / "tuned.ini"
        write_moses_ini(path, ini, weights, "mine" if sparse else None)
        tuned = read_moses_ini(path)
        assert tuned.weights == weights
        # They may be called as in lists.
        in_lists = {"LM1_0" if name == "LM0_0" else name: v for name, v in weights.items()}
        write_moses_ini(path, ini, in_lists, "mine" if sparse else None)
        assert read_moses_ini(path).weights == weights
        assert without_lines(tuned) == without_lines(ini)
        assert tuned.weight_file == (path.parent / "mine" if sparse else None)
        # What is not read is kept as well, and the names of the file.
        assert ("0 T 0" in path.read_text()) == ("0 T 0" in text)
        assert "LM1= " in path.read_text()


def tuned_weights(dense, sparse=()):
    weights, values = Weights(list(dense)), dense | dict(sparse)
    weights.set(list(values), list(values.values()))
    return weights


def test_tuned_weights_in_the_ini_that_they_began_with(tmp_path):
    path, run, phrases = write_ini(tmp_path), tmp_path / "run", tmp_path / "phrases"
    run.mkdir()
    phrases.mkdir()
    dense = {"TargetLM_0": 3.0, "TranslationModel0_1": 0.0, "TranslationModel0_0": 0.1 + 0.2}
    sparse = {"WT_auf~on": -7.0, "WT_das~the": 0.0, "WT_neu~new": 1e-300, "LM_big": 4.0}
    assert export_to_ini(run, path, tuned_weights(dense, sparse)) is None
    text = run / "moses.ini"
    # What the lists do not have keeps its weight, in [weight] and in the file of sparse weights.
    expected = NAMED | dense | sparse
    del expected["WT_das~the"]
    assert named(text) == expected
    before = text.read_text().replace(f"={tmp_path}/", "=").partition("[weight]")[0]
    assert before.startswith(OTHER.partition("[weight]")[0].rstrip())
    # What has no line is not lost in silence.
    more, before = tuned_weights({"TargetLM_0": 3.0, "Distortion0_0": 0.5}), text.read_text()
    note = export_to_ini(run, path, more)
    assert note is not None and "Distortion0_0 has a weight, and [weight] of" in note
    assert text.read_text() == before
    # Without sparse weights.
    path = write_ini(tmp_path, PHRASE_INI)
    assert export_to_ini(phrases, path, tuned_weights({"TargetLM_0": 2.0})) is None
    assert [file.name for file in phrases.iterdir()] == ["moses.ini"]
    assert read_moses_ini(phrases / "moses.ini").weights == IN_DECODER | {"LM0_0": 2.0}


# Commands


def test_tuning_on_lists_starts_from_a_moses_ini(tmp_path):
    write_ini(tmp_path, "[weight]\nTargetLM= 1\nTM0= 0.1 0.01\n[weight-file]\nsparse\n")
    lists = LIST.replace("-8 |||", "-8 WT_das~the= 1 |||")
    put(tmp_path, {"list": lists, "dev.de": "x\n", "dev.en": "a\n"})
    options = [*ON_LISTS, "decoder.dev=list", "data.dev=[dev.de,dev.en]", "optimizer.lr=1e-9"]
    options += ["init=file", "init.file=moses.ini", "tuner.epochs=1", "hydra.run.dir=run"]
    outcome = run_command("train", *options, folder=tmp_path).check()
    assert "1 of 5 weights are left out, as their features, such as PP_a~~b, are" in outcome.out
    assert "  moses.sparse.txt      its sparse weights\n" in outcome.out
    found = named(tmp_path / "run" / "weights.txt.gz")
    rounded = {name: round(value, 6) for name, value in found.items()}
    assert rounded == {"TargetLM_0": 1.0, "TM0_0": 0.1, "TM0_1": 0.01, "WT_das~the": 0.75}
    # With what the lists do not have.
    text = tmp_path / "run" / "moses.ini"
    assert named(text) == found | {"PP_a~~b": -1.0}
    before = text.read_text()
    # From there, in the same folder: it is read at the end, too.
    again = [*options, "init.file=run/moses.ini", "overwrite=true"]
    outcome = run_command("train", *again, folder=tmp_path).check()
    assert "the one that tuning began with is in this folder" in outcome.out
    assert text.read_text() == before
    dense = [*options, "decoder.features=dense", "overwrite=true"]
    outcome = run_command("train", *dense, folder=tmp_path).check()
    assert "decoder.features may leave out features of moses.ini" in outcome.out
    assert not text.exists() and not (tmp_path / "run" / "moses.sparse.txt").exists()
