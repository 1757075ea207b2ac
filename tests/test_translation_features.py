"""Features of whole translations: lists against those of the search, scored anew by hand."""

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from commands import example, run_command, train_until_saved

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import example_folder
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.textio import read_lines
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.decoders.joint import JointDecoder
from torchtune_smt.decoders.phrase import PhraseDecoder
from torchtune_smt.features import RuleId, TargetNgram
from torchtune_smt.kbest.lists import Source
from torchtune_smt.lm.classes import write_classes
from torchtune_smt.lm.estimate import DISCOUNT_FALLBACK, estimate
from torchtune_smt.lm.model import NgramModel
from torchtune_smt.models import BitextModel, FileModel, PhraseModel
from torchtune_smt.models.built import JointModel

TEMPLATES = (TargetNgram(), TargetNgram(3), TargetNgram(2, classes=True))
OWN = tuple(template.name for template in TEMPLATES)
SMALL = {"order": 3, "discount_fallback": DISCOUNT_FALLBACK, "iterations": 2, "folds": 0}
KINDS = {"hiero": (BitextModel, HieroDecoder), "phrase": (PhraseModel, PhraseDecoder)}


@pytest.fixture(scope="module")
def bitext():
    whole = example().require("train")
    return Corpus(*(part[:150] for part in (whole.source, whole.references, whole.lines)), {})


@pytest.fixture(scope="module")
def sources(bitext):
    known = [Source(i, words) for i, words in enumerate(bitext.source[:12])]
    return [*known, Source(12, []), Source(13, ["~:", "haus", "_"])]


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        name: kind(str(folder / name), "fast_align", classes=7, class_order=4, **SMALL)
        for name, (kind, _) in KINDS.items()
    }


@pytest.fixture(scope="module")
def models(settings, bitext):
    return {name: one.open(lambda: bitext, report=str) for name, one in settings.items()}


def random_weights(decoder, sources, seed):
    """Weights of all that a decoder's lists have."""
    random = np.random.default_rng(seed)
    flat = FrozenWeights.of(dict.fromkeys(decoder.dense_names, 0.1))
    features = decoder.fork().decode(sources, flat).features
    names = features.names(range(len(features)))
    return FrozenWeights.of(dict(zip(names, random.normal(size=len(names)).tolist(), strict=True)))


def by_hand(words, model):
    """What a translation has."""
    found = Counter()
    escaped = [w.translate({ord(c): f"%{ord(c):02X}" for c in "%_~=|[]:"}) for w in words]
    classes = [model.classes.target.get(word, "unk") for word in words]
    for i in range(len(words)):
        if i + 2 <= len(words):
            found[f"ngram2:{'_'.join(escaped[i : i + 2])}"] += 1
            found[f"class_ngram2:{'_'.join(classes[i : i + 2])}"] += 1
        if i + 3 <= len(words):
            found[f"ngram3:{'_'.join(escaped[i : i + 3])}"] += 1
    found["ClassLM"] = model.class_model.score(classes)[0]
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", KINDS)
def test_lists_are_those_of_the_search_scored_by_hand(models, sources, name, seed):
    kind, model = KINDS[name][1], models[name]
    decoder = kind(model, templates=[RuleId(), *TEMPLATES], k=20)
    weights = random_weights(decoder, sources, seed)
    value = dict(zip(weights.features.names(range(len(weights))), weights.values, strict=True))
    search = kind(replace(model, class_model=None), templates=[RuleId()], k=20)
    expected = []
    for kbest in search.decode(sources, weights):
        entries = []
        for h in range(len(kbest)):
            row = search.features.named(*kbest.row(h)) | by_hand(kbest.text(h).split(), model)
            row = {feature: v for feature, v in row.items() if v}
            entries.append((sum(value.get(f, 0.0) * v for f, v in row.items()), kbest.text(h), row))
        expected.append(sorted(entries, key=lambda entry: -entry[0]))
    found = decoder.decode(sources, weights)
    found.check()
    assert found.features is decoder.features
    for kbest, entries in zip(found, expected, strict=True):
        assert [kbest.text(h) for h in range(len(kbest))] == [text for _, text, _ in entries]
        assert kbest.score.tolist() == pytest.approx([score for score, _, _ in entries], abs=1e-9)
        for h, (_, _, row) in enumerate(entries):
            assert decoder.features.named(*kbest.row(h)) == pytest.approx(row)
    # A shorter list begins as the whole one does.
    for one, kbest in zip(decoder.decode(sources, weights, k=2), found, strict=True):
        assert one.texts() == kbest.texts(min(2, len(kbest)))
    assert max(len(kbest) for kbest in decoder.decode(sources, weights, k=40)) > 20
    # So does what is said of the best one.
    for source, kbest in zip(sources, found, strict=True):
        parts = decoder.derivation(source, weights).parts
        assert words_of(parts) == kbest.text(0).split()
    assert decoder.feature_ids(sources) is None
    assert search.feature_ids(sources) is not None
    assert decoder.has_feature("ngram3:a_b_c") and not decoder.has_feature("ngram4:a_b_c_d")


