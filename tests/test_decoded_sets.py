"""Sets of the data that are decoded anew for comparisons and analyses."""

import shutil
from dataclasses import replace

import pytest
import yaml
from commands import example_source, example_target, run_command, train
from omegaconf import OmegaConf
from small_lists import put

from torchtune_smt.core.resources import example_folder
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.features import RuleId, RuleShape, SourceNgram
from torchtune_smt.kbest.lists import Source
from torchtune_smt.metrics.corpus import corpus_bleu
from torchtune_smt.models import load_model

EXAMPLE = example_folder()


@pytest.fixture(scope="module")
def short(run, tmp_path_factory):
    """A run like the first, as if it had been tuned with a limit below the first's sentences."""
    folder = tmp_path_factory.mktemp("short") / "run"
    shutil.copytree(run.folder, folder, ignore=shutil.ignore_patterns("tensorboard"))
    change(folder, "decoder.max_words", 20)
    return folder


def change(folder, option, value):
    """Let a run's folder say that it was given another value of an option."""
    record, config = folder / ".hydra" / "overrides.yaml", folder / "config.yaml"
    record.write_text(yaml.safe_dump([*yaml.safe_load(record.read_text()), f"{option}={value}"]))
    values = OmegaConf.load(config)
    OmegaConf.update(values, option, value)
    OmegaConf.save(values, config)


@pytest.mark.parametrize(
    "arguments", [["compare", "samples=5", "html=page.html"], ["analyse", "explain", "sentence=3"]]
)
def test_a_sentence_that_is_too_long_is_named(run, short, tmp_path, arguments):
    first, second = read_lines(EXAMPLE / "test.de")[:2]
    # Empty lines are left out, and counted.
    source = [first, "", second, "a " * 21, "a " * 20]
    put(tmp_path, {"new.de": source, "new.en": "x\n" * len(source)})
    files = [f"data.test=[{tmp_path / 'new.de'},{tmp_path / 'new.en'}]", "data.empty=skip"]
    command, *options = arguments
    systems = [short, *[run.folder] * (options[0] == "explain")]
    analysis = options[: command == "analyse"]
    given = [*analysis, *systems, "data=example", *files, *options[len(analysis) :]]
    said = f"{tmp_path / 'new.de'}:4: has 21 words, and at most 20 are decoded (decoder.max_words)"
    run_command(command, *given, folder=run.place).refused(said)
    # Those that are not decoded may be.
    if "explain" in options:
        run_command(command, *given, "sentence=1", folder=run.place).check()


# Sentences of the bitext

LONGEST = 8


@pytest.fixture(scope="module")
def on_train(tmp_path_factory):
    """A run that was tuned on a bitext, which lacks some lines of its files."""
    place = tmp_path_factory.mktemp("on_train")
    for language, lines in (("de", example_source("train")), ("en", example_target("train"))):
        put(place, {f"train.{language}": lines[:300]})
    data = [f"data.train=[{place / 'train.de'},{place / 'train.en'}]", "data.tokenize=false"]
    return train(place, "run", *data, f"data.max_length={LONGEST}", "tuner.tune_on=train")


@pytest.fixture(scope="module")
def expected(on_train):
    """What the run's weights make of its training set; True: sentences are left out, as in it."""
    model = load_model(on_train.place / "outputs" / "models" / "example", folds=True)
    model = replace(model, grammar=model.grammar.with_rule_counts())
    weights = FrozenWeights(*read_weights(on_train.weights))
    sides = [read_lines(on_train.place / f"train.{language}") for language in ("de", "en")]
    number, sources = 0, {True: [], False: []}
    for i, (source, target) in enumerate(zip(*sides, strict=True)):
        words = source.split()
        in_bitext = max(len(words), len(target.split())) <= LONGEST
        sources[True].append(Source(i, words, number if in_bitext else -1))
        sources[False].append(Source(i, words))
        number += in_bitext
    assert 0 < number < len(sources[True])
    templates = [RuleId(), SourceNgram(), RuleShape()]
    decoders = {out: HieroDecoder(model, templates=templates, pop_limit=10) for out in sources}
    return {out: list(decoders[out].decode(some, weights, k=1)) for out, some in sources.items()}


def test_sentences_of_the_bitext_are_left_out(on_train, expected):
    references = [[line] for line in read_lines(on_train.place / "train.en")]
    honest, memorised = (
        corpus_bleu([kbest.text(0) for kbest in expected[out]], references).score
        for out in (True, False)
    )
    assert honest < memorised - 5
    options = ["split=train", "samples=5", "metrics=[bleu]", "table=csv"]
    (row,) = run_command("compare", on_train.folder, *options, folder=on_train.place).rows()
    assert float(row["score"]) == pytest.approx(honest)
    # Features that fire.
    options = [on_train.folder, "of=[train,weights]", "table=csv"]
    found = run_command("analyse", "overlap", *options, folder=on_train.place).rows()
    counts = []
    for left_out in (True, False):
        rows = [(kbest.features, *kbest.row(0)) for kbest in expected[left_out]]
        fired = {n for names, ids, values in rows for n in names.names(ids[values != 0])}
        counts.append(sum(name.startswith("rule_id:") for name in fired))
    assert counts[0] != counts[1]
    assert [int(row["|A|"]) for row in found if row["template"] == "rule_id"] == counts[:1]


def test_a_bitext_that_is_no_longer_that_of_the_model(on_train):
    path = on_train.place / "train.en"
    before = path.read_text()
    path.write_text(before.replace(" .", " !"))
    given = [on_train.folder, "split=train", "samples=5"]
    outcome = run_command("compare", *given, folder=path.parent)
    path.write_text(before)
    outcome.refused("it was built from another bitext; put back")


def test_a_model_without_folds_says_that_it_has_seen_the_sentences(on_train, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(on_train.folder, folder, ignore=shutil.ignore_patterns("tensorboard"))
    change(folder, "lm", "full")
    said = "sentences of train are scored by a language model that has seen them\n"
    for split, count in (("train", 1), ("dev", 0)):
        given = [folder / "weights.txt.gz", f"split={split}", "samples=5"]
        outcome = run_command("compare", *given, folder=on_train.place).check()
        assert outcome.err.count(said) == count


def test_a_run_is_used_from_anywhere_and_translating_builds_nothing(run, tmp_path):
    text = f"input={EXAMPLE / 'test.de'}"
    found = run_command("translate", f"weights={run.weights}", text, folder=tmp_path).check()
    assert found.out == (run.folder / "test.translations.txt").read_text("utf-8")
    assert list(tmp_path.iterdir()) == []
    shutil.copytree(run.folder, tmp_path / "alone")
    found = run_command("translate", "weights=alone/weights.txt.gz", text, folder=tmp_path)
    found.refused("build it with build_model")
    assert [path.name for path in tmp_path.iterdir()] == ["alone"]
