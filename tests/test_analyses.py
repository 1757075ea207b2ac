"""Analyses of features and of texts: by brute force, and as commands on what was planted."""

import gzip
import json
import re
import shutil
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import sacrebleu
import yaml
from commands import example_source, run_command
from hypothesis import example, given
from hypothesis import strategies as st
from small_lists import put, weights_of

from torchtune_smt.core.resources import example_folder
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.weights_io import Origin, save_weights
from torchtune_smt.evaluation.features import (
    FeatureSet,
    contributions,
    dense_by_names,
    dense_features,
    disagreements,
    left_part,
    overlap,
    spellings,
)
from torchtune_smt.evaluation.tables import Table
from torchtune_smt.evaluation.translations import (
    SentenceScores,
    align,
    extremes,
    ngram_differences,
    reference_order,
    segments,
    word_f1,
)
from torchtune_smt.features import RuleId
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.runs.curves import read_metrics, round_seconds


def analyse(folder, *arguments):
    return run_command("analyse", *arguments, folder=folder)


def cells(outcome):
    return [list(row.values()) for row in outcome.rows()]


def is_svg(path):
    return path.read_bytes().startswith(b"<?xml")


NAMES = ["LM", "Glue", "rule_id:a~b", "rule_id:c~d", "rule_id:e~f", "shape:T", "shape:T_T", "x:y"]
WEIGHTS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([-2.0, -1.0, 0.5, 3.0]))


@given(WEIGHTS, WEIGHTS)
def test_counts_of_overlap(first, second):
    dense = {"LM", "Glue"}
    sets = [FeatureSet(n, w, dense, True) for n, w in (("a", first), ("b", second))]
    found = {one.template: one for one in overlap(*sets)}
    templates = {"dense": NAMES[:2], "rule_id": NAMES[2:5], "shape": NAMES[5:7], "x": NAMES[7:]}
    for template, members in {**templates, "all": NAMES}.items():
        a, b = ({n for n in members if n in weights} for weights in (first, second))
        if not a | b and template != "all":
            assert template not in found
            continue
        one = found.pop(template)
        assert (one.first, one.second, one.both) == (len(a), len(b), len(a & b))
        both = sorted(a & b)
        assert one.same_sign == sum(first[n] * second[n] > 0 for n in both)
        x, y = ([weights[n] for n in both] for weights in (first, second))
        if len(both) > 2 and len(set(x)) > 1 and len(set(y)) > 1:
            assert one.correlation == pytest.approx(np.corrcoef(x, y)[0, 1])
        else:
            assert one.correlation is None
    assert not found
    # Values have no signs.
    for one in overlap(sets[0]._replace(are_weights=False), sets[1]):
        assert one.same_sign is None is one.correlation


@pytest.mark.parametrize("count", [3, 11])
def test_weights_of_a_group_have_no_correlation(count):
    equal = {f"r:{i}": 0.1 for i in range(count)}
    others = {name: float(i) for i, name in enumerate(equal)}
    for pair in ((equal, others), (others, equal), (equal, equal)):
        found = overlap(*(FeatureSet("", values, (), True) for values in pair))
        assert all(one.correlation is None for one in found)


def test_a_file_of_lists_tells_which_features_are_dense(tmp_path):
    names = ["LanguageModel", "LanguageModel_OOV", "Glue", "-", "50%", "WT_a~x"]
    for name in "ab":
        weights = FrozenWeights.of(dict.fromkeys(names, 0.5))
        save_weights(tmp_path / name, weights, Origin.of_lists(["l"], names[:5]))
    rows = analyse(tmp_path, "overlap", "a", "b", "table=csv").rows()
    both = {row["template"]: row["|A ∩ B|"] for row in rows}
    assert both == {"dense": "5", "WT": "1", "all": "6"}


