"""Minimum Bayes risk against its definition, pair by pair."""

import math

import numpy as np
import pytest
import sacrebleu
from commands import run_command
from hypothesis import given
from hypothesis import strategies as st
from small_lists import edits

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import example_folder
from torchtune_smt.core.textio import read_lines
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.metrics import ExternalScores, SacreBleu, WordErrorRate
from torchtune_smt.metrics.lists import minimum_risk

# Few different words, so that translations share some.
strings = st.lists(st.sampled_from("abc"), max_size=7).map(" ".join)
scored = st.lists(st.tuples(strings, st.floats(-9, 9)), min_size=1, max_size=7)


def lists_of(*lists):
    return KBestLists.of_strings(
        [[text for text, _ in one] for one in lists],
        scores=[[score for _, score in one] for one in lists],
    )


def expected_gains(one, scale, gain):
    """By the definition: the sum over all pairs of hypotheses, as strings."""
    shares = [math.exp(scale * score) for _, score in one]
    return [
        sum(p * gain(text, other) for p, (other, _) in zip(shares, one, strict=True)) / sum(shares)
        for text, _ in one
    ]


def sentence_bleu(text, reference):
    score = sacrebleu.sentence_bleu(text, [reference], tokenize="none", smooth_method="exp")
    # To BLEU an empty hypothesis is no reference; errors are those of any.
    return float(score.score) / 100 if reference else 0.0


def minus_errors(text, reference):
    return -edits(text.split(), reference.split())


@given(st.lists(scored, min_size=1, max_size=3), st.floats(0, 2))
def test_expected_gains_are_those_of_all_pairs(cases, scale):
    for metric, gain in ((SacreBleu(), sentence_bleu), (WordErrorRate(), minus_errors)):
        found = minimum_risk(lists_of(*cases), metric, scale)
        assert found.index.tolist() == list(range(len(cases)))
        for kbest, case in zip(found, cases, strict=True):
            expected = expected_gains(case, scale, gain)
            by_entry = [expected[h] for h in kbest.entry.tolist()]
            assert kbest.score.tolist() == pytest.approx(by_entry, abs=1e-9)
            assert (np.diff(kbest.score) <= 0).all()
            texts = [case[h][0] for h in kbest.entry.tolist()]
            assert [kbest.text(h) for h in range(len(kbest))] == texts


def test_what_is_refused(tmp_path):
    lists = lists_of([("a", 1.0)])
    (tmp_path / "scores").write_text("0 ||| a ||| 1\n")
    with pytest.raises(InputError, match="minimum risk takes each hypothesis for one"):
        minimum_risk(lists, ExternalScores(tmp_path / "scores"))
    with pytest.raises(ValueError, match="scale must be"):
        minimum_risk(lists, SacreBleu(), math.nan)
    with pytest.raises(ValueError, match="no words, or no scores"):
        minimum_risk(KBestLists.of_strings([["a"]]), SacreBleu())


def test_translate(run, tmp_path):
    common = [f"weights={run.weights}", f"input={example_folder() / 'test.de'}"]

    def translated(*options):
        output = tmp_path / "out"
        run_command("translate", *common, f"output={output}", *options, folder=run.place).check()
        return read_lines(output)

    lists = {}
    for line in translated("n_best=20"):
        index, words, _, score = line.split(" ||| ")
        lists.setdefault(int(index), []).append((words, float(score)))
    best = translated("mbr=true", "mbr_scale=2", "metric=sacrebleu")
    assert best != [one[0][0] for one in lists.values()]
    for text, one in zip(best, lists.values(), strict=True):
        gains = expected_gains(one, 2, sentence_bleu)
        assert max(gains) == pytest.approx(gains[[words for words, _ in one].index(text)], abs=1e-6)
    run_command("translate", *common, "mbr_scale=2", folder=run.place).refused("without mbr=true")
    # The metric of the run is nakov, which takes what is longest, and is taken where it is named.
    usual, nakov = (translated("mbr=true", "mbr_scale=1", *more) for more in ([], ["metric=nakov"]))
    assert usual == translated("mbr=true", "mbr_scale=1", "metric=bleu_plus_one")
    assert sum(map(len, nakov)) > sum(map(len, usual))


def test_rerank(tmp_path):
    (tmp_path / "weights").write_text("f 2\n")
    texts = ["x y z w", "a b c d", "a b c e", "a b c"]
    lines = [f"0 ||| {text} ||| f={1 - i / 10} ||| 0\n" for i, text in enumerate(texts)]
    (tmp_path / "list").write_text("".join(lines))
    common = ["weights=weights", "input=list", "mbr=true"]
    one = [(text, 2 - 0.2 * i) for i, text in enumerate(texts)]
    options = [*common, "metric=sacrebleu", "n_best=4", "mbr_scale=0.5"]
    found = run_command("rerank", *options, folder=tmp_path).check().out.splitlines()
    gains = expected_gains(one, 0.5, sentence_bleu)
    fields = [line.split(" ||| ") for line in found]
    assert fields[0][1] == texts[int(np.argmax(gains))] != texts[0]
    by_text = {f[1]: float(f[3]) for f in fields}
    assert [by_text[text] for text in texts] == pytest.approx(gains, abs=1e-9)
    # The scale is 3 otherwise.
    options.remove("mbr_scale=0.5")
    usual = run_command("rerank", *options, folder=tmp_path).check().out.splitlines()
    by_text = {f[1]: float(f[3]) for f in (line.split(" ||| ") for line in usual)}
    gains = expected_gains(one, 3, sentence_bleu)
    assert [by_text[text] for text in texts] == pytest.approx(gains, abs=1e-9)
    said = "mbr_scale must be a number, 0 or more, not -1"
    run_command("rerank", *common, "mbr_scale=-1", folder=tmp_path).refused(said)
