"""What can be done with a run that was made with classes of the user's own."""

import importlib
import shutil
import sys

import pytest
from commands import example_source, example_target, run_command, train

from torchtune_smt.core.resources import example_folder

EXAMPLE = example_folder()
MODULES = ["squared_hinge", "rule_length", "dictionary_decoder"]
CONFIG = ["--config-dir", "settings"]
SHORT = ["features=rule_id", "tuner.epochs=1", "threads=2"]
COMMANDS = ["translate", "compare", "explain", "overlap"]


@pytest.fixture(autouse=True)
def fresh_modules():
    """Forget what the process has imported from the current folder, and that it may."""
    path = list(sys.path)
    importlib.invalidate_caches()
    yield
    sys.path[:] = path
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def plain(run, place):
    return train(place, "plain_features", *SHORT)


@pytest.fixture(scope="module")
def written(plain, place, repository):
    """The user's files: those of the examples."""
    examples = repository / "docs" / "examples"
    shutil.copytree(examples / "conf", place / "settings", dirs_exist_ok=True)
    for name in MODULES:
        shutil.copy(examples / f"{name}.py", place)
    (place / "dev.en").write_text((EXAMPLE / "dev.en.0").read_text())
    return place


def do(command, run, plain, *more):
    """Run a command that decodes dev with a run."""
    weights, other, place = str(run.weights), str(plain.weights), run.place
    if command == "translate":
        given = [f"weights={weights}", f"input={EXAMPLE / 'dev.de'}", "threads=2"]
        return run_command("translate", *given, *more, folder=place)
    if command == "compare":
        options = ["split=dev", "metrics=[bleu]", "samples=10"]
        return run_command("compare", weights, other, *options, *more, folder=place)
    options = {"explain": ["split=dev", "sentence=2"], "overlap": ["of=[dev]"]}[command]
    return run_command("analyse", command, weights, other, *options, *more, folder=place)


@pytest.fixture(scope="module")
def featured(written):
    path = list(sys.path)
    run = train(written, "own_features", *SHORT[1:], "features=rule_length", *CONFIG)
    sys.path[:] = path
    sys.modules.pop("rule_length")
    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_a_class_that_decoding_needs(featured, plain, command):
    do(command, featured, plain, *CONFIG).check()
    do(command, featured, plain).refused(
        "there is no features=rule_length; choose of", "--config-dir=FOLDER"
    )


def test_a_class_that_decoding_does_not_need(written, plain):
    run = train(written, "own_loss", *SHORT, "loss=squared_hinge", "loss.width=2", *CONFIG)
    sys.modules.pop("squared_hinge")
    (written / "squared_hinge.py").rename(written / "away.py")
    expected = (run.folder / "dev.translations.txt").read_text()
    outcomes = {command: do(command, run, plain).check() for command in COMMANDS}
    assert outcomes["translate"].out == expected
    (written / "away.py").rename(written / "squared_hinge.py")


def test_what_only_translate_can_be_given(written, plain):
    templates = "features.templates=[{_target_:torchtune_smt.features.RuleId}]"
    run = train(written, "own_templates", templates, *SHORT[1:])
    do("translate", run, plain, templates).check()
    for command in COMMANDS:
        outcome = do(command, run, plain)
        cure = "have `translate` translate with these overrides, and name the file"
        cure = "give these overrides again" if command == "translate" else cure
        outcome.refused("config.yaml: the run has features.templates=[", cure)


def test_decoders_of_the_users_own_are_models_of_their_own(written, plain):
    """No weights say that they belong to one, and what it chose has no score in another one."""
    texts = example_source("train")[:200], example_target("train")[:200]
    sentences = (map(str.split, both) for both in zip(*texts, strict=True))
    pairs = {pair for both in sentences for pair in zip(*both, strict=False)}
    lines = [f"{a} {b} {1 / (1 + len(b))}\n" for a, b in sorted(pairs)]
    (written / "words").write_text("".join(lines))
    common = ["train", *CONFIG, "decoder=dictionary", "decoder.dictionary=words", "init=zero"]
    common += ["tuner.epochs=1", "sampler.threshold=0", "tuner.result=last", "data.test=null"]
    for name, beam in (("own_narrow", 5), ("own_wide", 10), ("own_again", 10)):
        options = [f"decoder.beam={beam}", f"hydra.run.dir={name}"]
        run_command(*common, *options, folder=written).check()
    different = "have different models, and neither scores what the other has chosen"
    for other, said in (("own_narrow", True), ("own_again", False)):
        options = [f"systems={{a:['{other}'],b:[own_wide]}}", "sentence=2", "split=dev", *CONFIG]
        text = run_command("analyse", "explain", *options, folder=written).check().out
        assert (different in text) == said
        assert ("scores its own translation" in text) != said