def test_dense_features():
    names = ["LM0_0", "TM0_3", "Glue", "LanguageModel_OOV", "WT_a~b", "WT_10~10", "rule_id:a~b_1"]
    assert dense_features(names[:4] + names[6:], moses=False) == set(names[:4])
    assert dense_features(names, moses=True) == {"LM0_0", "TM0_3", "Glue"}
    # Of files that do not say whose they are.
    ours = ["LanguageModel", "LanguageModel_OOV", "PhraseModel_0", "rule_id:a_b~c", "shape:T_T"]
    moses = ["LM0", "Distortion0", "TM0_1", "WT_haus~house", "WT_10", "WT_:~that", "PL_s2", "SWD_a"]
    for some, dense in ((ours, ours[:3]), (moses, moses[:3]), ([], [])):
        assert dense_by_names(some) == set(dense)
    # Lists may have features of both.
    assert dense_by_names(ours + moses) == {*ours[:3], *moses[:3]}


def test_weights_of_two_runs(run, tmp_path):
    """A file whose overlap with the run is planted."""
    weights = weights_of(run.weights)
    rules = sorted(name for name in weights if name.startswith("rule_id:"))
    changed = {name: -weights[name] for name in rules[:7]} | dict.fromkeys(rules[7:9], 1.0)
    changed |= {"rule_id:never~seen": 1.0, "rule_id:zero~weight": 0.0, "LanguageModel": 0.5}
    put(tmp_path, {"own": changed})
    picture = tmp_path / "overlap.svg"
    outcome = analyse(tmp_path, "overlap", run.folder, "own", "table=csv", f"plot={picture}")
    found = {row["template"]: row for row in outcome.rows()}
    rule = found["rule_id"]
    assert [int(rule[name]) for name in ("|A|", "|B|", "|A ∩ B|")] == [len(rules), 10, 9]
    assert int(rule["same sign"]) == sum(weights[name] > 0 for name in rules[7:9])
    assert float(rule["% of B"]) == pytest.approx(90)
    assert (found["dense"]["|B|"], found["dense"]["|A ∩ B|"]) == ("1", "1")
    assert int(found["all"]["|A|"]) == len(weights)
    assert is_svg(picture) and outcome.err == f"picture: {picture}\n"


def test_decoded_sets_are_those_of_n_best_lists(run, tmp_path):
    """What fires where a set is decoded is what `translate` writes of it."""
    lists, fired = {}, {}
    for split in ("dev", "test"):
        path = lists[split] = tmp_path / f"{split}.nbest"
        source = example_folder() / f"{split}.de"
        given = [f"weights={run.weights}", f"input={source}", f"output={path}", "n_best=3"]
        run_command("translate", *given, folder=run.place).check()
        fired[split], seen = set(), Counter[str]()
        for line in path.read_text().splitlines():
            number, _, features, _ = line.split(" ||| ")
            seen[number] += 1
            if seen[number] <= 2:
                fired[split] |= {feature.rpartition("=")[0] for feature in features.split()}
    options = ["n_best=2", "table=csv"]
    decoded = analyse(run.place, "overlap", run.folder, "of=[dev,test]", *options).rows()
    stored = analyse(run.place, "overlap", *lists.values(), *options).rows()
    for row in (decoded[-1], stored[-1]):
        sizes = [int(row[name]) for name in ("|A|", "|B|", "|A ∩ B|")]
        assert sizes == [len(fired["dev"]), len(fired["test"]), len(fired["dev"] & fired["test"])]
    assert {row["A"] for row in decoded} == {"dev"}
    assert [list(r.values())[2:] for r in decoded] == [list(r.values())[2:] for r in stored]
    said = "of=[test] would change nothing: n-best lists have"
    analyse(run.place, "overlap", *lists.values(), "of=[test]").refused(said)


RIVALS = ["r:a~x", "r:a~y", "r:a~z", "r:b~x", "r:b~", "s:a~x", "t:~x", "t:~y", "n:a_b", "LM"]
OF_RIVALS = st.dictionaries(st.sampled_from(RIVALS), st.sampled_from([-1.0, -0.5, 0.25, 1.0]))


