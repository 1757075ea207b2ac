"""The commands of `docs/lists.md`, tool by tool, on a few sentences of each tool's own form."""

import json
import re
import shlex

import numpy as np
import pytest
from commands import run_command
from small_lists import put, weights_of

from torchtune_smt.core.textio import read_lines

K = 3
N = 12


def made_up(name):
    """References, and three hypotheses each with two scores: the first is right about errors."""
    generator = np.random.default_rng(len(name))
    found = []
    for _ in range(N):
        words = [f"w{w}" for w in generator.integers(0, 9, 6)]
        hypotheses = []
        for errors in generator.permutation(K).tolist():
            text = " ".join(["x"] * errors + words[errors:])
            model, other = float(-errors), float(-5 * generator.random())
            hypotheses.append((text, model, other))
        found.append((" ".join(words), sorted(hypotheses, key=lambda one: -one[1] - one[2])))
    return found


def bars(name, form):
    lines = []
    for number, (_, some) in enumerate(made_up(name)):
        lines += [f"{number} ||| {t} ||| {form.format(a, b)} ||| {a + b}" for t, a, b in some]
    return {f"{name}.nbest": lines}


def speech(name):
    """Kaldi's text and utt2spk; the last utterance has no list."""
    ids = [f"s{number % 4}-u{number}" for number in range(N)]
    texts = [f"{id} {text}" for id, (text, _) in zip(ids, made_up(name), strict=True)]
    return {
        f"data/{name}/text": [*texts, f"s0-u{N} a b"],
        f"data/{name}/utt2spk": [f"{id} {id[:2]}" for id in [*ids, f"s0-u{N}"]],
    }


def espnet(name):
    files = {}
    for number, (_, some) in enumerate(made_up(name)):
        id = f"s{number % 4}-u{number}"
        for n, (text, a, b) in enumerate(some, 1):
            folder = f"exp/decode/{name}/logdir/output.1/{n}best_recog"
            scores = json.dumps({"decoder": f"tensor({a})", "lm": f"tensor({b})"})
            for file, value in (("text", text), ("score", f"tensor({a + b})"), ("scores", scores)):
                files.setdefault(f"{folder}/{file}", []).append(f"{id} {value}")
    return {**speech(name), **files}


def kaldi(name):
    files = {}
    for number, (_, some) in enumerate(made_up(name)):
        for n, (text, a, b) in enumerate(some, 1):
            for file, value in (("words_text", text), ("ac_cost", -a), ("lm_cost", -b)):
                line = f"s{number % 4}-u{number}-{n} {value}"
                files.setdefault(f"nbest/{name}/{file}", []).append(line)
    return {**speech(name), **files}


def fairseq(name):
    """Sentences in another order than that of their numbers."""
    lines, scores = [], []
    for number, (reference, some) in [*enumerate(made_up(name))][::-1]:
        lines += [f"S-{number}\tquelle", f"T-{number}\t{reference}"]
        for text, a, b in some:
            lines += [f"H-{number}\t{a}\t{text}", f"D-{number}\t{a}\t{text}", f"P-{number}\t{a}"]
            scores.append(b)
    return {f"{name}.out": lines, f"{name}.lm": scores}


def sockeye(name):
    lines, lengths = [], []
    for number, (_, some) in enumerate(made_up(name), 1):
        record = {"scores": [[-a] for _, a, _ in some], "sentence_id": number}
        lines.append(json.dumps({**record, "translations": [t for t, _, _ in some]}))
        lengths += [b for _, _, b in some]
    return {f"{name}.json": lines, f"{name}.length": lengths}


def hypo(name):
    some = made_up(name)
    records = [{"input": [t for t, _, _ in one], "output": text} for text, one in some]
    rows = [f"{a}\t{b}" for _, one in some for _, a, b in one]
    return {f"{name}.json": json.dumps(records), f"{name}.scores": ["am\tlm", *rows]}


# The paragraph of each tool, what writes its files for a set, and the weight that is to be above 0.
TOOLS = {
    "Marian": (lambda name: bars(name, "F0= {} F1= {}"), "F0_0"),
    "Moses, cdec, Joshua, Travatar": (lambda name: bars(name, "lm={} tm={}"), "lm"),
    "fairseq": (fairseq, "score"),
    "Sockeye": (sockeye, "score"),
    "CTranslate2, OpenNMT": (
        lambda name: {**plain(name, ".onmt", "{}"), **plain(name, ".ct2", "{1} ||| {0}")},
        "score",
    ),
    "Hugging Face": (lambda name: {}, "model"),
    "ESPnet": (espnet, "decoder"),
    "Kaldi, icefall": (kaldi, "acoustic"),
    "NeMo": (lambda name: plain(name, ".tsv", "{}\t{}"), "score"),
    "HyPoradise": (hypo, "am"),
}


def paragraphs(repository):
    text = (repository / "docs" / "lists.md").read_text("utf-8")
    section = text.split("\n## With your tool\n")[1].split("\n## ")[0]
    return dict(part.split("\n", 1) for part in section.split("\n### ")[1:])


