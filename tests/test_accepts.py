"""What classes accept: a bad value of each declared argument of each class is refused."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.plugins import Plugins
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.options import check_options, check_values
from torchtune_smt.cli.wire import check_scalars, class_of
from torchtune_smt.core.accepts import (
    SWITCH,
    TEXT,
    Checked,
    Rule,
    above,
    accepting,
    between,
    integer,
    least,
    one_of,
    rules_of,
)
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import config_folder
from torchtune_smt.tuners.grouping.tuner import option_rules

# What else they are made of, where None will not do.
NEEDED = {
    "weights": {"bleu": 1},
    "params": [torch.zeros(1, dtype=torch.float64)],
    "path": "nowhere",
    "language_model": "lm",
    "model": SimpleNamespace(grammar=SimpleNamespace(reordering=None, gaps=False), limits={}),
}
# The ranges themselves, once more: what is said of each argument, where it is said.
SAID = """
1, 2 or 3: Ramp.variant
a finite number, or null: KBestFiles.missing
a number above 0: AROW.initial_accumulator AROW.initial_precision Accuracy.gap Accuracy.residual
    Accuracy.seconds ChrF.beta ClusteredWeights.lr ExpectedErrors.lr ExpectedGain.temperature
    HopeFear.cost KBestMira.C
    Mert.spread MosesBleu.smoothing Pro.tolerance Ramp.cost SmoothedHinge.mu SparseOptimizer.lr
    StepLearning.lr
a number above 0 and below 1, or null: BatchLearning.noise
a number above 0 and up to 1: BatchTuner.interpolation KBestMira.decay
a number above 0 and up to 1, or null: BatchLearning.fraction
a number above 0, or null: Engine.deadline GrammarDecoder.seconds SacreBleu.smooth_value
a number above 1e-100 and below 1e+100: Pro.sigma
a number, 0 or more: AdaGrad.initial_accumulator AllPairs.threshold BatchTuner.tolerance
    ClusteredWeights.strength ExpectedErrors.strength ExpectedGain.entropy FTRL.beta
    FTRL.initial_accumulator GrammarDecoder.keep_mb GroupLasso.strength Multipartite.threshold
    Oscar.lambda1 Oscar.lambda2 ProSampler.threshold _Elastic.lambda1 _Elastic.lambda2
    _Elastic.strength
a number, 0 or more, or null: IterSel.strength IterSel.threshold
a number, 1 or more: Dataset.max_ratio
a whole number, -1 or more (up to 1,073,741,824), or null: PhraseDecoder.distortion_limit
a whole number, 0 or more: Auto.few Auto.tens Mert.random_directions Mert.restarts
    SparseOptimizer.unregularized
a whole number, 0 or more, or null: Stale.max_staleness Stale.simulate
a whole number, 1 or more: Accuracy.steps BatchLearning.path BuiltModel.iterations
    BuiltModel.table_limit ChrF.order ClusteredWeights.count ClusteredWeights.passes
    Dataset.max_length
    Engine.attempts ExpectedErrors.batch_size ExpectedErrors.passes
    KBestMira.passes Mert.max_features MixedLearning.shards
    OnlineTuner.batch_size Pro.steps ProSampler.candidates ProSampler.pairs StepLearning.passes
    Stochastic.batch_size Stochastic.passes
a whole number, 1 or more (up to 1,073,741,824): GrammarDecoder.k GrammarDecoder.max_words
    GrammarDecoder.pop_limit GrammarDecoder.threads HieroDecoder.max_span
a whole number, 1 or more (up to 1,073,741,824), or null: PhraseDecoder.pop_limit
    PhraseDecoder.stack_size PhraseDecoder.table_limit
a whole number, 1 or more (up to 100): BitextModel.max_symbols BuiltModel.max_phrase_length
a whole number, 1 or more (up to 32), or null: StringFeatures.bits
a whole number, 1 or more (up to 50): Multipartite.percent
a whole number, 1 or more (up to 6): BuiltModel.order
a whole number, 1 or more (up to 6), or null: BuiltModel.class_order
a whole number, 1 or more, or null: BuiltModel.classes Engine.workers IterSel.features KBestFiles.k
    Mixing.shards Oscar.dimension Stale.workers
a whole number, 2 or more, or 0: BuiltModel.folds
a whole number, 80 or more: RayEngine.object_store
bars, cdec, joshua, marian, moses, phrasal, travatar, espnet, kaldi, sockeye, json, hypo2trans, \
fairseq, ctranslate2, nemo or lines, or null: KBestFiles.format
cdec, joshua or moses, or null: FileModel.format
constant, inv_sqrt or 1/t: CumulativeL1.schedule FOBOS.schedule StepLearning.schedule
cpu or cuda: BatchLearning.device Pro.device Stochastic.device
de, or null: Dataset.split_compounds
drop or keep: GroupingTuner.zero_group
epoch, step or none: FOBOS.average
error or skip: KBestFiles.on_error
error or worst: ExternalScores.missing MetricMix.missing
false, true or phrases: BitextModel.unaligned_edges
fast_align, hmm or eflomal: BuiltModel.aligner
keep or drop: GrammarDecoder.unknown
none or rms: PreparedLearning.scaling
none, floor, add-k or exp: SacreBleu.smooth_method
none, single or shuffled: GroupingTuner.control
reference or none: KBestMira.scale
sentence or identical: BuiltModel.leave_out
shared or occurrences: BitextModel.counts
step or epoch: AdaGrad.regularize_each
zero or start: OnlineTuner.towards Pro.towards Stochastic.towards
sum, mean or each: Reduced.reduction
text: FileModel.language_model
true or false: AdaGrad.rowwise FTRL.rowwise OnlineTuner.shuffle PreparedLearning.merge_identical
    SparseOptimizer.lazy SparseOptimizer.maximize