@given(OF_RIVALS, OF_RIVALS)
@example({"r:a~x": 1, "r:a~z": 1}, {"r:a~y": 1, "r:a~z": 1})
@example({"r:a~x": 1, "r:a~y": 1, "r:a~z": 0.25}, {"r:a~x": -1, "r:a~y": -0.5, "r:a~z": -0.5})
def test_disagreements(first, second):
    # Inserted words are no rivals, and neither is what has no left part.
    assert [left_part(name) for name in (*RIVALS, "W_a~b", "W_~b")] == (
        [*["r:a"] * 3, *["r:b"] * 2, "s:a", *[None] * 4, "W_a", None]
    )
    known = first.keys() | second.keys()
    expected = {}
    for left in {left_part(name) for name in known} - {None}:
        rivals = [name for name in sorted(known) if left_part(name) == left]
        a, b = (
            [x for x in rivals if side.get(x, 0) == max(side.get(y, 0) for y in rivals)]
            for side in (first, second)
        )
        if not {*a} & {*b}:
            expected[left] = a[0], b[0]
    found = disagreements(first, second)
    assert {one.left: (one.first, one.second) for one in found} == expected
    for _, x, y, lead in found:
        leads = first.get(x, 0) - first.get(y, 0), second.get(y, 0) - second.get(x, 0)
        assert lead == min(leads) > 0
    leads = [one.lead for one in found]
    assert leads == sorted(leads, reverse=True)


@pytest.fixture
def corpora(tmp_path):
    """Weights of a corpus with American and of one with British spelling."""
    american = {"programm~program": 0.5, "programm~programme": -0.25, "das~that": 0.1, "x~y": 1}
    british = {"programm~program": -0.5, "programm~programme": 0.75, "das~that": 0.3, "x~": 0.1}
    for name, weights in (("us", american), ("uk", british)):
        rules = {f"rule_id:{feature}": w for feature, w in weights.items()}
        put(tmp_path, {name: rules | {"LanguageModel": 1.0}})
    put(tmp_path, {"other": {"alignment:a~b": 1.0}})
    return tmp_path


def test_planted_rivals(corpora):
    assert cells(analyse(corpora, "adaptation", "us", "uk", "table=csv", "plot=weights.svg")) == [
        ["rule_id:programm", "program", "us", "0.5", "-0.5", "0.75"],
        ["rule_id:programm", "programme", "uk", "-0.25", "0.75", "0.75"],
        ["rule_id:x", "y", "us", "1.0", "", "0.1"],
        ["rule_id:x", "(nothing)", "uk", "", "0.1", "0.1"],
    ]
    text = analyse(corpora, "adaptation", "us", "uk", "match=programm").check().out
    assert "- rivals of which us and uk prefer different ones: 1\n" in text
    assert is_svg(corpora / "weights.svg")
    options = ["rivals=false", "rows=1", "table=csv"]
    assert cells(analyse(corpora, "adaptation", "us", "uk", *options)) == [
        ["rule_id:programm~program", "0.5", "-0.5", "-1.0"]
    ]


WORDS = st.sampled_from(["program", "programme", "a", ":"])


@given(
    st.lists(st.lists(st.lists(WORDS, max_size=5), max_size=2), max_size=5),
    st.lists(st.tuples(st.lists(WORDS, max_size=3), st.lists(WORDS, max_size=3)), max_size=8),
)
def test_counts_of_spellings(references, rules):
    # As names are spelt: a colon is no word of a name.
    def named(words):
        return ["%3A" if word == ":" else word for word in words]

    names = [name for s, t in rules for name in RuleId().features(named(s), named(t))]
    words = ["program", "programme", ":", "missing"]
    found = spellings(words, references, [*names, "LM", "shape:[1]"])
    for one in found:
        assert one.tokens == sum(r.count(one.word) for sentence in references for r in sentence)
        assert one.features == sum(one.word in target for _, target in rules)
    assert [one.word for one in found] == words


