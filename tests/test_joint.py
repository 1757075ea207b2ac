"""Two decoders in one list: against the union scored by hand; tuned, resumed, in shards."""

import shutil
from collections import Counter
from functools import partial
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import small_lists
from commands import run_command, train_until_saved
from test_online import ListDecoder

from torchtune_smt.core.resources import example_folder
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.decoders.joint import JointDecoder
from torchtune_smt.decoders.phrase import PhraseDecoder
from torchtune_smt.features import LexReordering, RuleId
from torchtune_smt.kbest.lists import Source
from torchtune_smt.models import load_model
from torchtune_smt.models.built import PooledModels


class Listed(ListDecoder):
    """Meets the features and words of all entries, in the order of its lists."""

    def decode(self, sources, snapshot, *, k=None):
        self.meet(sources)
        return super().decode(sources, snapshot, k=k)

    def meet(self, sources):
        for source in sources:
            for text, row, _ in self.lists[source.index]:
                self.features.intern(list(row))
                self.words.intern(text.split())


def joint_of(**given):
    def part(name, **_):
        some = [[(*entry, 0.0) for entry in entries] for entries in given[name]]
        return Listed(some, ["lm"], Vocabulary(["lm"]))

    models = SimpleNamespace(models={"hiero": None, "phrase": None})
    return JointDecoder(models, partial(part, "hiero"), partial(part, "phrase"))


def lists(random, sentences, most):
    return [
        [
            (
                " ".join(random.choices("abc", k=random.randint(0, 4))),
                {"lm": random.uniform(-3, -1)}
                | {f"t:{i}": random.choice((1.0, 2.0)) for i in random.sample(range(9), 2)},
            )
            for _ in range(random.randint(1, most))
        ]
        for _ in range(sentences)
    ]


def score(row, weights, prefix=""):
    return sum(weights.get(prefix + name, 0.0) * value for name, value in row.items())


def union(parts, weights):
    """The pooled list of one sentence, written down as the class describes it."""
    ranked, mass, grams = {}, Counter[str](), Counter[tuple[str, ...]]()
    for name, found in parts.items():
        own: dict[str, dict[str, float]] = {}
        order = sorted(found, key=lambda one: -score(one[1], weights, f"{name}_"))
        for text, row in order:
            own.setdefault(text, row)
        rank = {text: [t for t, _ in order].index(text) + 1 for text in own}
        total = sum(1 / r for r in rank.values())
        mass.update({text: 1 / r / total / len(parts) for text, r in rank.items()})
        ranked[name] = own, order[-1][1]
    of = {
        text: [tuple(w[i : i + n]) for n in range(1, 5) for i in range(len(w) - n + 1)]
        for text in mass
        for w in [text.split()]
    }
    for text, some in of.items():
        grams.update(dict.fromkeys(some, mass[text]))
    pool = []
    for text in mass:
        row: dict[str, float] = {}
        for name, (own, last) in ranked.items():
            row |= {f"{name}_{n}": value for n, value in own.get(text, last).items()}
            row[f"{name}_missing"] = float(text not in own)
        for n in range(1, 5):
            row[f"Agreement_{n}"] = sum(grams[gram] for gram in of[text] if len(gram) == n)
        pool.append((text, {n: v for n, v in row.items() if v}))
    return sorted(pool, key=lambda one: -score(one[1], weights))


def decoded(decoder, weights, n, k=None):
    return decoder.decode([Source(i) for i in range(n)], FrozenWeights.of(weights), k=k)


@pytest.mark.parametrize("seed", range(20))
def test_lists_are_the_union_of_both_scored_by_hand(seed):
    random = Random(seed)
    given = {name: lists(random, 3, 6) for name in ("hiero", "phrase")}
    decoder = joint_of(**given)
    own = [f"{p}_{n}" for p in given for n in ("lm", "missing", *(f"t:{i}" for i in range(9)))]
    own += [f"Agreement_{n}" for n in range(1, 5)]
    weights = {name: random.uniform(-1, 1) for name in own}
    found = decoded(decoder, weights, 3)
    found.check()
    assert found.features is decoder.features
    for s, kbest in enumerate(found):
        expected = union({name: own[s] for name, own in given.items()}, weights)
        assert [kbest.text(h) for h in range(len(kbest))] == [text for text, _ in expected]
        for h, (_, row) in enumerate(expected):
            assert decoder.features.named(*kbest.row(h)) == pytest.approx(row)
        assert kbest.score.tolist() == pytest.approx([score(r, weights) for _, r in expected])
    best = decoded(decoder, weights, 3, k=2)
    assert [len(kbest) for kbest in best] == [min(2, len(kbest)) for kbest in found]
    assert [kbest.text(0) for kbest in best] == [kbest.text(0) for kbest in found]


