"""train with tuner=grouping, on the bundled example and on stored lists."""

import numpy as np
import pytest
from commands import MODEL, metrics, run_command
from small_lists import weights_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.tuners.grouping.groups import read_groups

SMALL = [
    "tuner=grouping",
    "features=rule_id",
    "tuner.sentences=40",
    "tuner.iterations=2",
    "tuner.dev.iterations=2",
    "tuner.passes=5",
    "decoder.k=20",
    "decoder.pop_limit=10",
    "data.test=null",
]


def small(options):
    batch = "tuner.learning=batch" in options
    # Groups of the minimum are not learnt in passes.
    return [o for o in SMALL if not (batch and o.startswith("tuner.passes="))]


def tune(place, name, *options):
    arguments = [*MODEL, *small(options), f"hydra.run.dir={name}", *options]
    return run_command("train", *arguments, folder=place).check().out


BATCH = (
    "tuner.learning=batch regularizer.fraction=0.1 tuner.iterations=1 tuner.sentences=80".split()
)


@pytest.fixture(scope="module")
def out(place):
    return tune(place, "grouping", "regularizer=oscar")


def test_shards_of_pairs_on_workers(place):
    """Lists, and what is learnt on shards, do not depend on where, nor on how many workers work."""
    options = ["regularizer=oscar", "tuner.learning=mix", "tuner.shards=3"]
    out = tune(place, "learning_mix", *options)
    tune(place, "learning_mix_workers", *options, "parallel=decode", "engine.workers=2")
    assert " steps on 3 shards, twice, " in out
    for name in ("weights.txt.gz", "groups.tsv.gz", "dev.translations.txt"):
        runs = ("learning_mix", "learning_mix_workers")
        serial, parallel = ((place / run / name).read_bytes() for run in runs)
        assert parallel == serial
    found = [line for line in metrics(place / "learning_mix") if "groups/number" in line]
    assert all(line["oscar/shards"] == 3 and line["groups/number"] > 0 for line in found)


def test_what_is_recorded(out, place):
    lines = metrics(place / "grouping")
    learned = [line for line in lines if "groups/number" in line]
    assert len(learned) == 2
    for line in learned:
        assert line["groups/features"] >= line["groups/number"] > 0
        assert line["oscar/dimension"] > line["groups/features"]
        assert line.keys() >= {"seconds/decoding", "seconds/learning", "lists/new"}
        assert f"d = {int(line['oscar/dimension']):,}" in out
        assert line["diagnosis/objective"] > line["diagnosis/bound"]
        assert 0 <= line["diagnosis/overlap_together"] <= 1 >= line["diagnosis/fired_last"] >= 0
        assert f"{line['diagnosis/overlap_features']:.0%} of the features in groups are the" in out
    assert any("seconds/tuning" in line and "groups/active" in line for line in lines)
    scores = [line["bleu/dev"] for line in lines[1:] if "bleu/dev" in line]
    assert len(scores) == 2 and max(scores) > lines[0]["bleu/dev"] + 1
    assert lines[-1]["bleu/dev_tuned"] == pytest.approx(max(scores), abs=1e-9)
    best = 1 + scores.index(max(scores))
    assert f"best iteration: {best}\n" in out
    assert "  groups.tsv.gz         groups: " in out
    left = {path.name for path in (place / "grouping").iterdir()}
    assert not left & {"lists", "checkpoint.pt", "checkpoint.names"}
    assert {"fit/bleu", "fit/loss", "fit/pairs"} < {name for line in lines for name in line}
    events = EventAccumulator(str(place / "grouping" / "tensorboard")).Reload()
    assert len(events.Images("groups/picture")) == 2
    assert {"groups/weights", "groups/log10_sizes"} <= set(events.Tags()["histograms"])


def test_threads(out, place):
    files = ("weights.txt.gz", "groups.tsv.gz")
    first = [(place / "grouping" / name).read_bytes() for name in files]
    tune(place, "grouping_one", "threads=1", "tuner.keep_lists=true")
    assert [(place / "grouping_one" / name).read_bytes() for name in files] == first
    lists = ListStore.open(place / "grouping_one" / "lists" / "learning", n_dense=12)
    assert lists.n_iterations == 2


