"""train with tuner=grouping, on the bundled example and on stored lists."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from commands import MODEL, Run, run_command
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from torchtune_smt.core.resources import example_folder
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.samplers import ProSampler
from torchtune_smt.tuners.grouping.groups import read_groups

EXAMPLE = example_folder()
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


def small(options: Sequence[str]) -> list[str]:
    """Return the options of a short run; some groups are not learnt in passes."""
    takes_none = {"tuner.learning=batch", "tuner.learning=random_pairs"} & set(options)
    return [o for o in SMALL if not (takes_none and o.startswith("tuner.passes="))]


def tune(place: Path, name: str, *options: str) -> str:
    arguments = [*MODEL, *small(options), f"hydra.run.dir={name}", *options]
    return run_command("train", *arguments, folder=place).check().out


@pytest.fixture(scope="module")
def out(place: Path) -> str:
    """What a run prints; its folder is called grouping."""
    return tune(place, "grouping", "regularizer=oscar")


def test_shards_of_pairs_on_workers(place: Path) -> None:
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


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in read_lines(folder / "metrics.jsonl")]


def test_weights_get_better(out: str, place: Path) -> None:
    folder = place / "grouping"
    lines = metrics(folder)
    assert lines[-1]["bleu/dev_tuned"] > lines[0]["bleu/dev"] + 1
    scores = [line["bleu/dev"] for line in lines[1:] if "bleu/dev" in line]
    assert len(scores) == 2
    assert lines[-1]["bleu/dev_tuned"] == pytest.approx(max(scores), abs=1e-9)
    best = 1 + scores.index(max(scores))
    assert f"best iteration: {best}\n" in out
    assert f"iteration {best}: dev BLEU {max(scores):.2f}, " in out
    assert "  groups.tsv.gz         groups: " in out
    assert not (folder / "lists").exists()
    assert not list(folder.glob("checkpoint.*"))


def test_the_file_has_the_groups_of_the_weights(out: str, place: Path) -> None:
    folder = place / "grouping"
    names, values = read_weights(folder / "weights.txt.gz")
    weight = dict(zip(names.names(range(len(names))), values.tolist(), strict=True))
    dense = [name for name in weight if not name.startswith("rule_id:")]
    features = Vocabulary(dense)
    groups, group_weights = read_groups(folder / "groups.tsv.gz", features, len(dense))
    unpacked = groups.unpack(group_weights, len(features))
    found = {features[j]: w for j, w in enumerate(unpacked.tolist()) if w != 0}
    assert found == weight
    active = sum(line.get("groups/active", 0) for line in metrics(folder)[-3:])
    assert groups.n_sparse >= np.count_nonzero(group_weights[len(dense) :]) > 0
    assert active > 0


def test_what_is_recorded(out: str, place: Path) -> None:
    lines = metrics(place / "grouping")
    steps = [line["step"] for line in lines]
    assert steps == sorted(steps)
    learned = [line for line in lines if "groups/number" in line]
    assert len(learned) == 2
    for line in learned:
        assert line["groups/features"] >= line["groups/number"] > 0
        assert line["groups/largest"] >= 1
        assert line["oscar/steps"] == 5 * line["oscar/pairs"] > 0
        assert line["oscar/dimension"] > line["groups/features"]
        assert line.keys() >= {"seconds/decoding", "seconds/learning", "lists/new"}
        assert f"d = {int(line['oscar/dimension']):,}" in out
        assert line["diagnosis/objective"] > line["diagnosis/bound"]
        assert 0 <= line["diagnosis/overlap_together"] <= 1 >= line["diagnosis/fired_last"] >= 0
        assert f"{line['diagnosis/overlap_features']:.0%} of the features in groups are the" in out
    assert any("seconds/tuning" in line and "groups/active" in line for line in lines)
    assert {"fit/bleu", "fit/loss", "fit/pairs"} < {name for line in lines for name in line}
    events = EventAccumulator(str(place / "grouping" / "tensorboard")).Reload()
    tags = events.Tags()
    assert "groups/picture" in tags["images"]
    assert len(events.Images("groups/picture")) == 2
    assert {"groups/weights", "groups/log10_sizes"} <= set(tags["histograms"])


def test_threads_and_seeds(out: str, place: Path) -> None:
    files = ("weights.txt.gz", "groups.tsv.gz")
    first = [(place / "grouping" / name).read_bytes() for name in files]
    tune(place, "grouping_one", "threads=1", "tuner.keep_lists=true")
    assert [(place / "grouping_one" / name).read_bytes() for name in files] == first
    lists = ListStore.open(place / "grouping_one" / "lists" / "learning", n_dense=12)
    assert lists.n_iterations == 2
    tune(place, "grouping_seed", "seed=2")
    assert (place / "grouping_seed" / "weights.txt.gz").read_bytes() != first[0]


def test_no_groups_are_no_end(place: Path) -> None:
    found = tune(place, "grouping_none", "regularizer.lambda1=100", "tuner.iterations=1")
    assert (
        "iteration 1: no groups, so the default features are tuned alone: OSCAR has left no"
        in found
    )
    names, _ = read_weights(place / "grouping_none" / "weights.txt.gz")
    assert len(names) == 12
    assert len(read_lines(place / "grouping_none" / "groups.tsv.gz")) == 13


def test_options_of_the_algorithm(place: Path) -> None:
    """Each makes a difference."""
    quick = ["tuner.iterations=1", "tuner.dev.iterations=1"]
    found: dict[bytes, str] = {}
    for i, option in enumerate(
        [
            "seed=1",
            "tuner.zero_group=keep",
            "optimizer.schedule=constant",
            "tuner.tune_on=dev",
            "tuner.control=single",
            "tuner.learning=random_pairs",
            "tuner.learning=clusters",
        ]
    ):
        tune(place, f"grouping_{i}", *quick, option)
        weights = (place / f"grouping_{i}" / "weights.txt.gz").read_bytes()
        assert found.setdefault(weights, option) == option


BATCH = [
    "tuner.learning=batch",
    "regularizer.fraction=0.1",
    "tuner.iterations=1",
    "tuner.sentences=150",
]


def test_pairs_that_memory_does_not_hold(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, and no file of the run is half there."""

    def no_room(*arguments: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(ProSampler, "sample", no_room)
        outcome = run_command("train", *MODEL, *small([]), "hydra.run.dir=no_room", folder=place)
    assert outcome.code == 1
    assert outcome.err == (
        "error: there is no room for all pairs (there was for those of 0 k-best lists): lower "
        "sampler.pairs or tuner.sentences\n"
    )
    folder = place / "no_room"
    left = {str(file.relative_to(folder).parent) for file in folder.rglob("*") if file.is_file()}
    assert left == {".", ".hydra", "tensorboard", "lists/learning"}
    # Lists of a whole iteration, and what was said and measured before.
    assert {file.name for file in folder.iterdir() if file.is_file()} == {
        "config.yaml",
        "metrics.jsonl",
        "train.log",
    }
    assert len(ListStore.open(folder / "lists" / "learning", n_dense=12).sizes) == 1


def test_groups_of_the_minimum(place: Path) -> None:
    said = tune(place, "grouping_batch", *BATCH)
    assert "(0.1 of lambda_max), " in said and "KKT residual" in said
    (line,) = (line for line in metrics(place / "grouping_batch") if "groups/number" in line)
    assert line["minimum/reached"] == 1 and line["minimum/fraction"] == 0.1
    same = line["diagnosis/overlap_features"]
    assert f"with other pairs of the same lists {same:.0%} of the features in groups" in said
    assert 0 <= line["diagnosis/overlap_together"] <= 1 > same > 0
    assert 0 < line["minimum/residual"] <= 1e-4
    # Where the loss is hardly larger than what smoothes it, that is said.
    assert line["minimum/gap"] < 5e-3 or "the hinge may be mu/2 above its smoothing" in said
    assert line["groups/features"] >= line["groups/number"] > 0


def test_a_path_says_what_parts_of_lambda_max_leave(place: Path) -> None:
    options = [*BATCH, "tuner.iterations=1", "tuner.dev.iterations=1"]
    said = tune(place, "batch_path", *options, "tuner.minimizer.path=3")
    assert "1 of lambda_max leaves no feature" in said
    assert "0.316 of lambda_max leaves " in said
    (line,) = (line for line in metrics(place / "batch_path") if "groups/number" in line)
    number, features = line["groups/number"], line["groups/features"]
    assert f"0.1 of lambda_max leaves {features:,.0f} features in {number:,.0f} groups" in said


PREPARED = ["tuner.scaling=rms", "tuner.merge_identical=true"]


def test_features_of_one_size_and_without_those_that_fire_together(place: Path) -> None:
    """What the file of groups says, times its factors, is the weights."""
    said = tune(place, "prepared", *BATCH, *PREPARED)
    assert "features that always fire with others were taken as" in said
    folder = place / "prepared"
    names, values = read_weights(folder / "weights.txt.gz")
    weight = dict(zip(names.names(range(len(names))), values.tolist(), strict=True))
    dense = [name for name in weight if not name.startswith("rule_id:")]
    features = Vocabulary(dense)
    groups, group_weights = read_groups(folder / "groups.tsv.gz", features, len(dense))
    assert groups.factor is not None and groups.sizes.max() > 1
    unpacked = groups.unpack(group_weights, len(features))
    found = {features[j]: w for j, w in enumerate(unpacked.tolist()) if w != 0}
    assert found == pytest.approx(weight, rel=1e-12)
    (line,) = (line for line in metrics(folder) if "groups/number" in line)
    assert line["merged/features"] > line["merged/left"] > 0


def test_groups_tuned_by_another_solver(place: Path) -> None:
    options = ["tuner.solver._target_=torchtune_smt.tuners.mira.KBestMira", "tuner.iterations=1"]
    tune(place, "grouping_mira", *options, "tuner.dev.interpolation=1")
    assert (place / "grouping_mira" / "groups.tsv.gz").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["regularizer=l1"], "tuner=grouping learns groups by FOBOS with OSCAR, and regularizer"),
        (["optimizer=adagrad"], "set optimizer=fobos_oscar, or leave optimizer out"),
        (["optimizer.regularize_dense=true"], "each dense feature is a group of its own"),
        (["features=dense"], "there are none: set features=rule_id"),
        (["loss=hinge"], "tuner=grouping takes no loss, and loss=hinge would change nothing"),
        (["tuner.result=average"], "result must be best or last, not 'average'"),
        (["tuner.control=single", "tuner.merge_identical=true"], "takes features out of their"),
        (["tuner.shards=4"], "tuner.learning=online makes no use of it, and"),
        (["tuner.learning=mix", "optimizer.average=epoch"], "has no mean of weights"),
        (["tuner.clusters.count=9"], "makes no use of it, and tuner.clusters"),
        (["tuner.learning=clusters", "regularizer.lambda2=1"], "has an l1 norm of its own"),
        (["tuner.learning=random_pairs", "optimizer.lr=2"], "takes no steps of an optimizer, and"),
        (
            ["tuner.learning=random_pairs", "tuner.scaling=rms"],
            "makes no use of it, and tuner.scaling",
        ),
        (["tuner.learning=clusters", "tuner.merge_identical=true"], "makes no use of it, and"),
        ([*BATCH, "tuner.passes=2"], "tuner.learning=batch makes no use of it, and"),
        ([*BATCH, "optimizer.lr=2"], "tuner.learning=batch takes no steps of an optimizer, and"),
        (
            ["tuner.learning=batch", "regularizer=l1"],
            "learns groups with OSCAR, and regularizer is",
        ),
        ([*BATCH, "tuner.minimizer.loss=logistic", "tuner.minimizer.mu=1"], "smooth as it is"),
        ([*BATCH, "regularizer.lambda1=0", "regularizer.lambda2=0"], "give one above 0"),
        ([*BATCH, "regularizer.noise=0.9"], "fraction=0.1 says how strong OSCAR is, and reg"),
        (
            ["tuner.learning=batch", "regularizer.lambda2=1e-8"],
            "noise=0.95 says how strong OSCAR is (null: lambda1 and lambda2 do), and",
        ),
        (["regularizer.noise=0.9"], "tuner.learning=online makes no use of it"),
        (["regularizer.fraction=0.1"], "tuner.learning=online makes no use of it"),
        (["tuner.minimizer.seconds=9"], "tuner.learning=online makes no use of it"),
        (["regularizer.dimension=5"], "regularizer.dimension=5 is smaller than the number"),
        (["sampler.threshold=2"], "no list has a pair of hypotheses to learn from"),
        (["decoder=kbest_files", "decoder.dev=x"], "decoder.train is null, and its k-best lists"),
        (["model=files", "model.grammar=a", "model.language_model=b"], "use model=hiero or"),
    ],
)
def test_what_makes_no_sense_is_refused(place: Path, options: list[str], message: str) -> None:
    common = [*MODEL, *small(options)]
    if options[0].startswith("model="):
        common = SMALL
    elif options[0].startswith("decoder="):
        common = [option for option in SMALL if not option.startswith(("decoder.", "features="))]
    outcome = run_command("train", *common, *options, "hydra.run.dir=bad", folder=place)
    assert outcome.code == 1
    assert message in outcome.err