def test_features_have_the_same_ids_whatever_the_weights():
    given = {name: lists(Random(3), 4, 5) for name in ("hiero", "phrase")}
    names = []
    for weight in (1.0, -1.0):
        joint = joint_of(**given)
        decoded(joint, {"hiero_t:1": weight, "phrase_t:2": weight}, 4)
        names.append(joint.features.names(range(len(joint.features))))
    met = joint_of(**given)
    met.meet([Source(i) for i in range(4)])
    assert names[0] == names[1] == met.features.names(range(len(met.features)))
    fork = met.fork()
    fork.features.intern(["new"])
    assert "new" not in met.features and fork.words is met.words


SHORT = ["decoder=joint", "features=green2013_joint", "tuner.epochs=2", "tuner.sentences=20"]
SHORT += ["decoder.hiero.k=10", "decoder.phrase.k=10", "decoder.phrase.pop_limit=20"]
SHORT += ["decoder.hiero.pop_limit=10", "tuner.result=last", "data.test=null", "threads=1"]


KINDS = {"hiero": "", "phrase": "-phrase"}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    place = tmp_path_factory.mktemp("joint")
    said = run_command("train", *SHORT, "hydra.run.dir=run", folder=place).check().out
    assert said.count("building the model in ") == 2
    return place


def weights_of(run):
    return small_lists.weights_of(run / "weights.txt.gz")


def test_a_run_has_features_of_both_and_translates_as_it_did(tuned):
    found = {name.partition(":")[0] for name in weights_of(tuned / "run") if ":" in name}
    of_rules = {"rule_id", "source_ngram", "rule_shape", "alignment"}
    assert found == {f"{p}_{t}" for p in ("hiero", "phrase") for t in of_rules} | {
        "phrase_lex_reordering"
    }
    given = ["weights=run/weights.txt.gz", f"input={example_folder() / 'dev.de'}"]
    best = run_command("translate", *given, folder=tuned).check().out.splitlines()
    assert best == read_lines(tuned / "run" / "dev.translations.txt")
    ranked = run_command("translate", *given, "n_best=2", folder=tuned).check().out.splitlines()
    assert {line.split(" ||| ")[1] for line in ranked} >= set(best)
    safe = run_command("translate", *given, "mbr=true", folder=tuned).check().out.splitlines()
    assert len(safe) == len(best) and safe != best


def test_what_is_known_of_features_and_words_before_decoding(tuned):
    models = {n: load_model(tuned / "outputs/models" / f"example{e}") for n, e in KINDS.items()}
    pooled = PooledModels(models["hiero"].grammar, models["hiero"].language_model, models=models)
    templates = [RuleId(), LexReordering()]
    parts = partial(HieroDecoder, k=10), partial(PhraseDecoder, k=10)
    joint = JointDecoder(pooled, *parts, templates=templates)
    fewer = partial(PhraseDecoder, templates=["lex_reordering"])
    few = JointDecoder(pooled, parts[0], fewer, templates=templates)
    assert few.has_feature("hiero_rule_id:a~a") and not few.has_feature("phrase_rule_id:a~a")
    sources = [Source(0, ["ich", "habe", "xyz"]), Source(1, "das ist gut .".split())]
    known = joint.feature_ids(sources)
    lists = joint.decode(sources, FrozenWeights.of({"hiero_Glue": -1.0, "phrase_LM0_0": 1.0}))
    assert known is not None and (np.diff(known) > 0).all()
    sparse = np.unique(lists.rows.feature[lists.rows.feature >= len(joint.dense_names)])
    assert sparse.size > 50 and np.isin(sparse, known).all()
    names = joint.features.names(range(len(joint.features)))
    assert all(map(joint.has_feature, names))
    others = "rule_id:a~a other_rule_id:a~a hiero_lex_reordering:swap hiero_LM0_0 missing"
    assert not any(map(joint.has_feature, others.split()))
    assert [joint.uncovered(source) for source in sources] == [["xyz"], []]
    assert lists[0].text(0).split()[-1] == "xyz"
    options = {"hiero": {"max_words": 9}, "phrase": {"max_words": 7}}
    assert JointDecoder.longest_source(options) == 7


def test_a_run_is_resumed(tuned):
    train_until_saved(tuned, *SHORT, "hydra.run.dir=killed")
    run_command("train", "resume=killed", folder=tuned).check()
    assert weights_of(tuned / "killed") == weights_of(tuned / "run")


