"""Every option of ``train`` has an effect, or is refused: for each tuner, decoder, model and loss.

Each option of ``conf/`` must be in the table `EFFECT`, which says where it has one.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from commands import run_command
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.command_line import reason_against, refuse_given
from torchtune_smt.cli.parts import make_parts
from torchtune_smt.cli.spending import unused_options
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import config_folder

# Groups whose choices say what is tuned, and how; the other groups are walked one by one.
# After a slash, how groups are learnt.
# These take steps of Algorithm 2.
TAKES_STEPS = ("grouping", "grouping/mix")
LEARNING = ["grouping/mix", "grouping/batch", "grouping/random_pairs", "grouping/clusters"]
TUNERS = ["online", "pro", "mira", "mert", "auto", "expected", "stochastic", "grouping"]
TUNERS += LEARNING
TASKS = {
    "hiero": [],
    "files": ["model=files", "model.grammar=g", "model.language_model=l"],
    "aligned": ["model.alignment_file=a"],
    "phrase": ["decoder=phrase", "model=phrase"],
    "joint": ["decoder=joint"],
    "moses": ["decoder=phrase", "model=moses", "model.ini=i", "init=moses"],
    "lists": ["decoder=kbest_files", "decoder.dev=d", "decoder.train=t"],
    "all lists": ["decoder=kbest_files", *(f"decoder.{s}={s}" for s in ("dev", "train", "test"))],
    "short lists": ["decoder=kbest_files", "decoder.dev=d", "decoder.train=t", "decoder.k=5"],
    "scores": [
        "decoder=kbest_files",
        *(f"decoder.{name}=s" for name in ("dev", "dev_scores", "train", "train_scores")),
    ],
}
LOSSES = ["logistic", "hinge", "softmax"]


class Case(NamedTuple):
    """What is tuned, and how."""

    tuner: str
    task: str
    loss: str
    tune_on: str

    @property
    def decodes(self) -> bool:
        return self.task in ("hiero", "files", "aligned", "phrase", "moses", "joint")

    @property
    def on_train(self) -> bool:
        return self.tune_on == "train"

    @property
    def builds(self) -> bool:
        return self.task in ("hiero", "aligned", "phrase", "joint")

    @property
    def references(self) -> bool:
        return self.task != "scores"

    @property
    def parts(self) -> str:
        """What the documentation says of the groups that the tuner takes."""
        return {
            "online": "metric sampler loss regularizer optimizer",
            "pro": "metric sampler",
            "mira": "",
            "mert": "",
            "auto": "",
            "expected": "metric",
            "stochastic": "metric sampler loss regularizer optimizer",
            "grouping": "metric sampler regularizer optimizer",
            "grouping/mix": "metric sampler regularizer optimizer",
            "grouping/batch": "metric sampler regularizer",
            "grouping/random_pairs": "metric sampler regularizer",
            "grouping/clusters": "metric sampler",
        }[self.tuner]


def part(name: str) -> Callable[[Case], bool]:
    return lambda case: name in case.parts.split()


def learns(how: str) -> Callable[[Case], bool]:
    return lambda case: case.tuner == f"grouping/{how}"


def anywhere(case: Case) -> bool:
    return True


def draws_pairs(case: Case) -> bool:
    lists = case.loss == "softmax" and case.tuner in ("online", "stochastic")
    return "sampler" in case.parts and not lists


# Where the options have an effect. Device is refused by its value, and so is optimizer.average.
# What is in braces belongs to the group before them. All cases have parallel=serial, which has
# none of the engine's; tests/test_parallel_cli.py has what other strategies do not use.
EFFECTS: list[tuple[Callable[[Case], bool], str]] = [
    (
        anywhere,
        """seed resume overwrite callbacks device report init.{file values scale} data.{name
        source_language target_language} decoder.{_target_ k pop_limit max_span stack_size
        distortion_limit table_limit dev dev_scores test test_scores dense on_error features
        max_words unknown missing seconds keep_mb score sizes}
        decoder.hiero.{_partial_ templates _target_ k pop_limit max_span max_words unique unknown
        seconds keep_mb} decoder.phrase.{_partial_ templates _target_ k pop_limit stack_size
        distortion_limit table_limit max_words unique unknown seconds keep_mb}
        tuner.{_target_ epochs
        iterations patience result shuffle tune_on sentences checkpoint_minutes interpolation
        tolerance unique keep_lists sparse learning control zero_group batch_size towards}
        tuner.dev.{iterations patience interpolation tolerance} tuner.solver.{_target_ sigma
        tolerance steps C passes decay scale restarts random_directions spread max_features
        few tens towards lr strength exempt} parallel.{_target_ shards labels features
        threshold strength workers max_staleness simulate}""",
    ),
    (
        lambda c: c.decodes,
        """threads features.templates data.split_compounds model.{_target_ folder alignment_file
        max_phrase_length max_symbols unaligned_edges counts order table_limit
        discount_fallback grammar format language_model ini phrase_table reordering_table
        rule_counts reordering}""",
    ),
    (lambda c: c.builds and c.on_train, "lm"),
    (lambda c: c.builds or (not c.decodes and c.references and c.on_train), "data.train"),
    (
        lambda c: c.references,
        """data.{dev folders lowercase normalize tokenize empty} decoder.format""",
    ),
    (lambda c: c.decodes or c.task == "all lists", "data.test"),
    (lambda c: c.builds, "data.{max_length max_ratio}"),
    (lambda c: c.decodes and c.on_train, "model.{leave_out folds}"),
    # No template of the default is of classes.
    (
        lambda c: False,
        """model.{classes source_classes target_classes} model.hiero.classes
        model.phrase.classes""",
    ),
    # These need classes.
    (
        lambda c: c.decodes,
        "model.{class_order class_language_model}",
    ),
    (anywhere, "model.hiero.class_order model.phrase.class_order"),
    (lambda c: c.on_train, "model.hiero.{leave_out folds} model.phrase.{leave_out folds}"),
    (
        anywhere,
        """model.hiero.{_target_ folder aligner iterations alignment_file max_phrase_length
        max_symbols unaligned_edges counts table_limit rule_counts order discount_fallback}
        model.phrase.{_target_ folder aligner iterations alignment_file max_phrase_length
        reordering table_limit order discount_fallback}""",
    ),
    (lambda c: c.task in ("hiero", "phrase"), "model.{aligner iterations}"),
    (
        lambda c: c.decodes or c.tuner == "online" or c.task == "scores" or c.task == "short lists",
        """decoder.unique""",
    ),
    (lambda c: c.on_train, "decoder.{train train_scores}"),
    (
        part("metric"),
        """metric.{_target_ path missing short_references smooth_unigrams grounding smoothing
        nakov smooth_brevity smooth_method smooth_value effective_order filters weights order
        beta}""",
    ),
    (draws_pairs, "sampler.{_target_ candidates threshold pairs distinct percent}"),
    (part("loss"), "loss.{_target_ reduction temperature entropy cost variant}"),
    (part("regularizer"), "regularizer.{_target_ strength dimension}"),
    (
        lambda c: "regularizer" in c.parts and c.tuner != "grouping/batch",
        """regularizer.{lambda1 lambda2}""",
    ),
    (
        part("optimizer"),
        """optimizer.{_target_ lr initial_accumulator initial_precision regularize_dense
        regularize_each schedule beta}""",
    ),
    (lambda c: "optimizer" in c.parts and c.tuner not in TAKES_STEPS, "optimizer.average"),
    (lambda c: c.tuner in (*TAKES_STEPS, "grouping/clusters"), "tuner.passes"),
    (learns("mix"), "tuner.shards"),
    (lambda c: c.tuner in (*TAKES_STEPS, "grouping/batch"), "tuner.{scaling merge_identical}"),
    (
        learns("batch"),
        """regularizer.{fraction noise} tuner.minimizer.{loss mu residual gap seconds path}""",
    ),
    (learns("clusters"), "tuner.clusters.{count lr strength}"),
    (lambda c: c.loss != "hinge" or c.tuner == "expected", "tuner.solver.batch_size"),
    (lambda c: False, "engine.{_target_ workers deadline attempts address object_store}"),
]
EFFECT = {
    f"{group}{name}": where
    for where, options in EFFECTS
    for group, names in re.findall(r"([\w.]+)(?:\{([^}]*)\})?", options)
    for name in names.split() or [""]
}


def leaves(prefix: str, value: object) -> Iterator[str]:
    if isinstance(value, dict) and prefix != "init.values":
        for name, inner in value.items():
            yield from leaves(f"{prefix}.{name}" if prefix else str(name), inner)
    else:
        yield prefix


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        return compose("train", list(overrides), return_hydra_config=True)


def options_of(cfg: DictConfig) -> list[str]:
    """The options of a configuration, apart from Hydra's."""
    plain = OmegaConf.to_container(cfg)
    assert isinstance(plain, dict)
    return list(leaves("", {name: value for name, value in plain.items() if name != "hydra"}))


