"""Tuning on lists from files to the report: figures against simple ones, and refusals."""

import base64
import json
import tarfile
from dataclasses import replace
from itertools import product
from xml.etree import ElementTree

import numpy as np
import pytest
from commands import run_command
from pages import check_self_contained
from small_lists import as_set, put, weights_of

from torchtune_smt import Vocabulary, tune_lists
from torchtune_smt.core.errors import InputError
from torchtune_smt.evaluation.oracle import best_choice
from torchtune_smt.evaluation.report import write_tuned
from torchtune_smt.kbest.forms import read_lists
from torchtune_smt.metrics import CharacterErrorRate, WordErrorRate
from torchtune_smt.tuners.expected import ExpectedErrors


def records(seed, n, noise=1.0, k=5):
    """Sentences of which `good` says what has fewer errors, and `own` what the decoder thought."""
    generator = np.random.default_rng(seed)
    found = []
    for number in range(n):
        words = [f"w{w}" for w in generator.integers(0, 9, 6)]
        hypotheses = []
        for _ in range(k):
            wrong = generator.random(6) < generator.random() * 0.6
            text = " ".join("x" if bad else word for word, bad in zip(words, wrong, strict=True))
            good = float(-wrong.sum() + noise * generator.standard_normal())
            own = float(generator.standard_normal())
            features = {"good": good, "own": own}
            hypotheses.append({"text": text, "features": features, "score": 0.2 * good + own})
        hypotheses.sort(key=lambda one: -one["score"])
        id, references = f"s{number % 7}-{seed}-{number}", [" ".join(words)]
        found.append({"id": id, "hypotheses": hypotheses, "references": references})
    return found


def files_of(name, some):
    """Return lists as files: these, the references, and the speakers."""
    ids = [str(one["id"]) for one in some]
    texts = [f"{id} {one['references'][0]}" for id, one in zip(ids, some, strict=True)]
    speakers = [f"{id} {id.partition('-')[0]}" for id in ids]
    return {name: map(json.dumps, some), f"{name}.text": texts, f"{name}.spk": speakers}


def wrong(hypothesis):
    """The words that are wrong are x, and no other differs."""
    return hypothesis["text"].split().count("x")


def test_what_is_reported_is_what_is_there():
    vocabularies = Vocabulary(), Vocabulary()
    made = {"d": records(1, 150), "t": records(2, 80)}
    sets = [as_set(name, some, vocabularies, groups=True) for name, some in made.items()]
    said = []
    tuned = tune_lists(
        *sets, metric=WordErrorRate(), held_out=[CharacterErrorRate()], samples=500, say=said.append
    )
    assert said == ["these lists were sorted by 0.2 good + 1 own"]
    by = {(one.what, one.measure.name): one for one in tuned.judged}
    assert set(by) == set(product(["d", "d, 5 folds", "t"], ["WER", "CER"]))
    w = tuned.weights.values[tuned.weights.features.lookup(["good", "own"])]
    for name, some in made.items():
        table = [[wrong(h) for h in r["hypotheses"]] for r in some]
        one = by[name, "WER"]
        each = 100 / (6 * len(some))
        assert one.before == pytest.approx(each * sum(row[0] for row in table))
        assert one.best == pytest.approx(each * sum(map(min, table)))
        assert one.worst == pytest.approx(each * sum(map(max, table)))
        after = [
            row[int(np.argmax([w @ [*h["features"].values()] for h in r["hypotheses"]]))]
            for row, r in zip(table, some, strict=True)
        ]
        assert one.after == pytest.approx(each * sum(after))
        assert one.low < one.after < one.high
    # Chosen by it, it has no p. Of the 2^7 ways to swap groups, two are as extreme.
    assert by["d", "WER"].p is None
    assert by["t", "WER"].p == 2 / 2**7
    assert by["d", "WER"].after <= by["d, 5 folds", "WER"].after < by["d", "WER"].before
    assert [one.start for one in tuned.ranges] == pytest.approx([0.2, 1.0])
    for one in tuned.ranges:
        assert one.equal[0] <= one.weight <= one.equal[1]
        assert one.gaining[0] <= one.equal[0] <= one.equal[1] <= one.gaining[1]
        middles = (one.curve.bound[1:] + one.curve.bound[:-1]) / 2
        inside = (middles > one.gaining[0]) & (middles < one.gaining[1])
        assert (-100 * one.curve.score[inside] < by["d", "WER"].before - 1e-6).all()
    assert "5 folds" in tuned.text()


