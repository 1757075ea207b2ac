"""The commands with the phrase-based decoder, on the bundled example and a tiny moses.ini."""

import pytest
from commands import run_command, train_until_saved
from hydra import compose, initialize_config_dir
from phrase_reference import OWN
from small_lists import put, weights_of
from test_grammar_formats import ARPA
from test_moses_ini import DATA, PHRASE_INI

from torchtune_smt.core.archive import file_checksum
from torchtune_smt.core.resources import example_folder
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.weights_io import Part, short
from torchtune_smt.decoders.phrase import PhraseDecoder
from torchtune_smt.features.templates import template_of
from torchtune_smt.models import MosesModel, load_model
from torchtune_smt.models.moses_ini import read_moses_ini

# The published strength leaves hardly any of the features of so short a run.
SHORT = ["tuner.epochs=1", "tuner.sentences=40", "tuner.result=last", "decoder.pop_limit=20"]
SHORT += ["regularizer.strength=0.001", "decoder.k=20"]
DENSE = [*(f"TranslationModel0_{i}" for i in range(4)), "LogRuleCount", "UniqueRule"]
DENSE += [*(f"LexicalReordering0_{i}" for i in range(8)), *OWN]


def templates_of(run):
    return {template_of(name) for name in weights_of(run / "weights.txt.gz").keys() - DENSE}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A folder with a short run of the published experiment."""
    place = tmp_path_factory.mktemp("phrases")
    outcome = run_command(
        "train", "experiment=green2013", *SHORT, "hydra.run.dir=run", folder=place
    )
    assert "extracted" in outcome.check().out
    return place


def test_the_published_experiment(tuned):
    decoder = PhraseDecoder(load_model(tuned / "outputs" / "models" / "example-phrase"))
    assert decoder.dense_names == DENSE and len(DENSE) == 19
    assert templates_of(tuned / "run") == {"rule_id", "alignment", "lex_reordering"}
    text = str(example_folder() / "dev.de")
    options = ["weights=run/weights.txt.gz", f"input={text}", "output=out"]
    run_command("translate", *options, folder=tuned).check()
    translations = read_lines(tuned / "out")
    assert len(translations) == len(read_lines(text))
    assert translations == read_lines(tuned / "run" / "dev.translations.txt")


@pytest.mark.parametrize(
    ("options", "model", "features"),
    [
        ("", "phrase", "green2013_phrase"),
        ("decoder=phrase", "phrase", "green2013_phrase"),
        ("decoder=hiero", "hiero", "green2013_hiero"),
        ("decoder=joint", "joint", "green2013_joint"),
        ("decoder=hiero model=files", "files", "green2013_hiero"),
        ("decoder=kbest_files features=dense", "hiero", "dense"),
    ],
)
def test_what_follows_the_decoder(options, model, features, repository):
    """With another decoder behind it, the experiment is that of another kind of system."""
    with initialize_config_dir(str(repository / "conf"), version_base="1.3"):
        given = ["experiment=green2013", *options.split()]
        composed = compose("train", given, return_hydra_config=True)
    choices = composed.hydra.runtime.choices
    assert (choices.model, choices.features) == (model, features)
    assert composed.optimizer.lr == 0.02 and composed.tuner.batch_size == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("decoder=phrase model=hiero", "has rules with gaps; take model=phrase or model=moses"),
        ("model=moses model.ini=none", "has phrase pairs; take model=hiero, or decoder"),
        ("model=joint", "take model=hiero, or decoder=phrase"),
    ],
)
def test_a_model_of_another_decoder_is_refused(options, message, tmp_path):
    """Before it is built or read."""
    run_command("train", *options.split(), "hydra.run.dir=bad", folder=tmp_path).refused(message)
    assert not (tmp_path / "bad").exists() and not (tmp_path / "outputs").exists()


INI = PHRASE_INI.replace("TM_x", "TranslationModel0").replace("TargetLM", "LM0")
INI = f"[distortion-limit]\n4\n{INI}"


@pytest.fixture
def moses(tmp_path):
    put(tmp_path, {"table": ["ein haus ||| a house ||| 0.5", "haus ||| home ||| 0.5"]})
    put(tmp_path, {"dev.de": ["ein haus", "haus ein haus"], "dev.en": ["a house", "home a house"]})
    return put(tmp_path, {"lm.arpa": ARPA, "moses.ini": INI})


MOSES = [*DATA, "decoder=phrase", "model=moses", "model.ini=moses.ini"]
TRAIN = [*MOSES, "init=file", "init.file=moses.ini", "data.dev=[dev.de,dev.en]", "data.test=null"]
TRAIN += ["tuner.epochs=1", "features=dense", "hydra.run.dir=run"]


def test_features_that_moses_does_not_know(moses):
    """Their weights cannot be in a moses.ini, and none is written without them."""
    options = [*TRAIN, "init.file=start", "features=rule_id"]
    (moses / "start").write_text("LM0_0 0.5\nrule_id:haus~home 0.1\n")
    outcome = run_command("train", *options, folder=moses).check()
    assert "1 features with a weight, such as rule_id:haus~home, are none of Moses's" in outcome.out
    assert not (moses / "run" / "moses.ini").exists()


WITHOUT = "".join(
    line for line in INI.splitlines(True) if not line.startswith(("PhrasePenalty", "Distortion"))
)


@pytest.mark.parametrize(
    ("text", "start"), [(INI, ["init=file", "init.file=moses.ini"]), (WITHOUT, ["init=moses"])]
)
def test_tuning_from_a_moses_ini(moses, text, start):
    """The run has a moses.ini with its weights, also those that the model does not name."""
    (moses / "moses.ini").write_text(text)
    options = [option for option in TRAIN if not option.startswith("init")] + start
    outcome = run_command("train", *options, folder=moses).check()
    assert "no moses.ini is written" not in outcome.out
    found = weights_of(moses / "run" / "weights.txt.gz")
    assert {"PhrasePenalty0_0", "Distortion0_0"} <= found.keys()
    tuned = read_moses_ini(moses / "run" / "moses.ini")
    assert {name: value for name, value in tuned.weights.items() if value != 0} == found
    assert tuned.limits == {"distortion_limit": 4}
    given = [*MOSES, "model.ini=run/moses.ini", "weights=run/moses.ini", "input=dev.de"]
    outcome = run_command("translate", *given, folder=moses).check()
    assert outcome.out.splitlines() == read_lines(moses / "run" / "dev.translations.txt")
    (moses / "moses.ini").write_text(text.replace("LM0= 0.5", ""))
    run_command("train", *options, "overwrite=true", folder=moses).refused(
        "the feature LM0 has no weights"
    )


# The names of the features are those that Moses gives where there is no name=.
NAMELESS = INI.replace("name=TranslationModel0 ", "").replace(
    "TranslationModel0", "PhraseDictionaryMemory0"
)


def test_start_values_for_a_part_of_the_dense_features(moses):
    (moses / "moses.ini").write_text(NAMELESS)
    options = [*MOSES, "data.dev=[dev.de,dev.en]", "data.test=null", "tuner.epochs=1"]
    options += ["features=dense", "overwrite=true", "hydra.run.dir=part"]
    told = "init.values has no weight for 1 of 6 dense features, such as PhraseDictionaryMemory0_0"
    more = "+init.values.PhraseDictionaryMemory0_0=0.2"
    for start, is_told in ((["init=moses"], True), (["init=moses", more], False)):
        outcome = run_command("train", *options, *start, folder=moses).check()
        assert (told in outcome.out) == is_told == ("init.values has no weight" in outcome.out)


# What weights belong to: tables, their type, and on resuming limits

TYPE = "hier-monotonicity-backward-fe-allff"
REORDERING = f"LexicalReordering name=LexicalReordering0 num-features=2 type={TYPE} path=reordering"
ORDERED = INI.replace("Distortion\n", f"{REORDERING}\nDistortion\n").replace(
    "Distortion0=", "LexicalReordering0= 1 1\nDistortion0="
)


@pytest.fixture
def ordered(moses):
    for name, score in (("reordering", "0.9 0.1"), ("other", "0.5 0.1")):
        put(moses, {name: [f"ein haus ||| a house ||| {score}", f"haus ||| home ||| {score}"]})
    (moses / "moses.ini").write_text(ORDERED)
    return moses


def part_of(folder, ini=ORDERED, reordering=None):
    (folder / "moses.ini").write_text(ini)
    given = None if reordering is None else str(folder / reordering)
    source = MosesModel(str(folder / "moses.ini"), reordering_table=given)
    return source.open(pytest.fail).grammar_part


def test_the_reordering_model_belongs_to_it(ordered):
    def digest(kind):
        return part_of(ordered, ORDERED.replace(TYPE, kind)).digest

    own = part_of(ordered)
    assert own.name == f"{ordered / 'table'} with {ordered / 'reordering'} as {TYPE}"
    others = [digest("wbe-monotonicity-backward-fe"), digest("hier-monotonicity-forward-fe")]
    others.append(part_of(ordered, reordering="other").digest)
    # Two names of one type.
    assert digest("monotonicity-backward-fe") == others[0]
    lines = [line for line in ORDERED.splitlines(True) if not line.startswith("LexicalReordering")]
    alone = Part(str(ordered / "table"), short(file_checksum(ordered / "table")))
    assert part_of(ordered, "".join(lines)) == alone
    (ordered / "table").write_text("ein haus ||| a house ||| 0.25\nhaus ||| home ||| 0.5\n")
    assert own.digest not in [*others, part_of(ordered).digest]


def test_a_model_that_has_changed_is_not_resumed(ordered):
    """What moses.ini says of a limit that an option gives has no effect."""
    train_until_saved(ordered, *TRAIN, "tuner.epochs=2", "decoder.distortion_limit=3")
    stack = ORDERED.replace("[feature]", "[stack]\n9\n[feature]")
    for text, message in (
        (ORDERED.replace("hier-", "wbe-"), "is of a run with grammar = "),
        (stack, "is of a run with stack_size of the model = None, and now it is 9"),
    ):
        assert text != ORDERED
        (ordered / "moses.ini").write_text(text)
        run_command("train", "resume=run", folder=ordered).refused(message)
    (ordered / "moses.ini").write_text(ORDERED.replace("-limit]\n4", "-limit]\n5"))
    run_command("train", "resume=run", folder=ordered).check()