@pytest.mark.parametrize("tool", TOOLS)
def test_what_the_docs_say_of_a_tool(tool, repository, tmp_path):
    files, weight = TOOLS[tool]
    for name in ("dev", "test"):
        references = "".join(f"{text}\n" for text, _ in made_up(name))
        common = {f"{name}.{end}": references for end in ("en", "en.0", "en.1", "txt")}
        put(tmp_path, {**common, f"{name}.sizes": f"{K}\n" * N, **files(name)})
    assert list(paragraphs(repository)) == list(TOOLS)
    text = paragraphs(repository)[tool].replace("preds.tsv", "dev.tsv")
    for code in re.findall(r"```python\n(.*?)```", text, re.S):
        some = made_up("dev")
        given = {
            "references": [reference for reference, _ in some],
            "texts": [[t for t, _, _ in one] for _, one in some],
            "scores": [[a for _, a, _ in one] for _, one in some],
        }
        exec(code.replace('open("dev', f'open("{tmp_path}/dev'), given)
    commands = re.findall(r"^    python scripts/(\w+)\.py (.*)$", text, re.M)
    assert commands[0][0] == "tune"
    for command, options in commands:
        quick = ["samples=50"] if command != "rerank" else []
        outcome = run_command(command, *shlex.split(options), *quick, folder=tmp_path)
        assert outcome.code == 0, f"{command} {options}\n{outcome.err}"
        if command == "tune":
            assert weights_of(tmp_path / "tuned.weights.txt")[weight] > 0
            # The score that knows makes no errors but for those of the utterance without a list.
            row = outcome.out.splitlines()[1].split()
            score = {"WER": "0.000", "chrF2": "100.00", "TER": "0.00", "BLEU": "100.00"}[row[1]]
            assert row[3] == ("2.703" if "data/dev" in options else score), outcome.out
        if command == "evaluate":
            assert re.search(r"\b(100\.00|2\.70)\b", outcome.out), outcome.out
    for path in tmp_path.glob("test.out.en"):
        assert read_lines(path) == [reference for reference, _ in made_up("test")]
    if (tmp_path / "test.hyp").exists():
        lines = [line.partition(" ")[2] for line in read_lines(tmp_path / "test.hyp")]
        assert sorted(lines) == sorted(reference for reference, _ in made_up("test"))


def scores(folder, text, hyp, *metrics):
    put(folder, {"text": text, "hyp": hyp})
    given = ["hyp", "references=text", f"metrics=[{','.join(metrics)}]", "samples=10", "table=csv"]
    outcome = run_command("evaluate", *given, folder=folder)
    return {row["metric"]: float(row["score"]) for row in outcome.rows()}, outcome.err


def test_lines_with_ids_are_scored_by_them(tmp_path):
    text = "u1 a b c\nu2 d e\nu3 f\n"
    found, said = scores(tmp_path, text, "u3 f\nu1 a x c\n", "wer")
    # A substitution, and two words of u2.
    assert found["WER"] == pytest.approx(100 * 3 / 6)
    assert "1 of 3 sentences, u2 among them" in said
    put(tmp_path, {"hyp": "u3 f\nu4 a x c\n"})
    run_command("evaluate", "hyp", "references=text", folder=tmp_path).refused("hyp:2: 'u4'")
    # Words with digits that come again, or differ, are words.
    found, said = scores(tmp_path, "2nd a\n2nd b\n", "2nd a\n3rd b\n", "wer")
    assert (found["WER"], said) == (25, "")
    # Numbers are ids where all files have the same ones, each once.
    for hyp, wer in (("01 f\n00 a x c\n", 100 / 4), ("00 a x c\n02 f\n", 100 / 3)):
        found, said = scores(tmp_path, "00 a b c\n01 f\n", hyp, "wer")
        assert found["WER"] == pytest.approx(wer) and ("ids" in said) == (wer == 25)
    # So many are ids, and one of the files has others, or none.
    text = "".join(f"u{i} b\n" for i in range(12))
    for first in ("v", ""):
        assert "ids" in scores(tmp_path, text, text.replace("u", first), "wer")[1]


def test_a_weighted_sum_of_metrics(tmp_path):
    texts = "a b c d e f\ng h i j k\n", "a b c d e x\ng h i j k l\n"
    found, _ = scores(tmp_path, *texts, "bleu", "ter", "{bleu:0.5,ter:2}")
    assert found["mix(0.5 BLEU, 2 TER)"] == pytest.approx(found["BLEU"] / 2 - 2 * found["TER"])
    for bad, word in (("{bleu:1,nist:1}", "nist"), ("{}", "empty"), ("{bleu:x}", "bleu")):
        given = ["hyp", "references=text", f"metrics=[{bad}]"]
        run_command("evaluate", *given, folder=tmp_path).refused(word)


def plain(name, ending, line):
    """A line a hypothesis, and the other score in a file of its own."""
    flat = [one for _, some in made_up(name) for one in some]
    files = {f"{name}{ending}": [line.format(t, a) for t, a, _ in flat]}
    return files | {f"{name}.lm": [b for _, _, b in flat], f"{name}.score": [a for _, a, _ in flat]}