def test_cross_validation_tells_noise_from_gain():
    """Features without meaning: on the lists tuned on there is a gain, and none elsewhere."""
    gains = []
    for seed in range(8):
        some, generator = records(seed, 60), np.random.default_rng(seed)
        for one in (h for r in some for h in r["hypotheses"]):
            one["features"] = dict(zip("abc", generator.standard_normal(3), strict=True))
            one["score"] = one["features"]["a"]
        for one in some:
            one["hypotheses"].sort(key=lambda h: -h["score"])
        tuned = tune_lists(as_set("d", some, groups=True), metric=WordErrorRate(), samples=50)
        gains.append([one.before - one.after for one in tuned.judged])
    gained, expected = np.transpose(gains)
    assert min(gained) > 0 and np.mean(gained) > 4 > 2.5 > abs(np.mean(expected))


@pytest.mark.parametrize(("lists", "line"), [(3, "d, 3 folds"), (1, "d")])
def test_few_lists_have_few_folds(lists, line):
    dev = as_set("d", records(1, lists), groups=True)
    tuned = tune_lists(dev, metric=WordErrorRate(), samples=20)
    assert tuned.judged[-1].what == line
    assert "no more groups" in tuned.text()


def test_a_fold_without_anything_to_learn_has_the_start():
    some = records(1, 12)
    for one in some[1:]:
        one["hypotheses"] = [one["hypotheses"][0]] * 2
    given = {"metric": WordErrorRate(), "solver": ExpectedErrors(), "folds": 3, "samples": 20}
    tuned = tune_lists(as_set("d", some), **given)
    assert sum("start: no list" in note for note in tuned.notes) == 1


@pytest.mark.parametrize("seed", range(5))
def test_the_best_choice_by_brute_force(seed):
    generator = np.random.default_rng(seed)
    statistics = generator.integers(1, 7, (9, 2))
    if seed % 2:
        statistics[:, 1] = 4
    begin = np.array([0, 3, 6, 9])
    score = lambda sums: -sums[..., 0] / sums[..., 1]  # noqa: E731
    found = score(statistics[best_choice(statistics, begin, score)].sum(axis=0))
    choices = product(range(3), range(3, 6), range(6, 9))
    every = sorted(float(score(statistics[list(c)].sum(axis=0))) for c in choices)
    # A ratio with other denominators is no sum over sentences.
    assert found == pytest.approx(every[-1]) if seed % 2 else found >= every[-2]


def test_the_command(tmp_path):
    put(tmp_path, files_of("d", records(1, 60)) | files_of("t", records(2, 60)))
    lists = ["dev=d", "test=t", "metric=wer", "samples=100", "html=report.html"]
    given = [*lists, "references=d.text", "test_references=t.text"]
    outcome = run_command("tune", *given, "groups=-", folder=tmp_path).check()
    assert "these lists were sorted by 0.2 good + 1 own" in outcome.out + outcome.err
    assert "d, 5 folds" in outcome.out and "Now try: " in outcome.err
    assert sorted(weights_of(tmp_path / "tuned.weights.txt")) == ["good", "own"]
    page = (tmp_path / "report.html").read_text()
    assert "d, 5 folds" in page and "data:image/svg" in page
    # A file says the same, and so do the lists: they have references, too.
    put(tmp_path, {"spk": "".join((tmp_path / f"{name}.spk").read_text() for name in "dt")})
    for same in ([*given, "groups=spk"], [*lists, "groups=-"]):
        assert run_command("tune", *same, folder=tmp_path).check().out == outcome.out


def test_the_page_is_whole_and_asks_for_nothing(tmp_path):
    """Names come from files of others."""
    hostile = "<script>alert(1)</script>&amp;'\""
    some = records(1, 20)
    for one in (h for r in some for h in r["hypotheses"]):
        one["features"] = dict(zip("f<", one["features"].values(), strict=True))
    tuned = tune_lists(as_set(hostile, some), metric=WordErrorRate())
    write_tuned(tmp_path / "page.html", tuned)
    page = check_self_contained((tmp_path / "page.html").read_text("utf-8"))
    icon, asked = page.asked
    head, _, picture = asked.partition(",")
    assert (icon, head) == ("data:,", "data:image/svg+xml;base64")
    assert ElementTree.fromstring(base64.b64decode(picture)).tag.endswith("svg")
    assert hostile in page.words


def test_weights_that_are_as_good_as_before_are_not_better():
    """With the first feature below 0.5 the second hypothesis comes first, as it should."""
    pair = {"a x": {"f": 1.0, "g": 0.0}, "a b": {"f": 0.0, "g": 0.5}}
    hypotheses = [{"text": text, "features": features} for text, features in pair.items()]
    one = {"references": ["a b"], "hypotheses": hypotheses}
    dev = as_set("d", [{"id": f"s-{number}", **one} for number in range(4)])
    tuned = tune_lists(dev, metric=WordErrorRate(), samples=20, folds=0)
    f, g = tuned.ranges
    assert (tuned.judged[0].before, tuned.judged[0].after) == (50, 0)
    assert f.gaining == pytest.approx((-np.inf, 0.5 * g.weight))
    assert "-0.0" not in tuned.text()