@pytest.fixture
def tuned(tmp_path):
    """A run that was tuned on American English, and one that was on a sample of British."""
    us, uk = ["the program", "a program of programs"], [f"the programme {n}" for n in range(9)]
    sparse = {
        "us": {"rule_id:programm~program": 0.5, "rule_id:das_programm~the_program": -1.0},
        "uk": {"rule_id:das_programm~the_programme": 0.5, "rule_id:programm~program": 0.0}
        | {"alignment:programm~programme": 1.0, "rule_id:x~program": 0.25},
    }
    for name, lines, tuner in (
        ("us", us, {"tune_on": "dev", "sentences": None}),
        ("uk", uk, {"tune_on": "train", "sentences": 4}),
    ):
        folder = tmp_path / name
        data = {"name": name, "source_language": "de", "target_language": "en"}
        data[str(tuner["tune_on"])] = [str(folder / f"x.{e}") for e in ("de", "en")]
        config = yaml.safe_dump({"data": data, "tuner": tuner, "seed": 7})
        files = {"x.de": ["das programm"] * len(lines), "x.en": lines, "config.yaml": config}
        weights = [f"{n} {w}" for n, w in (sparse[name] | {"LanguageModel": 1.0}).items()]
        put(folder, {**files, "weights.txt.gz": gzip.compress("\n".join(weights).encode())})
    return tmp_path


def test_planted_spellings(tuned):
    given = ["spellings", "us", "uk", "words=[program,programme,'3']"]
    outcome = analyse(tuned, *given, "table=csv", "plot=spellings.svg")
    drawn = Sentences.of([[]] * 9, [[["x"]]] * 9).drawn(4, 7)
    assert cells(outcome) == [
        ["program", "2", "0", "2", "1"],
        ["programme", "0", "4", "0", "2"],
        ["3", "0", str(int(3 in drawn)), "0", "0"],
    ]
    head = ["word", "references of us", "references of uk", "features of us", "features of uk"]
    assert list(outcome.rows()[0]) == head
    assert is_svg(tuned / "spellings.svg")


SENTENCES = st.lists(st.sampled_from("abcde"), max_size=7)


def within(words, sentence):
    """Whether words stand in a sentence in their order, found by looking at all choices."""
    return tuple(words) in set(combinations(sentence, len(words)))


def longest_common_subsequence(first, second):
    common = (k for k in range(len(first), -1, -1) for c in combinations(first, k) if c)
    return next((k for k in common if any(within(c, second) for c in combinations(first, k))), 0)


@given(SENTENCES, SENTENCES)
def test_segments_have_the_same_words_in_another_order(first, second):
    found = segments(first, second)
    for ours, theirs in found:
        assert Counter(ours) == Counter(theirs)
        assert ours != theirs
    for side, sentence in enumerate((first, second)):
        assert within([word for segment in found for word in segment[side]], sentence)
    shared = (Counter(first) & Counter(second)).total()
    assert bool(found) == (shared > longest_common_subsequence(first, second))


@given(st.permutations("abcdefgh"))
def test_segments_are_the_shortest(order):
    """Of different words: those that inversions tie together."""
    words = list("abcdefgh")
    group = {word: {word} for word in words}
    for x, y in combinations(words, 2):
        if order.index(x) > order.index(y):
            together = group[x] | group[y]
            group |= dict.fromkeys(together, together)
    parts = {frozenset(one) for one in group.values() if len(one) > 1}
    found = segments(words, order)
    assert {frozenset(ours) for ours, _ in found} == parts
    for ours, theirs in found:
        assert ours == [word for word in words if word in ours]
        assert theirs == [word for word in order if word in ours]


@given(SENTENCES, st.randoms(use_true_random=False), st.lists(SENTENCES, max_size=2))
def test_order_of_any_reference(first, random, references):
    second = sorted(first, key=lambda _: random.random())
    has = [False, False]
    for reference in references:
        ours, theirs = ([word for word in side if word in reference] for side in (first, second))
        for n, side in enumerate((ours, theirs)):
            has[n] |= ours != theirs and within(side, reference)
    names = {(True, True): "both", (True, False): "first", (False, True): "second"}
    expected = names.get((has[0], has[1]), "neither")
    assert reference_order((first, second), references) == expected