true or false, or null: SparseOptimizer.wait
true, false, source or target: Dataset.tokenize
"""


def all_parts() -> Iterator[type[Checked]]:
    """Yield the classes of the package that say what they accept."""
    rooms = """losses samplers regularizers metrics optim tuners minimizer decoders models parallel
        data features"""
    for room in rooms.split():
        package = importlib.import_module(f"torchtune_smt.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "kernels" not in module.name:
                importlib.import_module(module.name)
    following = [Checked]
    while following:
        kind = following.pop()
        following += kind.__subclasses__()
        if kind.__module__.startswith("torchtune_smt."):
            yield kind


def arguments_of(kind: type) -> Mapping[str, inspect.Parameter]:
    made = kind.__init__
    return inspect.signature(made).parameters


def declared_arguments() -> dict[tuple[str, str], Rule]:
    """Return the rules of all arguments, by names of class and argument."""
    found = {}
    for kind in all_parts():
        names = arguments_of(kind)
        base = inspect.isabstract(kind) or kind.__name__.startswith("_") or "defaults" in names
        if not base:
            rules = rules_of(kind)
            found |= {(kind.__name__, name): rules[name] for name in rules if name in names}
    return found


KINDS = {kind.__name__: kind for kind in all_parts()}
RULES = declared_arguments()


def made(name: str, **given: Any) -> Any:
    needed = [
        parameter.name
        for parameter in arguments_of(KINDS[name]).values()
        if parameter.default is parameter.empty
        and parameter.kind is not parameter.VAR_KEYWORD
        and parameter.name != "self"
    ]
    return KINDS[name](**{needs: NEEDED.get(needs) for needs in needed} | given)


@pytest.mark.parametrize(("kind", "name"), RULES)
def test_a_bad_value_is_refused(kind: str, name: str) -> None:
    rule = RULES[kind, name]
    for value in rule.bad:
        with pytest.raises(ValueError) as caught:
            made(kind, **{name: value})
        assert str(caught.value) == f"{name} must be {rule.text}, not {value!r}"


@pytest.mark.parametrize(("kind", "name"), RULES)
def test_a_good_value_is_not_what_is_refused(kind: str, name: str) -> None:
    for value in RULES[kind, name].good:
        try:
            made(kind, **{name: value})
        except Exception as error:
            assert f"{name} must be" not in str(error)


def test_ranges_are_those_that_are_said() -> None:
    found: dict[str, list[str]] = {}
    for kind in KINDS.values():
        for name, rule in vars(kind).get("accepts", {}).items():
            found.setdefault(rule.text, []).append(f"{kind.__name__}.{name}")
    said = [line.partition(": ") for line in re.sub("\n +", " ", SAID).strip().splitlines()]
    assert {text: sorted(names) for text, names in found.items()} == {
        text: names.split() for text, _, names in said
    }


# The command line


def resolve(cfg: DictConfig) -> None:
    """Check options as the command does, before it makes anything of them."""
    check_options(cfg)
    if "tuner" in cfg:
        check_values(cfg, option_rules(class_of(cfg, "tuner")))
    for group in ("loss", "regularizer", "optimizer", "parallel", "engine", "tuner.solver"):
        part = OmegaConf.select(cfg, group)
        if part is not None and "_target_" in part:
            check_scalars(group, instantiate(part, _partial_=True, _convert_="object"))


plain: Any = partial(OmegaConf.to_container, resolve=False)
PARTS = [
    path
    for path in sorted(config_folder().glob("*/*.yaml"))
    if path.parent.name not in ("experiment", "features", "init", "tuner")
]


@pytest.mark.parametrize("path", PARTS, ids=lambda path: f"{path.parent.name}={path.stem}")
def test_a_bad_value_of_an_option_is_refused(path: Path) -> None:
    group, part = path.parent.name, OmegaConf.load(path)
    assert isinstance(part, DictConfig)
    kind = get_object(part.get("_target_", "torchtune_smt.data.dataset.Dataset"))
    given = {name: "a" if "${" in str(value) else value for name, value in plain(part).items()}
    rules = {name: rule for name, rule in rules_of(kind).items() if name in given}
    for name, rule in rules.items():
        for value in rule.bad:
            # What OSCAR's d may be besides is counted before the class is asked.
            cfg = OmegaConf.create({group: {**given, name: value}})
            with pytest.raises(InputError, match=rf"^{group}\.{name} must be ") as caught:
                resolve(cfg)
            assert rule.text in str(caught.value) or name == "dimension"


BAD_OPTIONS = """
seed=9223372036854775808 seed=x seed=-1 threads=1.5 threads=0 lm=none device=gpu
init.values.EgivenF=much init.scale=0 init.scale=much init.file={} init.file={hiero:3} init.file=[a]
data.empty=ignore data.lowercase=perhaps data.folders=3 model.folder=null
sampler.distinct=no metric.smooth_unigrams=flase optimizer.lr=true optimizer.regularize_dense=x
tuner.epochs=0 tuner.patience=0 tuner.sentences=0 tuner.shuffle=maybe tuner.tune_on=test
tuner=pro,tuner.interpolation=0 tuner=pro,tuner.tolerance=-1 tuner=pro,tuner.iterations=0
tuner=pro,tuner.unique=words tuner=pro,tuner.keep_lists=1 tuner=pro,tuner.sparse=all
tuner=mira,tuner.solver.C=0 tuner=mert,tuner.solver.spread=0 tuner=stochastic,tuner.solver.passes=0
tuner=grouping,tuner.zero_group=both tuner=grouping,tuner.learning=both
tuner=grouping,tuner.control=half tuner=grouping,tuner.shards=0 tuner=grouping,tuner.scaling=max
tuner=grouping,tuner.merge_identical=1 tuner=grouping,regularizer.fraction=2
tuner=grouping,regularizer.noise=1 tuner=grouping,tuner.minimizer.gap=0
tuner=grouping,tuner.minimizer.path=0 tuner=grouping,tuner.minimizer.mu=0
tuner=grouping,tuner.minimizer.loss=hinge tuner=grouping,tuner.clusters.count=0
tuner=grouping,tuner.clusters.strength=-1 tuner=grouping,tuner.passes=0
tuner=grouping,tuner.dev.iterations=0 tuner=grouping,tuner.dev.patience=0
tuner=grouping,tuner.dev.interpolation=0 tuner=grouping,tuner.dev.tolerance=-1
"""


@pytest.mark.parametrize("given", BAD_OPTIONS.split())
def test_a_bad_option_is_named(given: str) -> None:
    """Options with several owners, and those of nobody."""
    *chosen, option = given.split(",")
    Plugins.instance()
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        cfg = compose("train", [*chosen, option])
    name = "init.values" if option.startswith("init.values") else option.partition("=")[0]
    with pytest.raises(InputError, match=f"^{re.escape(name)} must be "):
        resolve(cfg)


# The rules


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (
            above(2),
            [2.0000001, 3, 1e300, np.float32(2.5), torch.tensor(3.0)],
            [2, -3, INF, 10**400, np.True_, torch.tensor(True)],
        ),
        (above(2, infinite=True), [INF, 3], [2, 1, -INF]),
        (above(0, 1), [1, 1.0, 5e-324], [0, 1.0000001, INF]),
        (above(0).or_null(), [None, 1], [0]),
        (least(2), [2, 2.5, np.int64(2)], [1.9999999, INF, -INF]),
        (least(0, infinite=True), [0, INF], [-1e-300]),
        (between(0, 1), [0.5, 5e-324, 1 - 1e-16], [0, 1, -1, INF]),
        (integer(1), [1, 2, 2**63 - 1, np.int32(1)], [0, 2**63, 1.0, 1.5, np.float64(2), "1"]),
        (integer(1, 50), [1, 50], [0, 51]),
        (integer(-1).or_null(), [-1, None], [-2]),
        (one_of("a", "b"), ["a", "b"], ["c", "", 1]),
        (one_of(1, 2, 3), [1, 3, np.int64(2)], [0, 4, "1", True]),
        (one_of(False, True, "some"), [True, False, "some"], ["any", 1, 0, "true"]),
        (SWITCH, [True, False], [1, 0, "true"]),
        (TEXT, ["a"], ["", 3]),
    ],
    ids=lambda value: value.text if isinstance(value, Rule) else "",
)
def test_rules(rule: Rule, good: list[Any], bad: list[Any]) -> None:
    for value in [*good, *rule.good]:
        rule.check("it", value)
    for value in [*bad, *rule.bad, NAN, ["a"], object()]:
        with pytest.raises(ValueError, match=f"^it must be {re.escape(rule.text)}, not "):
            rule.check("it", value)
    assert rule.fits(None) == rule.text.endswith(", or null")


def test_a_subclass_accepts_what_its_parents_do_but_for_what_it_says_anew() -> None:
    class Parent(Checked):
        accepts = accepting(a=above(0), b=above(0))

    class Child(Parent):
        accepts = accepting(b=least(0), c=SWITCH)

    assert {name: rule.text for name, rule in rules_of(Child).items()} == {
        "a": "a number above 0",
        "b": "a number, 0 or more",
        "c": "true or false",
    }
    assert set(rules_of(Parent)) == {"a", "b"} and not rules_of(Checked) and not rules_of(int)