# Options, and the word of the error.
REFUSED = [
    ("test=d test_references=d.text", "d has sentences of d, s0-1-0"),
    ("test=t test_references=t.text", "s5-1-5"),
    ("test_references=t.text", "test_references"),
    ("references=part.text", "s0-1-0"),
    ("folds=1", "folds"),
    ("weights=d.text", "weights"),
    ("columns.c=d.column html=d.column", "html"),
    ("columns.c=d.column test=t2", "test_columns.c"),
    ("start=other", "other"),
    ("references=empty", "no word"),
    ("dev=single references=null", "one hypothesis"),
    ("dev=numbers references=null test=numbers2", "all of them"),
    ("dev=bars references=ids", "ids: begins each line with the id of its sentence, such as s0,"),
    ("strings_least=5", "strings is not given, and strings_least=5 would change nothing"),
    ("test_sizes=5", "test is not given, and test_sizes=5 would change nothing"),
]


def bars(some):
    """Return records as the lines of lists that number their sentences."""
    return [
        f"{number} ||| {h['text']} ||| good={h['features']['good']} own={h['features']['own']} ||| "
        f"{h['score']}"
        for number, one in enumerate(some)
        for h in one["hypotheses"]
    ]


def test_what_is_refused(tmp_path):
    one = records(1, 20)
    # Ids that are numbers of lines say nothing of whose they are.
    numbers = [{**some, "id": str(number)} for number, some in enumerate(one)]
    sets = {"d": one, "t": records(1, 20)[5:], "t2": records(2, 20), "numbers": numbers}
    sets |= {"numbers2": numbers, "single": records(2, 20, k=1)}
    for name, some in sets.items():
        put(tmp_path, files_of(name, some))
    put(tmp_path, {"part.text": (tmp_path / "d.text").read_text().partition("\n")[2]})
    put(tmp_path, {"d.start": "good 1\n", "d.column": "1\n" * 100, "other": "f 1\n"})
    put(tmp_path, {"empty": [some["id"] for some in one]})
    put(tmp_path, {"bars": bars(one), "ids": [f"s{n} a" for n in range(20)]})
    for options, word in REFUSED:
        given = {"dev": "d", "references": "d.text", "metric": "wer", "folds": "0", "samples": "20"}
        given |= dict(option.split("=") for option in options.split())
        run_command("tune", *(f"{n}={v}" for n, v in given.items()), folder=tmp_path).refused(word)
    with pytest.raises(InputError, match="s0-1-0"):
        tune_lists(*[as_set("d", one)] * 2, metric=WordErrorRate(), folds=0)
    dev = as_set("d", one)
    with pytest.raises(ValueError, match="d: there are 19 groups, and 20 lists"):
        tune_lists(replace(dev, groups=["a"] * 19), metric=WordErrorRate())
    with pytest.raises(ValueError, match="no names of features"):
        tune_lists(replace(dev, lists=replace(dev.lists, features=None)), metric=WordErrorRate())


def run_tune(folder, *options):
    return run_command("tune", "folds=0", "samples=20", *options, folder=folder).check().err


def test_metrics_columns_and_names_of_sets(tmp_path):
    """Every metric is tuned; columns are of several sets, and of new lists."""
    sets = {name: records(seed, 20) for name, seed in (("d", 1), ("t", 2), ("a/d", 1), ("b/d", 2))}
    for name, some in sets.items():
        put(tmp_path, files_of(name, some))
    put(tmp_path, {f"{name}.column": [i % 7 for i in range(100)] for name in "dt"})
    for metric in ("nakov", "chrf", "ter", "cer", "mix"):
        more = ["metric.weights={bleu:0.5,ter:0.5}"] if metric == "mix" else []
        run_tune(tmp_path, "dev=d", "references=d.text", f"metric={metric}", *more)
    err = run_tune(
        *(tmp_path, "dev=d", "references=d.text", "test=t", "test_references=t.text"),
        *("metric=wer", "columns.comet=d.column", "test_columns.comet=t.column", "scale.good=-1"),
    )
    assert "columns.comet=NEW_COLUMN scale.good=-1" in err
    more = ["weights=tuned.weights.txt", "columns.comet=t.column", "scale.good=-1", "output=o"]
    run_command("rerank", "input=t", *more, folder=tmp_path).check()
    # Sets with one name are told apart.
    given = ["dev=a/d", "test=b/d", "metric=wer", "folds=0", "samples=20"]
    out = run_command("tune", *given, folder=tmp_path).check().out
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["a/d", "b/d"], out