@pytest.mark.parametrize("prepared", [False, True])
def test_the_file_has_the_groups_of_the_weights(out, place, prepared):
    """What the file of groups says, times its factors, is the weights."""
    folder = place / "grouping"
    if prepared:
        folder = place / "prepared"
        said = tune(
            place,
            "prepared",
            *BATCH,
            "tuner.iterations=1",
            "tuner.scaling=rms",
            "tuner.merge_identical=true",
        )
        assert "features that always fire with others were taken as" in said
        assert "(0.1 of lambda_max), " in said and "KKT residual" in said
        (line,) = (line for line in metrics(folder) if "groups/number" in line)
        assert line["merged/features"] > line["merged/left"] > 0
        assert line["minimum/reached"] == 1 and line["minimum/fraction"] == 0.1
        assert 0 < line["minimum/residual"] <= 1e-4
        # Where the loss is hardly larger than what smoothes it, that is said.
        assert line["minimum/gap"] < 5e-3 or "the hinge may be mu/2 above its smoothing" in said
    weight = weights_of(folder / "weights.txt.gz")
    dense = [name for name in weight if not name.startswith("rule_id:")]
    features = Vocabulary(dense)
    groups, group_weights = read_groups(folder / "groups.tsv.gz", features, len(dense))
    assert (groups.factor is not None) == prepared and groups.sizes.max() > 1
    unpacked = groups.unpack(group_weights, len(features))
    found = {features[j]: w for j, w in enumerate(unpacked.tolist()) if w != 0}
    assert found == (pytest.approx(weight, rel=1e-12) if prepared else weight)
    assert groups.n_sparse >= np.count_nonzero(group_weights[len(dense) :]) > 0
    active = sum(line.get("groups/active", 0) for line in metrics(folder)[-3:])
    assert active > 0


_BATCH = "tuner.learning=batch regularizer.fraction=0.1"
_CLUSTERS = "tuner.learning=clusters"
_FILES = "model=files model.grammar=a model.language_model=b"
# What an option would change nothing of is in test_unused_options.py.
REFUSED = {
    "regularizer=l1": "tuner=grouping learns groups by FOBOS with OSCAR, and regularizer",
    "optimizer=adagrad": "set optimizer=fobos_oscar, or leave optimizer out",
    "optimizer.regularize_dense=true": "each dense feature is a group of its own",
    "features=dense": "there are none: set features=rule_id",
    "tuner.control=single tuner.merge_identical=true": "takes features out of their",
    f"{_CLUSTERS} regularizer.lambda2=1": "has an l1 norm of its own",
    "tuner.learning=batch regularizer=l1": "learns groups with OSCAR, and regularizer is",
    f"{_BATCH} tuner.minimizer.loss=logistic tuner.minimizer.mu=1": "smooth as it is",
    f"{_BATCH} regularizer.lambda1=0 regularizer.lambda2=0": "give one above 0",
    f"{_BATCH} regularizer.noise=0.9": "fraction=0.1 says how strong OSCAR is, and reg",
    "tuner.learning=batch regularizer.lambda2=1e-8": (
        "noise=0.95 says how strong OSCAR is (null: lambda1 and lambda2 do), and"
    ),
    "decoder=kbest_files decoder.dev=x": "decoder.train is null, and its k-best lists",
    _FILES: "use model=hiero or",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_makes_no_sense_is_refused(place, options):
    given = options.split()
    common = [*MODEL, *small(given)]
    if options == _FILES:
        common = SMALL
    elif given[0].startswith("decoder="):
        common = [option for option in SMALL if not option.startswith(("decoder.", "features="))]
    arguments = [*common, *given, "hydra.run.dir=bad"]
    run_command("train", *arguments, folder=place).refused(REFUSED[options])


def test_lambdas_of_a_file_are_not_a_ratio_in_silence(place):
    """Under the default noise they would be; who writes both, or noise on its own, means it."""
    text = "# @package _global_\nregularizer:\n  lambda1: 1e-9\n"
    path = place / "mine" / "experiment" / "ratio.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    common = ["tuner=grouping", "tuner.learning=batch", "experiment=ratio", "--config-dir=mine"]
    common += ["hydra.run.dir=bad", "data.dev=nowhere"]
    said = "ratio.yaml:3: regularizer.noise=0.95 says how strong"
    run_command("train", *common, folder=place).refused(said)
    for meant in (["regularizer.noise=null"], []):
        if not meant:
            path.write_text(f"{text}  noise: 0.95\n")
        assert "nowhere" in run_command("train", *common, *meant, folder=place).err