def test_planted_orders(tmp_path):
    texts = {
        "a": ["x y z", "a b c d", "same here", "p q"],
        "b": ["y x z", "c d a b", "same here", "q p"],
        "r1": ["y x w", "a b c d", "same here", "no such"],
        "r2": ["y x", "c d of a b", "same", "nothing"],
    }
    put(tmp_path, texts)
    given = ["reordering", "a", "b", "references=[r1,r2]", "plot=orders.svg"]
    assert cells(analyse(tmp_path, *given, "table=csv")) == [
        ["1", "x y", "y x", "b"],
        ["2", "a b c d", "c d a b", "both"],
        ["4", "p q", "q p", "neither"],
    ]
    assert is_svg(tmp_path / "orders.svg")
    text = analyse(tmp_path, *given, "rows=1").check().out
    assert "- sentences: 4, with words in another order: 3\n" in text
    assert "- segments where a reference has the order of b: 1 (33.3%)\n" in text
    assert "- the first 1 of 3 rows\n" in text


RATE = "speed/sentences_per_second"
DEV = {"bleu/dev": 1.0}


def shard(begin, long):
    return {"parallel/worker": 1.0, "parallel/begin": begin, "parallel/seconds": long, RATE: 1.0}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # 20 sentences at 10 a second, 10 at 2; 20 at 40, 10 at 10; the last round is not done.
        ([DEV, {RATE: 10}, {RATE: 2}, DEV, {RATE: 40}, {RATE: 10}, DEV, {RATE: 1}], [7, 1.5]),
        # Two workers that overlap.
        ([DEV, shard(100, 5), shard(101, 8), DEV, shard(200, 1), shard(203, 2), DEV], [9, 5]),
        ([DEV, DEV | {"speed/seconds": 4.5}], [4.5]),
        ([DEV], []),
    ],
)
def test_how_long_rounds_took(lines, expected, tmp_path):
    steps = iter((0, 20, 30, 30, 50, 60, 60, 80))
    put(tmp_path, {"metrics.jsonl": [json.dumps({"step": next(steps)} | x) for x in lines]})
    assert round_seconds(read_metrics(tmp_path)).tolist() == pytest.approx(expected)


def test_planted_progress(run, tmp_path):
    """Two seeds of one system, and a run that is not as far; and a run as it is."""
    written = {"new": ([{"step": 0, "bleu/dev": 41.0}], 0)}
    for seed, scores in ((1, [40, 52, 50]), (2, [42, 43, 48])):
        lines = [
            {"step": 10 * n, "bleu/dev": score, "active/dense": 3, "active/rule_id": 10 * seed * n}
            for n, score in enumerate(scores)
        ]
        for n in (2, 1):
            lines.insert(n, {"step": 10 * n, "speed/sentences_per_second": 10 / seed / n})
        written[f"sweep/{seed}"] = [*lines, {"step": 20, "bleu/test_tuned": 30 + seed}], seed
    for name, (lines, seed) in written.items():
        overrides = f"- seed={seed}\n- loss=hinge\n"
        files = {".hydra/overrides.yaml": overrides, "metrics.jsonl": map(json.dumps, lines)}
        put(tmp_path / name, files)
    # By another metric round 1 is the best, as a run says when it ends.
    lines = [{"step": n, "bleu/dev": 40 + n, "metric/dev": 9 - n, "active/a": n} for n in range(3)]
    for name, end in (("ends", [{"step": 2, "best_epoch": 1}]), ("goes", [])):
        put(tmp_path / name, {"metrics.jsonl": map(json.dumps, [*lines, *end])})
    found = analyse(tmp_path, "progress", "systems={a:[ends],b:[goes]}", "table=csv").rows()
    assert [[row[n] for n in ("best dev", "of round", "active")] for row in found] == [
        ["41.0", "1.0", "1.0"],
        ["", "", "2.0"],
    ]
    given = ["progress", "systems={old:[sweep],new:[new]}", "table=csv", "plot=progress.svg"]
    old, new = analyse(tmp_path, *given).rows()
    assert {name: float(value) for name, value in old.items() if name != "system"} == {
        "runs": 2,
        "rounds": 2,
        "dev before": 41,
        "best dev": 50,
        "of round": 1.5,
        "last dev": 49,
        "test": 31.5,
        # 1 and 2 seconds of the one, 2 and 4 of the other.
        "s a round": 2.25,
        "s in all": 4.5,
        # Of the best rounds: 3 + 10 of the first, 3 + 40 of the second.
        "active": 28,
    }
    assert list(new.values()) == ["new", "1", "0.0", "41.0", "41.0", "0.0", "41.0", "", "", "", ""]
    assert is_svg(tmp_path / "progress.svg")