def cases(tuner: str) -> list[Case]:
    """All combinations that are not refused as a whole; other losses with one of the tasks."""
    tasks = itertools.product(TASKS, ("dev", "train"))
    usual = [Case(tuner, task, LOSSES[0], tune_on) for task, tune_on in tasks]
    others = [Case(tuner, "hiero", loss, "dev") for loss in LOSSES[1:]]
    return [
        c for c in [*usual, *others] if c.task not in ("files", "moses") or c.tune_on != "train"
    ]


def settings(case: Case) -> list[str]:
    name, _, learning = case.tuner.partition("/")
    tuner = [f"tuner={name}", f"tuner.tune_on={case.tune_on}", f"loss={case.loss}"]
    if learning:
        tuner.append(f"tuner.learning={learning}")
    return [*tuner, *TASKS[case.task]]


@pytest.mark.parametrize("tuner", TUNERS)
def test_an_option_has_an_effect_or_is_refused(tuner):
    known: dict[Case, DictConfig] = {}
    for case in cases(tuner):
        key = case._replace(tune_on="dev")
        if key not in known:
            known[key] = composed(*settings(key))
        cfg = known[key]
        cfg.tuner.tune_on = case.tune_on
        unused = unused_options(cfg, make_parts(cfg), cfg.hydra.runtime.choices)
        for option in options_of(cfg):
            refused = reason_against(option, unused) is not None
            assert refused != EFFECT[option](case), (option, case)


