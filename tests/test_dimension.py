"""OSCAR's d: what is counted, of which sentences; and that test has no part in tuning."""

import numpy as np
import pytest
from commands import MODEL, metrics, run_command, write_few
from small_lists import ON_LISTS, put

from torchtune_smt.core.resources import example_folder
from torchtune_smt.kbest.store import ListStore

EXAMPLE = example_folder()
SMALL = ["decoder.k=20", "decoder.pop_limit=10", "data.dev=[dev.de,dev.en]"]
ONLINE = ["tuner.epochs=2"]
OSCAR = ["regularizer=oscar", "optimizer=fobos_oscar", "regularizer.lambda2=1e-6", *ONLINE]
BATCH = ["tuner.iterations=2"]
GROUPING = ["tuner=grouping", "features=rule_id", "tuner.sentences=40", "tuner.passes=5", *BATCH]
TRAIN = ["tuner.tune_on=train", "tuner.sentences=40"]


def run(place, name, *options):
    write_few(place)
    return run_command("train", *MODEL, *SMALL, *options, f"hydra.run.dir={name}", folder=place)


def dimensions(folder):
    """Each d that was logged."""
    return [line["oscar/dimension"] for line in metrics(folder) if "oscar/dimension" in line]


# A set that is only evaluated

TUNERS = {
    "stochastic_oscar": ["tuner=stochastic", *TRAIN, *OSCAR[:3], "loss=hinge", *BATCH],
    "grouping_charts": [*GROUPING, "regularizer.dimension=charts"],
}


@pytest.mark.parametrize("tuner", TUNERS)
def test_weights_do_not_depend_on_test(tuner, place):
    names = [f"{tuner}_with", f"{tuner}_without"]
    options = TUNERS[tuner]
    out = run(place, names[0], *options, "tuner.result=last").check().out
    run(place, names[1], *options, "tuner.result=last", "data.test=null", "threads=1").check()
    assert "test BLEU" in out
    for file in ("weights.txt.gz", "dev.translations.txt"):
        one, other = ((place / name / file).read_bytes() for name in names)
        assert one == other
    found = dimensions(place / names[0])
    assert found == dimensions(place / names[1]) != []
    assert all(f"d = {d:,}" in out for d in found)


def test_charts_of_the_sentences_tuned_on(place):
    """Other sets make no difference, others to tune on do."""
    other = f"data.dev=[{EXAMPLE}/test.de,{EXAMPLE}/test.en.0]"
    settings = {
        "charts": [*TRAIN],
        "charts_dev": [*TRAIN, other],
        "charts_more": ["tuner.tune_on=train", "tuner.sentences=200"],
        "charts_on_dev": [],
    }
    found = {}
    for name, options in settings.items():
        run(place, name, *OSCAR, *options, "tuner.epochs=1", "features=rule_id").check()
        (found[name],) = dimensions(place / name)
    assert found["charts"] == found["charts_dev"]
    assert found["charts"] < found["charts_more"] != found["charts_on_dev"]
    # With the dense features, if these are regularised.
    more = ["optimizer.regularize_dense=true", "tuner.epochs=1", "features=rule_id"]
    run(place, "charts_dense", *OSCAR, *more).check()
    assert dimensions(place / "charts_dense") == [found["charts_on_dev"] + 12]


def test_features_in_lists(place):
    run(place, "in_lists", *GROUPING, "tuner.keep_lists=true", "tuner.result=last").check()
    lists = ListStore.open(place / "in_lists" / "lists" / "learning", n_dense=12)
    after = lists.features().size
    lists.truncate(1)
    assert dimensions(place / "in_lists") == [lists.features().size, after]
    run(place, "in_charts", *GROUPING, "regularizer.dimension=charts").check()
    first, second = dimensions(place / "in_charts")
    assert first == second > 3 * after


def test_features_with_a_weight_count(place, tmp_path):
    start = tmp_path / "start.txt"
    start.write_text("EgivenF 0.1\nLanguageModel 0.1\nrule_id:qq~qq 0.1\nrule_id:rr~rr 0.1\n")
    options = [*OSCAR, "features=rule_id", "tuner.epochs=1"]
    given = ["init=file", f"init.file={start}"]
    for name, more in {"no_start": [], "a_start": given}.items():
        run(place, name, *options, *more).check()
    assert dimensions(place / "a_start")[0] == dimensions(place / "no_start")[0] + 2
    small = run(place, "small", *options, *given, "regularizer.dimension=1")
    small.refused("number of regularised features that have a weight already, 2: their")
    unknown = run(place, "bad", *OSCAR, "regularizer.dimension=lists")
    unknown.refused("lists are not known beforehand")


@pytest.mark.parametrize("tuner", ["online", "grouping"])
def test_stored_lists(tuner, tmp_path):
    """The features in dev's lists, and none of test's."""
    rng = np.random.default_rng(0)
    for name, sentences in {"dev": 20, "test": 20}.items():
        lines, words = [], [f"w{i}" for i in range(8)]
        for sentence in range(sentences):
            for entry in range(6):
                guess = " ".join(rng.permutation(words)[: 3 + entry])
                ids = f"id_{name}{rng.integers(9)}= 1 id_both{rng.integers(4)}= 1"
                lines.append(f"{sentence} ||| {guess} ||| LM= {rng.normal():.3f} {ids} ||| 0\n")
        put(tmp_path, {name: "".join(lines), f"{name}.de": "ja\n" * sentences})
        put(tmp_path, {f"{name}.en": "w0 w1 w2 w3 w4 w5\n" * sentences})
    ways = {"online": OSCAR, "grouping": ["tuner=grouping", "tuner.tune_on=dev", *BATCH]}
    options = [*ON_LISTS, "data.dev=[dev.de,dev.en]", "decoder.dev=dev", "init=zero", *ways[tuner]]
    options.append("tuner.result=last")
    test = ["data.test=[test.de,test.en]", "decoder.test=test"]
    found = {}
    for name, more in {"without": [], "with": test}.items():
        arguments = [*options, *more, f"hydra.run.dir={name}"]
        run_command("train", *arguments, folder=tmp_path).check()
        found[name] = (tmp_path / name / "weights.txt.gz").read_bytes()
        text = (tmp_path / "dev").read_text()
        sparse = {field for field in text.split() if field.startswith("id_")}
        assert set(dimensions(tmp_path / name)) == {len(sparse)}
    assert found["with"] == found["without"]
    charts = [*options, "regularizer.dimension=charts", "hydra.run.dir=charts"]
    said = "regularizer.dimension=charts: stored k-best lists come without charts"
    run_command("train", *charts, folder=tmp_path).refused(said)