VALUES = st.dictionaries(st.sampled_from("abcd"), st.sampled_from([-2.0, -0.5, 1.0, 3.0]))


def score(row, weights):
    return sum(value * weights.get(name, 0.0) for name, value in row.items())


@given(VALUES, VALUES, VALUES, VALUES)
def test_what_features_add(ours, theirs, first, second):
    found = contributions((ours, theirs), (first, second))
    for n, weights in enumerate((first, second)):
        lead = sum(one[2 + n] for one in found)
        assert lead == pytest.approx(score(ours, weights) - score(theirs, weights))
    for one in found:
        difference = ours.get(one.name, 0.0) - theirs.get(one.name, 0.0)
        assert one.values == (difference,) and difference
        assert one.first == pytest.approx(difference * first.get(one.name, 0.0))
        assert one.first or one.second
    # Larger weights throughout are the same model.
    larger = {name: 8 * weight for name, weight in second.items()}
    again = contributions((ours, theirs), (first, larger))
    assert [one.name for one in again] == [one.name for one in found]
    # Or to each system's score of its own translation.
    parts = contributions((ours, theirs), (first, second), comparable=False)
    sums = sum(one.first for one in parts), sum(one.second for one in parts)
    assert sums == pytest.approx((score(ours, first), score(theirs, second)))
    for name, values, *adds in parts:
        assert values == (ours.get(name, 0.0), theirs.get(name, 0.0))
        sides = zip(values, (first, second), strict=True)
        assert adds == pytest.approx([v * w.get(name, 0.0) for v, w in sides]) and any(adds)
    for some in (found, parts):
        totals = [sum(abs(one[n]) for one in some) or 1.0 for n in (2, 3)]
        differ = [abs(one.first / totals[0] - one.second / totals[1]) for one in some]
        assert differ == sorted(differ, reverse=True)


@pytest.fixture(scope="module")
def dense(run):
    """A run like the first, as if it had been tuned with dense features alone."""
    folder = run.place / "as_dense"
    shutil.copytree(run.folder, folder, ignore=shutil.ignore_patterns("tensorboard"))
    record = folder / ".hydra" / "overrides.yaml"
    record.write_text(yaml.safe_dump([*yaml.safe_load(record.read_text()), "features=dense"]))
    (folder / "weights.txt.gz").unlink()
    weights = {name: weight for name, weight in weights_of(run.weights).items() if ":" not in name}
    # Without what the weights belong to: these are of other features.
    put(folder, {"weights.txt": weights | {"LanguageModel": 3 * weights["LanguageModel"]}})
    return folder


@pytest.fixture(scope="module")
def every(run, dense):
    """What `translate` makes of test with both runs, with the features that the first one has."""
    found = []
    for weights, more in ((run.weights, []), (dense / "weights.txt", ["features=sparse"])):
        given = [f"weights={weights}", f"input={example_folder() / 'test.de'}", "n_best=1", *more]
        found.append([])
        for line in run_command("translate", *given, folder=run.place).check().out.splitlines():
            _, words, features, _ = line.split(" ||| ")
            pairs = [feature.rpartition("=") for feature in features.split()]
            found[-1].append((words, {name: float(value) for name, _, value in pairs}))
    return found[0], found[1]