def test_every_option_is_in_the_table():
    """Of all choices of all groups; and there are none in it that conf/ does not have."""
    folder = config_folder()
    groups = [path for path in folder.iterdir() if path.is_dir() and path.name != "experiment"]
    found = set(options_of(composed())) - {"experiment"}
    choices = [[f"{group.name}={path.stem}" for path in group.glob("*.yaml")] for group in groups]
    # A choice of each group at a time.
    for some in itertools.zip_longest(*choices):
        found |= set(options_of(composed(*filter(None, some))))
    assert found == set(EFFECT)
    named = {path.stem for path in (folder / "tuner").glob("*.yaml")}
    assert named == {*(tuner.partition("/")[0] for tuner in TUNERS), "batch"}


LISTS = ["decoder=kbest_files", "decoder.dev=none.nbest"]
SCORES = [*LISTS, "decoder.dev_scores=none.scores"]
FILES = ["model=files", "model.grammar=none.gz", "model.language_model=none.arpa"]


# What the table does not have: more values, and others that cancel an option; a sentence of some.
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([*SCORES, "data.tokenize=true"], "no data are read, and data.tokenize=true would"),
        ([*SCORES, "decoder.format=moses"], "features.dat with scores.dat has one format, and"),
        (["model.classes=9"], "none of the templates is of classes (features.templates), and"),
        (["init.file=x", "init.values.Glue=1"], "init.file has the weights, and init.values.Glue"),
        (
            ["regularizer=none", "optimizer.regularize_dense=true"],
            "regularizer=none pulls at no weight, and optimizer.regularize_dense=true would",
        ),
        (
            [*FILES, "data.dev=[a,b]", "data.test=[a,b]", "data.folders=x"],
            "all data that are read are named by their files",
        ),
        # Options of an experiment may be of no use, but not those on the command line.
        (["experiment=simianer2012", "loss=softmax", "sampler=all"], "loss=softmax takes no"),
        (
            ["tuner=stochastic", "loss=hinge", "optimizer=fobos", "tuner.solver={batch_size:9}"],
            "loss=hinge takes a step after each pair or list (loss.reduction=sum does not), and",
        ),
        (
            ["tuner=grouping", "features=rule_id", "optimizer.average=epoch"],
            "has no mean of weights",
        ),
    ],
)
def test_what_would_change_nothing(options, message):
    cfg = composed(*options)
    unused = unused_options(cfg, make_parts(cfg), cfg.hydra.runtime.choices)
    with pytest.raises(InputError, match="would change nothing; leave it out$") as caught:
        refuse_given(unused, options)
    assert message in str(caught.value)


def test_a_run_that_would_ignore_an_option_is_not_begun(tmp_path):
    outcome = run_command("train", "lm=folds", "hydra.run.dir=bad", folder=tmp_path)
    assert outcome.code == 1
    reason = "lm is about decoding the bitext (tuner.tune_on=train)"
    assert outcome.err == f"error: {reason}, and lm=folds would change nothing; leave it out\n"
    assert not (tmp_path / "bad").exists() and not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("options", "file"),
    [
        # null asks for nothing, and what is not used need not be given.
        (
            [
                *(*SCORES, "data=files", "data.name=x", "data.train=null"),
                *("data.source_language=de", "data.target_language=en"),
            ],
            "none.nbest",
        ),
        ([*LISTS, "experiment=liu2013"], "none.nbest"),
        ([*FILES, "experiment=simianer2012", "loss=softmax"], "none.gz"),
    ],
)
def test_what_may_be_of_no_use(options, file, tmp_path):
    """These come to where files are read."""
    outcome = run_command("train", *options, "hydra.run.dir=bad", folder=tmp_path)
    assert re.fullmatch(f"error: {file}: no such file.*\n", outcome.err), outcome.err