def test_workers_decode_to_the_same_bits(tuned):
    batch = ["decoder=joint", *SHORT[1:2], *SHORT[3:7], "data.test=null", "tuner=mira"]
    batch.append("tuner.iterations=2")
    for folder, more in (("serial", []), ("workers", ["parallel=decode", "engine.workers=2"])):
        run_command("train", *batch, *more, f"hydra.run.dir={folder}", folder=tuned).check()
    assert weights_of(tuned / "workers") == weights_of(tuned / "serial")


def test_threads_tune_it(tuned):
    run_command("train", *SHORT, "parallel=stale", "hydra.run.dir=stale", folder=tuned).check()
    assert weights_of(tuned / "stale").keys() >= {"hiero_LanguageModel", "phrase_LM0_0"}


STARTED = [*SHORT, "init=file", "init.scale=auto", "tuner.towards=start", "seed=3"]
EACH = "init.file={phrase:phrase/weights.txt.gz,hiero:hiero/weights.txt.gz}"


@pytest.fixture(scope="module")
def each(tuned):
    """A place with a run of each part by itself, too."""
    few = ["tuner.epochs=1", "tuner.sentences=20", "data.test=null", "threads=1"]
    for part in KINDS:
        more = [f"decoder={part}", f"model={part}", f"hydra.run.dir={part}"]
        run_command("train", *few, "decoder.pop_limit=10", *more, folder=tuned).check()
    return tuned


def test_a_start_from_the_weights_of_each_part(each):
    """It is the one from a file of both, which a few lines of shell can write."""
    text = ""
    for part in KINDS:
        lines = read_lines(each / part / "weights.txt.gz")
        text += "".join(f"{part}_{line}\n" for line in lines if not line.startswith("#"))
    (each / "both.txt").write_text(text, "utf-8")
    logs = []
    for name, file in (("by_hand", "init.file=both.txt"), ("of_each", EACH)):
        options = [*STARTED, file, f"hydra.run.dir={name}"]
        said = run_command("train", *options, folder=each).check().out
        # Of templates that are not those of the run by itself, and of nothing else.
        assert "the grammar" not in said and "left out" not in said
        logs.append([line for line in said.splitlines() if "init.scale=" in line])
    assert logs[0] == logs[1] and len(logs[0]) == 1
    assert weights_of(each / "of_each") == weights_of(each / "by_hand")
    assert said.count("phrase/weights.txt.gz: belongs to the features dense") == 1
    train_until_saved(each, *STARTED, EACH, "hydra.run.dir=cut")
    run_command("train", "resume=cut", folder=each).check()
    assert weights_of(each / "cut") == weights_of(each / "by_hand")


def test_a_start_from_a_moses_ini(each):
    ini = "[weight]\nTranslationModel0= 0.1 0.2 0.3 0.4\nKENLM0= 0.5\n[feature]\n"
    ini += "PhraseDictionaryMemory name=TranslationModel0 num-features=4\nKENLM name=KENLM0\n"
    (each / "moses.ini").write_text(ini, "utf-8")
    lines = [f"TranslationModel0_{i} {(i + 1) / 10}" for i in range(4)] + ["LM0_0 0.5"]
    lines = [f"phrase_{line}" for line in lines] + ["hiero_LanguageModel 0.7"]
    (each / "alone.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    (each / "hiero.txt").write_text("LanguageModel 0.7\n", "utf-8")
    for name, file in (("ini", "{phrase:moses.ini,hiero:hiero.txt}"), ("alone", "alone.txt")):
        options = [*STARTED, f"init.file={file}", f"hydra.run.dir={name}"]
        run_command("train", *options, folder=each).check()
    assert weights_of(each / "ini") == weights_of(each / "alone")
    options = [*STARTED, EACH, "hydra.run.dir=phrase", "overwrite=true"]
    said = "phrase/weights.txt.gz: is a file that is read (init.file.phrase)"
    run_command("train", *options, folder=each).refused(said)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "init.file={hier:x}",
            "has a file for a part hier of the decoder, and its parts are hiero",
        ),
        ("init.file={hiero:x,phrase:y}", "x: no such file"),
        ("init.file={}", "init.file must be a file, null, or names of the decoder's parts with"),
        ("init.file={hiero:null}", "init.file must be a file, null, or names"),
        # Those of the other part.
        (
            "init.file={hiero:alone.txt,phrase:alone.txt}",
            "alone.txt: has no weight for any of this model's dense",
        ),
        ("init.file={hiero:x}", "has no file for the part phrase of the decoder"),
        (
            "init.file={hiero:x,phrase:x} +init.values.x=1",
            "init.file has the weights, and +init.values.x",
        ),
        ("decoder=hiero model=hiero init.file={hiero:x}", "and this one has no parts; name one"),
    ],
)
def test_a_start_that_is_wrong(options, message, tuned):
    (tuned / "alone.txt").write_text("TranslationModel0_0 0.1\n", "utf-8")
    options = ["decoder=joint", "init=file", *options.split(), "hydra.run.dir=bad"]
    run_command("train", *options, folder=tuned).refused(message)
    assert not (tuned / "bad").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("decoder=joint model=hiero", "needs a model of each of its parts; take model=joint"),
        (
            "decoder=joint decoder.hiero.templates=[lex_reordering] features=green2013_joint",
            "decoder.hiero: templates has lex_reordering, and is to choose of rule_id",
        ),
        ("decoder=joint decoder.hiero.pop_limit=0", "decoder.hiero: pop_limit must be"),
    ],
)
def test_what_is_wrong_is_said(options, message, tuned):
    run_command("train", *options.split(), "hydra.run.dir=bad", folder=tuned).refused(message)