def test_two_systems_explained(run, dense, every):
    """Features are those of derivations that the same weights choose with all templates."""
    weights = weights_of(run.weights), weights_of(dense / "weights.txt")
    number = next(n for n, (a, b) in enumerate(zip(*every, strict=True), 1) if a[0] != b[0])
    (first, ours), (second, theirs) = every[0][number - 1], every[1][number - 1]
    expected = contributions((ours, theirs), weights)
    systems = f"systems={{all:{run.folder},dense:{dense / 'weights.txt'}}}"
    given = ["explain", systems, f"sentence={number}"]
    found = cells(analyse(run.place, *given, "table=csv", "rows=null", "plot=explain.svg"))
    assert [row[0] for row in found] == [one.name for one in expected]
    for row, one in zip(found, expected, strict=True):
        shown = [*one.values, one.first, one.second]
        assert list(map(float, row[1:])) == pytest.approx(shown, abs=1e-6)
    assert is_svg(run.place / "explain.svg")
    text = analyse(run.place, *given, "table=text", "rows=1").check().out
    assert f"source: {example_source('test')[number - 1]}\n" in text
    assert f"\nall: {first}\n  1" in text and f"\ndense: {second}\n  1" in text
    lead = sum(one.first for one in expected)
    assert f"\nin all, all scores its own translation {lead:+.4g} above that of dense\n" in text
    analyse(run.place, *given[:2], "sentence=99").refused("sentence=99: test has 30 sentences;")
    # A report says the same: a model looks at all features of the other one's translation, too.
    given = [systems, "samples=5", "metrics=[bleu]", "html=explained.html"]
    run_command("compare", *given, folder=run.place).check()
    shown = 0
    for part in (run.place / "explained.html").read_text().split('<div class="example">')[1:]:
        (number_there,) = re.findall(r"sentence (\d+) ", part)
        (_, ours), (_, theirs) = (side[int(number_there) - 1] for side in every)
        for n, name in enumerate(("all", "dense")):
            leads = re.findall(rf"why {name} prefers its own: ([-+][\d.]+)", part)
            lead = sum(one[2 + n] for one in contributions((ours, theirs), weights))
            assert leads == [f"{-lead if n else lead:+.3f}"]
            shown += 1
    assert shown >= 4


def test_tables():
    table = Table(["f", "n", "w"], [["[1]_a|b", 1234, 0.123456], ["", None, -12345.6]], ["said"])
    assert table.text() == "f            n          w\n[1]_a|b  1,234     0.1235\n" + (
        "                -12,345.6\n\nsaid\n"
    )
    assert table.markdown() == (
        "| f | n | w |\n|---|---:|---:|\n| [1]_a\\|b | 1,234 | 0.1235 |\n|  |  | -12,345.6 |\n\n"
        "- said\n"
    )
    assert r"{}[1]\_a\textbar{}b & 1,234 & 0.1235 \\" in table.latex()
    assert table.latex().startswith("% said\n\\begin{tabular}{lrr}\n")
    assert table.csv() == "f,n,w\n[1]_a|b,1234,0.123456\n,,-12345.6\n"