@pytest.mark.parametrize("ids", ["s{}", "{}", "number"])
def test_sentences_without_a_list_are_deletions(tmp_path, ids):
    """As scorers of speech have it; `unlisted=leave` leaves them out."""
    some = records(1, 20)
    for number, one in enumerate(some):
        one["id"] = number if ids == "number" else ids.format(number)
    some[7]["hypotheses"] = []
    files, more = files_of("d", some), int(ids == "s{}")
    if ids == "number":
        files["d.text"] = [one["references"][0] for one in some]
    elif more:
        files["d.text"].append("other of no list")
    put(tmp_path, files)
    errors = sum(wrong(r["hypotheses"][0]) for r in some if r["hypotheses"])
    bare = 6 + 3 * more
    for options, before in (
        ((), (errors + bare) / (19 * 6 + bare)),
        (("unlisted=leave",), errors / (19 * 6)),
    ):
        given = ["dev=d", "references=d.text", "metric=wer", "folds=2", "samples=20", *options]
        outcome = run_command("tune", *given, folder=tmp_path).check()
        assert f"{1 + more} of {20 + more} sentences" in outcome.err
        rows = [line.split() for line in outcome.out.splitlines() if line.startswith("d")]
        assert rows[0][2] == f"{100 * before:.3f}"
    own = run_command("tune", "dev=d", *given[2:], folder=tmp_path).check()
    assert own.out == outcome.out


def test_references_behind_numbers_and_tabs_and_without_the_last_list(tmp_path):
    some = records(1, 20)
    texts = [one["references"][0] for one in some]
    put(tmp_path, files_of("d", some) | {"bars": bars(some), "text": texts})
    put(tmp_path, {"numbered": [f"{n} {text}" for n, text in enumerate(texts)][::-1]})
    put(tmp_path, {"tabs": [line.replace(" ", "\t", 1) for line in files_of("d", some)["d.text"]]})
    found = []
    for dev, references in (("bars", "text"), ("bars", "numbered"), ("d", "d.text"), ("d", "tabs")):
        given = [f"dev={dev}", f"references={references}", "metric=wer", "folds=0", "samples=20"]
        outcome = run_command("tune", *given, folder=tmp_path).check()
        found.append([line.split()[1:] for line in outcome.out.splitlines()])
    assert found[1:] == found[:1] * 3
    put(tmp_path, {"bars": bars(some[:19])})
    given = ["dev=bars", *given[2:]]
    for references in ("text", "numbered"):
        more = f"references={references}"
        refused = run_command("tune", *given, more, folder=tmp_path)
        refused.refused("has 20 lines, and the lists are of 19 sentences", "on_error=skip")
        outcome = run_command("tune", *given, more, "on_error=skip", folder=tmp_path).check()
        errors = sum(wrong(one["hypotheses"][0]) for one in some[:19]) + 6
        assert outcome.out.splitlines()[1].split()[2] == f"{100 * errors / 120:.3f}"


def test_text_that_is_split_in_other_ways_is_told(tmp_path):
    some = records(1, 20)
    for hypothesis in (h for one in some for h in one["hypotheses"]):
        hypothesis["text"] = hypothesis["text"].replace(" ", "@@ ")
    put(tmp_path, files_of("d", some))
    given = [tmp_path, "dev=d", "references=d.text", "metric=wer"]
    assert "d" in next(line for line in run_tune(*given).splitlines() if "warning" in line)
    assert "warning" not in run_tune(*given, "metric.filters=[bpe]")


def test_lists_of_a_speech_recogniser(shared, tmp_path):
    """What the files say; the errors published with the lists, and no more than an exact search."""
    with tarfile.open(shared / "data" / "librispeech-nbest" / "dev_clean.tar.xz") as file:
        file.extractall(tmp_path, filter="data")
    stored = read_lists(tmp_path / "dev_clean")
    lists = stored.lists
    assert stored.dense_names == ["decoder", "ctc", "lm"] and stored.n_sentences == 2703
    assert (np.diff(lists.begin) == 30).all()
    assert all((np.diff(kbest.score) <= 0).all() for kbest in lists)
    folder = tmp_path / "dev_clean" / "logdir" / "output.1" / "7best_recog"
    texts = dict(line.split(" ", 1) for line in (folder / "text").read_text().splitlines())
    assert {lists.ids[kbest.index]: kbest.text(6) for kbest in lists} == texts
    options = ["dev=dev_clean", "references=dev_clean/text", "metric=wer", "folds=0", "samples=20"]
    outcome = run_command("tune", *options, folder=tmp_path).check()
    assert "sorted by 0.6 decoder + 0.4 ctc + 0.6 lm" in outcome.out
    row = next(line.split() for line in outcome.out.splitlines() if line.startswith("dev_clean"))
    assert row[2] == f"{100 * 925 / 54402:.3f}"
    assert float(row[3]) <= 1.650