@pytest.mark.parametrize(
    ("group", "text", "line"),
    [
        ("regularizer", "defaults: [oscar]\nlambda1: 0\nlambda2: 1e-8\n", 3),
        ("experiment", "# @package _global_\nregularizer:\n  lambda1: 1e-9\n", 3),
    ],
)
def test_lambdas_of_a_file_are_not_a_ratio_in_silence(
    place: Path, group: str, text: str, line: int
) -> None:
    """Under the default noise they would be; who writes both, or noise on its own, means it."""
    path = place / "mine" / group / "ratio.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    common = ["tuner=grouping", "tuner.learning=batch", f"{group}=ratio", "--config-dir=mine"]
    common += ["hydra.run.dir=bad", "data.dev=nowhere"]
    outcome = run_command("train", *common, folder=place)
    assert f"ratio.yaml:{line}: regularizer.noise=0.95 says how strong" in outcome.err
    for meant in (["regularizer.noise=0.9"], ["regularizer.noise=null"], []):
        if not meant:
            indent = "  " * (group == "experiment")
            path.write_text(f"{text}{indent}noise: 0.95\n")
        assert "nowhere" in run_command("train", *common, *meant, folder=place).err


# Stored lists


@pytest.fixture(scope="module")
def stored(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Lists of some sentences of the bitext and of dev, the worst first, with their options.

    The weights were tuned on dev: nothing could be gained on lists that begin with the best.
    """
    folder = tmp_path_factory.mktemp("stored")
    options = ["decoder=kbest_files", "init=zero", "data.test=null"]
    for split, source in (("train", EXAMPLE / "train.de"), ("dev", EXAMPLE / "dev.de")):
        ends = ["de", "en"] if split == "train" else ["de", "en.0", "en.1"]
        for end in ends:
            lines = read_lines(source.with_name(f"{source.stem}.{end}"))[:40]
            (folder / f"{split}.{end}").write_text("".join(f"{line}\n" for line in lines))
        run_command(
            "translate",
            f"weights={run.weights}",
            f"input={folder / split}.de",
            f"output={folder / split}.nbest",
            "n_best=20",
            folder=run.place,
        ).check()
        lists = folder / f"{split}.nbest"
        worst_first = read_lines(lists)[::-1]
        worst_first.sort(key=lambda line: int(line.split()[0]))
        lists.write_text("".join(f"{line}\n" for line in worst_first))
        files = ",".join(str(folder / f"{split}.{end}") for end in ends)
        options += [f"data.{split}=[{files}]", f"decoder.{split}={folder / split}.nbest"]
    return folder, options


LISTS = ["tuner=grouping", "tuner.iterations=2", "tuner.dev.iterations=2", "tuner.passes=5"]


def test_stored_lists(stored: tuple[Path, list[str]], place: Path) -> None:
    folder, options = stored
    options = [*LISTS, *options, "decoder.on_error=skip"]
    outcome = run_command("train", *options, f"hydra.run.dir={folder / 'run'}", folder=place)
    out = outcome.check().out
    assert "iteration 1: " in out
    # Nothing comes to the lists in the second iteration.
    assert "iteration 2: " in out
    assert "(0 new)" in out
    names, _ = read_weights(folder / "run" / "weights.txt.gz")
    assert any(name.startswith("rule_id:") for name in names.names(range(len(names))))
    # The header, and a line for each feature with a weight at least.
    assert len(read_lines(folder / "run" / "groups.tsv.gz")) > len(names)


def test_stored_lists_without_sparse_features(stored: tuple[Path, list[str]], place: Path) -> None:
    folder, options = stored
    dense = []
    for option in options:
        name, _, path = option.partition("=")
        if name in ("decoder.train", "decoder.dev"):
            lines = []
            for line in read_lines(path):
                index, words, features, score = line.split(" ||| ")
                kept = " ".join(f for f in features.split() if ":" not in f)
                lines.append(f"{index} ||| {words} ||| {kept} ||| {score}\n")
            path = f"{path}.dense"
            Path(path).write_text("".join(lines))
        dense.append(f"{name}={path}")
    outcome = run_command("train", *LISTS, *dense, f"hydra.run.dir={folder / 'bad'}", folder=place)
    assert outcome.code == 1
    assert "the k-best lists have none: say with decoder.dense which of theirs" in outcome.err