def words_of(parts):
    words = []
    for part in parts:
        for word in part.target.split():
            gap = {"[1]": 0, "[2]": 1}.get(word)
            words += [word] if gap is None else words_of(part.parts[gap : gap + 1])
    return words


def test_in_a_pool_each_part_has_its_own(settings, models, sources, bitext):
    model = JointModel(**settings).open(lambda: bitext, report=str)
    parts = (partial(KINDS[name][1], k=10) for name in KINDS)
    joint = JointDecoder(model, *parts, templates=[RuleId(), *TEMPLATES])
    weights = random_weights(joint, sources, 1)
    found = joint.decode(sources, weights)
    for name in KINDS:
        for h in range(found.n_hypotheses):
            row = joint.features.named(*found.row(h))
            if f"{name}_missing" not in row:
                own = {n.removeprefix(f"{name}_"): v for n, v in row.items()}
                own = {n: v for n, v in own.items() if n.partition(":")[0] in ("ClassLM", *OWN)}
                assert own == pytest.approx(by_hand(found.text(h).split(), models[name]))
    assert joint.feature_ids(sources) is None and joint.has_feature("hiero_class_ngram2:1_2")


def test_a_model_keeps_its_language_model_of_classes(settings, models, bitext, tmp_path):
    own, model = settings["hiero"], models["hiero"]
    classes = [[model.classes.target[word] for word in words] for words in bitext.targets]
    expected = NgramModel.from_ngrams(estimate(classes, 4, DISCOUNT_FALLBACK))
    assert model.class_model.score_all(classes)[0] == pytest.approx(expected.score_all(classes)[0])
    # One that is there does no harm, and is not used.
    without = replace(own, class_order=None)
    assert without.why_not_built(bitext) is None
    assert without.open(lambda: bitext, report=str).class_model is None
    said = []
    other = replace(own, folder=str(tmp_path / "other"), class_order=2)
    other.build(bitext, said.append)
    assert said[-1].startswith("estimated a language model of classes, of order 2")
    assert replace(other, class_order=3).why_not_built(bitext) == (
        "it was built with class_order=2, not 3"
    )
    opened = [one.open(lambda: bitext, report=str) for one in (own, without, other)]
    assert len({model.language_model_part.digest for model in opened}) == 3
    with pytest.raises(ValueError, match="class_order needs classes"):
        replace(own, classes=None)
    with pytest.raises(InputError, match="has seen all sentences"):
        replace(own, folds=10).check_training(True)


def test_a_language_model_of_classes_of_a_file(settings, models, bitext, tmp_path):
    own = settings["hiero"]
    (tmp_path / "grammar").write_text("[X] ||| das ||| the ||| F=1\n")
    files = [tmp_path / "source", tmp_path / "target"]
    for path, classes in zip(files, models["hiero"].classes[:2], strict=True):
        write_classes(path, classes)
    given = [str(tmp_path / "grammar"), f"{own.folder}/lm.arpa.gz", None, *map(str, files)]
    arpa = f"{own.folder}/classes.arpa.gz"
    model = FileModel(*given, arpa).open(example)
    assert model.class_model.checksum == models["hiero"].class_model.checksum
    assert model.language_model_part != FileModel(*given).open(example).language_model_part
    # Other classes are another feature.
    write_classes(files[1], models["hiero"].classes.target | {"the": "6"})
    assert model.language_model_part != FileModel(*given, arpa).open(example).language_model_part
    write_classes(files[1], dict.fromkeys(models["hiero"].classes.target, "none"))
    with pytest.raises(InputError, match=r"knows none of the classes of model\.target_classes"):
        FileModel(*given, arpa).open(example)
    with pytest.raises(ValueError, match="class_language_model needs"):
        FileModel(*given[:3], class_language_model="x")