def test_classes_are_asked_of_the_parts_that_need_them(tuned):
    given = ["decoder=joint", "features=sparse_classes", "model.phrase.classes=9"]
    outcome = run_command("train", *given, "hydra.run.dir=bad", folder=tuned)
    outcome.refused("decoder.hiero: class_rule_id features need the classes of words")
    # No model was built before.
    assert "classes" not in outcome.out
    few = [option for option in SHORT if not option.startswith(("decoder=", "features="))]
    few += ["decoder.hiero.templates=[source_ngram]", "hydra.run.dir=of_one"]
    unused = ["model.hiero.classes=9", "hydra.run.dir=bad"]
    said = "none of the templates is of classes (features.templates), and model.hiero.classes=9"
    run_command("train", *given, *few, *unused, folder=tuned).refused(said)
    run_command("train", *given, *few, folder=tuned).check()
    # Nor does one that does not order phrases, of a template that looks at that.
    order = "features.templates=[{_target_:torchtune_smt.features.LexReordering,classes:true}]"
    options = [*few[:-2], "decoder=joint", order, "model.phrase.classes=9"]
    run_command("train", *options, "hydra.run.dir=orders", folder=tuned).check()
    names = {name.split(":")[0] for name in weights_of(tuned / "of_one")}
    assert {"phrase_class_rule_id", "hiero_source_ngram"} <= names
    assert "hiero_class_rule_id" not in names


def test_models_are_built_and_found(tuned):
    shutil.rmtree(tuned / "outputs" / "models" / "example-phrase")
    said = run_command("build_model", "model=joint", folder=tuned).check().out
    assert "the model lies in outputs/models/example and outputs/models/example-phrase, " in said
    again = run_command("build_model", "model=joint", folder=tuned).check().out
    assert "outputs/models/example-phrase is up to date" in again


def test_the_mean_of_weights_of_two_runs(tuned):
    run_command("train", *SHORT, "seed=2", "hydra.run.dir=other", folder=tuned).check()
    both = [weights_of(tuned / name) for name in ("run", "other")]
    mean = {n: sum(w.get(n, 0.0) for w in both) / 2 for n in {**both[0], **both[1]}}
    text = "".join(f"{n} {value!r}\n" for n, value in mean.items())
    (tuned / "run" / "mean.txt").write_text(text, "utf-8")
    given = [f"input={example_folder() / 'dev.de'}", "n_best=1"]
    lines = []
    for options in (["mean.txt"], ["weights.txt.gz", "mean_with=[other/weights.txt.gz]"]):
        weights = [f"weights=run/{options[0]}", *options[1:]]
        found = run_command("translate", *weights, *given, folder=tuned).check()
        lines.append([line.split(" ||| ")[1::2] for line in found.out.splitlines()])
    assert lines[0] == lines[1]
    head = "# torchtune_smt weights, which belong to\n# grammar: g [0123456789abcdef]\n"
    head += "# language model: l [0123456789abcdef]\n# features: f\n# text: de-en\n"
    (tuned / "alien.txt").write_text(f"{head}{text}", "utf-8")
    options = ["weights=run/weights.txt.gz", "mean_with=[alien.txt]", *given]
    said = "alien.txt: belongs to the grammar g [0123456789abcdef]"
    run_command("translate", *options, folder=tuned).refused(said)