BAD = [
    ([], "name an analysis; choose of overlap, adaptation, spellings, reordering, progress, expl"),
    (["overlp", "own"], "there is no analysis 'overlp'; choose of overlap"),
    (["overlap", "own"], "an overlap is that of two sets of features; name another system"),
    (["overlap", "own", "twin", "of=[dev]"], "own: lies in no run's folder, and cannot decode"),
    (["overlap", "own", "twin", "n_best=3"], "n_best=3 would change nothing: weights have"),
    (["overlap", "own", "twin", "plot=a.gif"], "plot must end with .png, .svg or .pdf, not"),
    (["overlap", "systems={a:[own,twin]}"], "a has 2 runs, and overlap takes one of each"),
    (["adaptation", "own", "twin", "other"], "adaptation compares two systems, and there are 3"),
    (["spellings", "us"], "words is missing; give them with words=[WORD,WORD,...]"),
    (["spellings", "bad", "words=[a]"], "bad/config.yaml: does not say what was tuned on; the run"),
    (["spellings", "us", "words=[a]", "rows=3"], "rows=3: spellings takes no such option"),
    (["reordering", "text", "x", "references=[x]", "match='('"], "match=( is no regular"),
    (["reordering", "text", "x", "references=[x]", "match=x"], "match is of source sentences, whi"),
    (["progress", "text"], "text:1: is no line of a metrics file; give the folder"),
    (["explain", "text", "x", "sentence=1"], "text: lies in no run's folder, and cannot decode"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input(tuned, arguments, message):
    put(tuned, {"own": {"a:b": 1.0}, "twin": {"a:b": 1.0}, "other": {"c:d": 1.0}})
    put(tuned, {"text": "word\n", "x": "y\n"})
    put(tuned, {"bad/config.yaml": "data: {}\ntuner: {tune_on: test}\nseed: 1\n"})
    shutil.copy(tuned / "us" / "weights.txt.gz", tuned / "bad")
    before = sorted(tuned.iterdir())
    analyse(tuned, *arguments).refused(message)
    assert sorted(tuned.iterdir()) == before


REFERENCES = [["a b b c", "a b d"], ["a a e"]]


def test_word_f1():
    # a: 4 times, b: 3 times, c, d, e: once; x: never.
    split = lambda texts: [text.split() for text in texts]  # noqa: E731
    systems = [split(["a b b x", "a a e"]), split(["d b a", "e"])]
    found = word_f1(systems, [*map(split, REFERENCES)])
    assert [(bucket.name, bucket.size) for bucket in found] == [("1", 2), ("3", 2), ("4", 3)]
    once, thrice, often = (bucket.scores for bucket in found)
    # The first system is nearest to the first references, the second to "a b d".
    assert once == pytest.approx([200 * 1 / (1 + 2), 100])
    assert thrice == [100, 100]
    assert often == pytest.approx([100, 200 * 1 / (1 + 3)])


def test_scores_of_sentences():
    systems = {"good": ["a b b c", "a a e"], "bad": ["a x b c", "e"]}
    scores = SentenceScores(systems, REFERENCES)
    assert scores.gains("good").tolist() == pytest.approx([100, 100])
    (short,) = scores.by_length([4, 3])
    streams = [["a b b c", "a a e"], ["a b d", None]]
    expected = sacrebleu.corpus_bleu(systems["bad"], streams, tokenize="none", force=True).score
    assert (short.name, short.size) == ("0-9", 2)
    assert short.scores == pytest.approx([100, expected])
    apart = scores.by_length([4, 60])
    assert [(bucket.name, bucket.size) for bucket in apart] == [("0-9", 1), ("60 or more", 1)]
    differences = np.array([0.0, 3, -1, 2, 0, -5])
    assert extremes(differences, 2) == extremes(differences, 9) == ([1, 3], [5, 2])
    assert extremes(np.zeros(3), 2) == ([], [])


def test_planted_ngrams_are_found():
    generator = np.random.default_rng(0)
    pool = [f"w{i}" for i in range(30)]
    references = [list(generator.choice(pool, 10)) for _ in range(60)]
    for reference in references[:20]:
        reference[3:5] = ["red", "car"]
    second = [[{"red": "green"}.get(w, w) for w in reference] for reference in references]
    known = [[r] for r in references]
    more, fewer = ngram_differences(references, second, known, 3)
    assert {(d.words, d.first, d.second) for d in more[:2]} == {("red car", 20, 0), ("red", 20, 0)}
    assert fewer == []
    assert ngram_differences(second, references, known, 3)[1][0] == (more[0].words, 0, 20)


@given(SENTENCES, SENTENCES)
def test_alignment(first, second):
    pieces = align(first, second)
    for side, sentence in enumerate((first, second), 1):
        assert [word for piece in pieces for word in piece[side]] == sentence
    assert all(same == (ours == theirs) for same, ours, theirs in pieces)