def test_classes_that_are_not_there(models):
    for kind, model in ((HieroDecoder, models["hiero"]), (PhraseDecoder, models["phrase"])):
        with pytest.raises(ValueError, match="class_ngram2 features need the classes of words"):
            kind(replace(model, classes=None, class_model=None), templates=[TEMPLATES[2]])
    with pytest.raises(ValueError, match="n must be"):
        TargetNgram(0)


def weights_of(run):
    return read_lines(run / "weights.txt.gz")


def test_they_are_tuned_resumed_and_translate(tmp_path):
    few = ["features=sparse_ngrams", "model.classes=9", "model.class_order=3", "tuner.epochs=2"]
    few += ["tuner.sentences=20", "decoder.pop_limit=10", "decoder.k=10", "threads=1"]
    few += ["tuner.checkpoint_minutes=0"]
    run_command("train", *few, "hydra.run.dir=run", folder=tmp_path).check()
    weights = weights_of(tmp_path / "run")
    found = dict(line.split() for line in weights if not line.startswith("#"))
    assert "ClassLM" in found and any(name.startswith("class_ngram2:") for name in found)
    train_until_saved(tmp_path, *few, "hydra.run.dir=cut")
    run_command("train", "resume=cut", folder=tmp_path).check()
    assert weights_of(tmp_path / "cut") == weights
    given = ["weights=run/weights.txt.gz", f"input={example_folder() / 'dev.de'}"]
    best = run_command("translate", *given, folder=tmp_path).check().out.splitlines()
    assert best == read_lines(tmp_path / "run" / "dev.translations.txt")
    # What is best depends on how long the list is.
    one = run_command("translate", *given, "decoder.k=1", folder=tmp_path).check().out
    assert one.splitlines() != best


@pytest.mark.parametrize("decoder", ["hiero", "joint"])
def test_workers_decode_to_the_same_bits(decoder, tmp_path):
    parts = [""] if decoder == "hiero" else ["hiero.", "phrase."]
    batch = [f"decoder={decoder}", "features=sparse_ngrams", "tuner=mira", "tuner.iterations=2"]
    batch += [f"decoder.{part}{one}=10" for part in parts for one in ("pop_limit", "k")]
    batch += [f"model.{p}{o}" for p in parts for o in ("classes=9", "class_order=3")]
    batch.append("data.test=null")
    for folder, more in (("serial", []), ("workers", ["parallel=decode", "engine.workers=2"])):
        run_command("train", *batch, *more, f"hydra.run.dir={folder}", folder=tmp_path).check()
    assert weights_of(tmp_path / "workers") == weights_of(tmp_path / "serial")


def test_oscar_is_told_how_many_there_are(tmp_path):
    oscar = ["regularizer=oscar", "optimizer=fobos", "features=sparse_ngrams", "model.classes=9"]
    given = [*oscar, "tuner.sentences=5", "tuner.epochs=1", "data.test=null"]
    run_command("train", *given, folder=tmp_path).refused("regularizer.dimension=100000")
    run_command("train", *given, "regularizer.dimension=100000", folder=tmp_path).check()


class Odd:
    """Answers what it is told to."""

    name = "odd"

    def __init__(self, answer):
        self.answer = answer

    def translation_features(self, words):
        return self.answer


@pytest.mark.parametrize("answer", [None, {"odd:a": 2.0}, [1], ["even:a"], ["odd:a b"]])
def test_what_an_own_template_may_not_answer(models, sources, answer):
    decoder = HieroDecoder(models["hiero"], templates=[Odd(answer)], k=3)
    with pytest.raises(InputError, match="Odd answers"):
        decoder.decode(sources, FrozenWeights.of({"Glue": 1.0}))
    assert len(decoder.decode([], FrozenWeights.of({}))) == 0


def test_a_template_looks_at_rules_or_at_translations(tmp_path):
    (tmp_path / "both.py").write_text(
        "from torchtune_smt.features import RuleId\n"
        "class Both(RuleId):\n    def translation_features(self, words):\n        return []\n"
    )
    given = ["features.templates=[{_target_:both.Both}]"]
    said = "Both has features and translation_features; make two templates of it"
    run_command("train", *given, folder=tmp_path).refused(said)
