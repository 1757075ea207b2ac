"""Reranking, and tuning on stored lists, from their configurations."""

import gzip
import importlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import run_command
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from torchtune_smt.cli.rerank import main
from torchtune_smt.cli.wire import recipe
from torchtune_smt.core import textio
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import config_folder
from torchtune_smt.core.weights import Weights
from torchtune_smt.core.weights_io import Origin, save_weights
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.decoders.kbest_files import KBestFiles
from torchtune_smt.kbest import formats
from torchtune_smt.metrics import BleuPlusOne, ExternalScores
from torchtune_smt.metrics.base import bind_metric
from torchtune_smt.runs.task import bind
from torchtune_smt.tuners.sentences import evaluate
from torchtune_smt.tuners.start import weights_of_file, weights_of_values

LIST = """\
0 ||| a b  ||| LM0= -1 W_x= 1 ||| -7 ||| 0-0 |||  src
0 ||| c d  ||| LM0= -2 W_y= 1 ||| -8 ||| 0-1 ||| src
1 ||| e  ||| LM0= -1 ||| -1
1 ||| für uns  ||| LM0= -2 W_y= 2 ||| -2
"""

LISTS = [
    "decoder=kbest_files",
    "data=files",
    "data.name=x",
    "data.source_language=de",
    "data.target_language=en",
    "data.train=null",
    "data.dev=[dev.de,dev.en]",
    "decoder.dev=list",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list").write_text(LIST, encoding="utf-8")
    (tmp_path / "weights").write_text("LM0_0 1\nW_y 2\nW_z 9\n")
    return tmp_path


def rerank(monkeypatch: pytest.MonkeyPatch, *overrides: str) -> None:
    monkeypatch.setattr("sys.argv", ["rerank", "weights=weights", "input=list", *overrides])
    main()


def test_best_hypotheses(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rerank(monkeypatch)
    told = "weights: 1 of 3 features with a weight are nowhere in list: W_z\n"
    assert capsys.readouterr() == ("c d\nfür uns\n", told)
    (folder / "weights").write_text("LM0_0 1\nW_y 2\nW_z 0\n")
    rerank(monkeypatch)
    assert capsys.readouterr() == ("c d\nfür uns\n", "")
    names = "".join(f"W_{i} {i}\n" for i in range(1, 8))
    (folder / "weights").write_text("LM0_0 1\nW_y 2\n" + names)
    rerank(monkeypatch)
    err = capsys.readouterr().err
    assert "weights: 7 of 9 features" in err and err.endswith(
        "list: W_1, W_2, W_3, W_4, W_5, ...\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 ||| a ||| ||| -1\n0 ||| b ||| ||| -2\n", "list: has no features"),
        ("0 ||| a ||| LM0_0=-1 W:y=1 ||| -1\n0 ||| b ||| W:y=0 ||| 0\n", "list:2: .*'LM0_0' is"),
        ("0 ||| a ||| LM0_0=-inf ||| -1\n", "list:1: .*'-inf' .*floor"),
    ],
)
def test_lists_without_values(
    text: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "list").write_text(text)
    with pytest.raises(SystemExit, match=message):
        rerank(monkeypatch)


def test_what_stands_for_a_missing_value(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "list").write_text("0 ||| a ||| L=-1 M=-1 ||| 0\n0 ||| b ||| L=-2 ||| 0\n")
    (folder / "weights").write_text("L 1\nM 1\n")
    for missing, best in ((0, "a"), (1.5, "b")):
        rerank(monkeypatch, f"missing={missing}")
        assert capsys.readouterr().out == f"{best}\n"
    # What the weights were tuned with tells.
    save_weights(folder / "weights", Weights(["L"]), Origin.of_lists(["list"], ["L"]))
    rerank(monkeypatch)
    assert capsys.readouterr().out == "a\n"


@pytest.mark.parametrize("form", ["F0= {}", "F0={}"])
@pytest.mark.parametrize("name", ["F0", "F0_0"])
def test_a_feature_of_one_value_has_one_name(
    form: str,
    name: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [f"0 ||| {word} ||| {form.format(-i)} ||| 0" for i, word in enumerate("abc")]
    (folder / "list").write_text("\n".join(lines))
    (folder / "weights").write_text(f"{name} -1\n")
    rerank(monkeypatch)
    assert capsys.readouterr() == ("c\n", "")
    decoder = KBestFiles()
    decoder.read("dev", [folder / "list"])
    weights = weights_of_file("weights", decoder)
    assert weights.features.names(range(len(weights.features))) == decoder.dense_names
    # Lists in the other form are of the same features.
    (folder / "other").write_text("0 ||| a ||| F0_0=-5 ||| 0\n")
    (folder / "third").write_text("0 ||| a ||| F0= -6 ||| 0\n0 ||| b ||| F0= 0 ||| 0\n")
    for path in ("other", "third"):
        decoder.read(path, [folder / path])
        assert len(decoder.dense_names) == 1
        (best,) = decoder.decode(decoder.sources(path), weights)
        assert best.score[0] == {"other": 5, "third": 6}[path]


def test_values_of_several_have_the_names_that_they_have(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "list").write_text("0 ||| a ||| TM= 1 2 ||| 0\n")
    (folder / "weights").write_text("TM 1\n")
    with pytest.raises(SystemExit, match="no weight for any feature"):
        rerank(monkeypatch)


@pytest.mark.parametrize("letter", ["\u00a0", "\u3000", "\x1c", "\u2028"])
def test_what_looks_like_a_blank_is_part_of_a_word(
    folder: Path, monkeypatch: pytest.MonkeyPatch, letter: str
) -> None:
    lines = [f"0 ||| a{letter}||| b ||| W_x= 1 ||| 1 ||| 0-0", "0 ||| c ||| W_y= 1 ||| 2 ||| 1-1"]
    (folder / "list").write_text("\ufeff" + "\r\n".join(lines), encoding="utf-8")
    rerank(monkeypatch, "n_best=2", "output=sorted")
    expected = [lines[1], lines[0].replace("||| 1 |||", "||| 0 |||")]
    assert (folder / "sorted").read_text(encoding="utf-8") == "".join(f"{e}\n" for e in expected)
    rerank(monkeypatch, "output=best", "weights=weights")
    assert (folder / "best").read_text(encoding="utf-8") == "c\n"


def test_sorted_lists(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rerank(monkeypatch, "n_best=2", "output=sorted.gz")
    first, second, third, fourth = LIST.splitlines()
    expected = [
        second.replace("-8", "0"),
        first.replace("-7", "-1"),
        fourth.replace("||| -2", "||| 2"),
        third,
    ]
    with gzip.open(folder / "sorted.gz", "rt", encoding="utf-8") as file:
        assert file.read().splitlines() == expected
    rerank(monkeypatch, "n_best=1", "output=one")
    assert (folder / "one").read_text(encoding="utf-8").splitlines() == expected[::2]


@pytest.mark.parametrize("seed", range(3))
def test_pieces_are_as_the_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    draw = random.Random(seed)
    names = draw.choice([range(40), [f"u{n}" for n in range(40)]])
    lines = [
        f"{name} ||| w{draw.random()}  x ||| LM0= {draw.randint(-9, 9)} "
        f"W_{draw.choice('xyz')}= 1 ||| {draw.random()} ||| 0-0"
        for name in names
        for _ in range(draw.randint(1, 5))
    ]
    (folder / "list").write_text("".join(f"{line}\n" for line in lines))
    for option in ("n_best=null", "n_best=2"):
        # Held, since nothing could be left out otherwise.
        rerank(monkeypatch, option, "on_error=skip", "output=whole")
        monkeypatch.setattr(formats, "PIECE", draw.choice([1, 200, 1000]))
        monkeypatch.setattr(textio, "_BLOCK", draw.choice([7, 100]))
        rerank(monkeypatch, option, "output=pieces")
        assert (folder / "pieces").read_bytes() == (folder / "whole").read_bytes()
    bad = draw.randrange(1, len(lines))
    for old, new, word in (
        ("LM0= ", "LM0= x", "no finite number"),
        ("LM0=", "LM1=", "LM1="),
        (
            lines[bad].split()[0],
            "999 ||| x ||| LM0= 1 ||| 1\n999",
            "sentence 999|numbered|no label",
        ),
    ):
        damaged = [*lines[:bad], lines[bad].replace(old, new, 1), *lines[bad + 1 :]]
        if names[0] == 0 or not word.startswith("sentence"):
            (folder / "list").write_text("\n".join(damaged))
            with pytest.raises(SystemExit, match=f"list:{bad + 1}: .*({word})"):
                rerank(monkeypatch)
    capsys.readouterr()


def test_lists_of_other_tools(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "weights").write_text("lm -1\ncomet 2\n")
    for n, (text, lm) in enumerate([("a  b", -1), ("c ", -3)], 1):
        (folder / f"lists/{n}best_recog").mkdir(parents=True)
        (folder / f"lists/{n}best_recog/text").write_text(f"u1 {text}\nu2 x\n")
        (folder / f"lists/{n}best_recog/scores").write_text(
            f'u1 {{"lm": {lm}}}\nu2 {{"lm": "tensor({lm})"}}\n'
        )
    rerank(monkeypatch, "input=lists", "output=best")
    assert (folder / "best").read_text() == "u1 c \nu2 x\n"
    (folder / "comet").write_text("4\n0\n0\n0\n")
    # The model score of a folder that is written is a feature when it is read.
    rerank(monkeypatch, "input=lists", "output=new", "n_best=2", "columns.comet=comet")
    assert (folder / "new/1best_recog/text").read_text() == "u1 a  b\nu2 x\n"
    assert (folder / "new/2best_recog/score").read_text() == "u1 3\nu2 1\n"
    with pytest.raises(SystemExit, match="name one with output="):
        rerank(monkeypatch, "input=lists", "n_best=2")
    two = '{"text": "é  x", "features": {"lm": 1}}, {"text": "y", "features": {"lm": 2}}'
    record = f'{{"hypotheses": [{two}]}}'
    (folder / "list").write_text(f'{record}\n{{"hypotheses": []}}\n', "utf-8")
    rerank(monkeypatch, "output=best", "scale.lm=-1")
    assert (folder / "best").read_text("utf-8") == "y\n\n"
    rerank(monkeypatch, "output=list2", "n_best=1")
    assert (folder / "list2").read_text("utf-8") == (
        '{"hypotheses": [{"text": "é  x", "features": {"lm": 1}, "score": -1.0}]}\n'
        '{"hypotheses": []}\n'
    )
    (folder / "list").write_text("a\t-1\nb\t-2\n")
    (folder / "weights").write_text("score -1\n")
    rerank(monkeypatch, "output=best", "sizes=2")
    assert (folder / "best").read_text() == "b\n"


def test_lists_may_come_from_a_pipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rerank(monkeypatch, "n_best=2", "output=expected")
    reader, writer = os.pipe()
    os.write(writer, LIST.encode())
    os.close(writer)
    rerank(monkeypatch, "n_best=2", f"input=/dev/fd/{reader}", "output=sorted")
    os.close(reader)
    assert (folder / "sorted").read_bytes() == (folder / "expected").read_bytes()


def test_faulty_lines_are_skipped_if_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for line in LIST.splitlines() if line.startswith("0")]
    bad = "1 ||| e ||| LM0= nan ||| -1"
    last = "2 ||| f ||| LM0= 0 ||| 0"
    (folder / "list").write_text("\n".join([*lines, bad, last]))
    with pytest.raises(SystemExit, match="list:3: the feature value 'nan' is no finite number"):
        rerank(monkeypatch)
    rerank(monkeypatch, "on_error=skip")
    out, err = capsys.readouterr()
    assert out == "c d\n\nf\n"
    assert "1 lines with a bad value, 1 sentences with a fault, 1 sentences without a list" in err
    (folder / "list").write_text("\n".join([*lines, bad]))
    rerank(monkeypatch, "on_error=skip")
    out, err = capsys.readouterr()
    assert out == "c d\n\n"
    assert "1 lines with a bad value, 1 sentences with a fault, 1 sentences without a list" in err


@pytest.mark.parametrize(
    ("weights", "override", "message"),
    [
        (
            "other 1\n",
            "n_best=1",
            "weights: has no weight for any feature of list: it has other, and the lists have "
            "LM0_0, W_x, W_y; was it made for other lists",
        ),
        ("LM0_0 x\n", "n_best=1", "weights:1: has a value that is no finite number"),
        ("LM0_0 1\n", "n_best=0", "n_best must be"),
        ("LM0_0 1\n", "format=jane", "format must be bars"),
        ("LM0_0 1\n", "on_error=ignore", "on_error must be"),
        ("LM0_0 1\n", "input=none", "none: no such file"),
    ],
)
def test_bad_options(
    weights: str, override: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "weights").write_text(weights)
    with pytest.raises(SystemExit, match=message):
        rerank(monkeypatch, override)


def test_script_is_the_command(repository: Path) -> None:
    assert 'main(["rerank", *' in (repository / "scripts" / "rerank.py").read_text()
    assert importlib.import_module("torchtune_smt.cli").COMMANDS["rerank"]


def configured(*overrides: str) -> DictConfig:
    """The training configuration with stored lists."""
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        return compose(
            "train",
            [*LISTS, *overrides],
        )


def open_lists(cfg: DictConfig, report: Callable[[str], object]) -> KBestFiles:
    offered = {"tune_on": lambda: "dev", "report": lambda: report}
    decoder = recipe(cfg, "decoder")(**offered)
    assert isinstance(decoder, KBestFiles)
    return decoder


def reader(cfg: DictConfig, name: str) -> Callable[[], Corpus | None]:
    return lambda: Dataset(**cfg.data).read(name)


def start(cfg: DictConfig, decoder: KBestFiles) -> Weights:
    if cfg.init.file is not None:
        return weights_of_file(cfg.init.file, decoder)
    return weights_of_values(dict(cfg.init["values"]), decoder)


def test_lists_with_references(folder: Path) -> None:
    (folder / "dev.de").write_text("x\ny\n")
    (folder / "dev.en").write_text("c d\nf u r\n")
    cfg = configured("init=zero")
    messages: list[str] = []
    decoder = open_lists(cfg, messages.append)
    sentences = decoder.sentences("dev", reader(cfg, "dev"))
    assert sentences is not None
    assert decoder.sentences("test", reader(cfg, "test")) is None
    assert messages == ["k-best lists of dev: 4 hypotheses of 2 sentences"]
    weights = start(cfg, decoder)
    assert not weights.parameter.any()
    score, lines = evaluate(decoder, weights, sentences)
    assert (score.score, lines) == (0.0, ["a b", "e"])
    weights.set(["W_y"], [1.0])
    assert evaluate(decoder, weights, sentences)[1] == ["c d", "für uns"]
    kbest, _ = decoder.decode(sentences.sources, weights)
    gains = bind_metric(BleuPlusOne(), sentences.references, decoder.words).gains(kbest)
    assert gains.tolist() == [1.0, 0.0]


def test_sentences_that_references_lack_are_left_out(folder: Path) -> None:
    (folder / "dev.de").write_text("\ny\n")
    (folder / "dev.en").write_text("c d\nf u r\n")
    cfg = configured()
    decoder = open_lists(cfg, str)
    sentences = decoder.sentences("dev", reader(cfg, "dev"))
    assert sentences is not None
    assert [(s.index, s.list) for s in sentences.sources] == [(0, 1)]  # type: ignore[attr-defined]
    assert sentences.references == [[["f", "u", "r"]]]


def test_scores_are_found_by_the_number_in_the_lists(folder: Path) -> None:
    numbers = [0, 1, 3, 4, 5]
    lists = [f"{i} ||| {word} ||| F=1 ||| 0\n" for i in numbers for word in "ab"]
    (folder / "list").write_text("".join(lists))
    scores = [f"{i} ||| {w} ||| {10 * i + (w == 'b')}\n" for i in range(6) for w in "ab"]
    (folder / "scores").write_text("".join(scores))
    # Sentence 1 has no source, 2 no list.
    (folder / "dev.de").write_text("x\n\nx\nx\nx\nx\n")
    (folder / "dev.en").write_text("a\n" * 6)
    cfg = configured("decoder.on_error=skip", "decoder.format=cdec")
    decoder = open_lists(cfg, str)
    whole = decoder.sentences("dev", reader(cfg, "dev"), str)
    assert whole is not None
    metric = ExternalScores(folder / "scores")
    for sentences, expected in (
        (whole, [0, 30, 40, 50]),
        (whole.subset([1, 3]), [30, 50]),
        (whole.part([0, 2]), [0, 40]),
        (whole.part([3]), [50]),
    ):
        bound = bind(metric, decoder, sentences)
        found = decoder.decode(sentences.sources, Weights())
        assert [bound.gains(kbest).tolist() for kbest in found] == [[n, n + 1] for n in expected]


def test_lists_and_references_must_fit(folder: Path) -> None:
    (folder / "dev.de").write_text("x\ny\nz\n")
    (folder / "dev.en").write_text("c d\nf u r\ng\n")
    cfg = configured()
    decoder = open_lists(cfg, str)
    with pytest.raises(InputError, match="decoder.dev has no list of sentence 2"):
        decoder.sentences("dev", reader(cfg, "dev"))
    skipping = open_lists(configured("decoder.on_error=skip"), str)
    messages: list[str] = []
    sentences = skipping.sentences("dev", reader(cfg, "dev"), messages.append)
    assert sentences is not None and len(sentences) == 2
    assert messages == ["dev: 1 sentences without a list are left out"]
    (folder / "dev.de").write_text("x\n")
    (folder / "dev.en").write_text("c d\n")
    with pytest.raises(InputError, match="decoder.dev has a list of sentence 1"):
        decoder.sentences("dev", reader(cfg, "dev"))


def test_lines_of_sentences_without_a_list(folder: Path) -> None:
    # Sentence 1 has no list; line 2 has no words, and the data leave it out.
    (folder / "dev.de").write_text("x\nx\n\nx\n")
    (folder / "dev.en").write_text("a\n" * 4)
    (folder / "list").write_text(LIST.replace("\n1 |||", "\n3 |||"), encoding="utf-8")
    skipping = configured("decoder.on_error=skip", "data.empty=skip")
    sentences = open_lists(skipping, str).sentences("dev", reader(skipping, "dev"))
    assert sentences is not None
    assert list(sentences.lines(["a b", "e"])) == ["a b\n", "\n", "e\n"]


def test_a_run_on_lists_with_a_gap_can_be_compared(folder: Path) -> None:
    lists = LIST.replace("\n1 |||", "\n2 |||")
    (folder / "list").write_text(lists, encoding="utf-8")
    (folder / "dev.de").write_text("x\ny\nz\n")
    (folder / "dev.en").write_text("c d\nf u r\nfür uns\n", encoding="utf-8")
    given = [*LISTS, "decoder.on_error=skip", "tuner.epochs=1", "report=true", "init=zero"]
    run_command("train", *given, "hydra.run.dir=run", folder=folder).check()
    first, gap, last = (folder / "run" / "dev.translations.txt").read_text("utf-8").splitlines()
    assert first in ("a b", "c d") and gap == "" and last in ("e", "für uns")
    assert (folder / "run" / "report.html").is_file()
    run_command("evaluate", "run", "split=dev", "samples=10", folder=folder).check()


def test_options_of_lists(folder: Path) -> None:
    for overrides, message in {
        ("decoder.dev=null",): "decoder.dev is null",
        ("decoder.test_scores=s",): "decoder.test_scores needs decoder.test",
        ("decoder.dev_scores=[s,s]",): "decoder.dev: 1 files of features and 2 files of scores",
        ("decoder.k=0",): "k must be a whole number, 1 or more",
        ("decoder.dense=[x]",): "the dense feature x does not occur",
        ("decoder.features=x",): "has no feature 'x', .* LM0_0, .* templates W$",
        ("decoder.features=[dense,x]",): "has no feature 'x'",
    }.items():
        with pytest.raises(InputError, match=message):
            open_lists(configured(*overrides), str)
    for choice, names in {
        "all": ["LM0_0", "W_x", "W_y"],
        "dense": ["LM0_0"],
        "W": ["W_x", "W_y"],
        "[dense,W_y]": ["LM0_0", "W_y"],
    }.items():
        chosen = configured(f"decoder.features={choice}")
        features = open_lists(chosen, str).features
        assert features.names(range(len(features))) == names
    (folder / "init").write_text("other 1\n")
    cfg = configured("init=file", "init.file=init")
    decoder = open_lists(cfg, str)
    with pytest.raises(InputError, match="init: has no weight for any feature of the k-best lists"):
        start(cfg, decoder)
    (folder / "init").write_text("W_y 1\n")
    assert start(cfg, decoder).parameter.tolist() == [0.0, 1.0]


def test_moses_features_start_as_those_of_our_decoders(folder: Path) -> None:
    """The default initial weights name them: lists of Moses are not in the order of their files."""
    cfg = configured()
    assert start(cfg, open_lists(cfg, str)).parameter.tolist() == [0.1]


def test_lines_of_lists_with_statistics_and_a_gap(folder: Path) -> None:
    (folder / "f").write_text(
        "".join(f"FEATURES_TXT_BEGIN_0 {i} 1 1 LM0_0\n1\nFEATURES_TXT_END_0\n" for i in (0, 2))
    )
    rows = "7 9 4 8 2 7 1 6 10\n"
    (folder / "s").write_text(
        "".join(f"SCORES_TXT_BEGIN_0 {i} 1 9 BLEU\n{rows}SCORES_TXT_END_0\n" for i in (0, 2))
    )
    lists = ["decoder.dev=null", "decoder.test=f", "decoder.test_scores=s"]
    cfg = configured("decoder.on_error=skip", *lists)
    decoder = recipe(cfg, "decoder")(report=lambda: str)
    sentences = decoder.sentences("test", lambda: None)
    assert list(sentences.lines(["0", "0"])) == ["0\n", "\n", "0\n"]


def test_lists_with_statistics(folder: Path) -> None:
    (folder / "f").write_text("FEATURES_TXT_BEGIN_0 0 2 1 LM0_0\n1\n2\nFEATURES_TXT_END_0\n")
    rows = "7 9 4 8 2 7 1 6 10\n8 9 5 8 3 7 1 6 10\n"
    (folder / "s").write_text(f"SCORES_TXT_BEGIN_0 0 2 9 BLEU\n{rows}SCORES_TXT_END_0\n")
    cfg = configured("init=zero", "decoder.dev=f", "decoder.dev_scores=s", "data.dev=null")
    decoder = open_lists(cfg, str)
    sentences = decoder.sentences("dev", reader(cfg, "dev"))
    assert sentences is not None
    weights = start(cfg, decoder)
    score, lines = evaluate(decoder, weights, sentences)
    # BP * (7/9 * 4/8 * 2/7 * 1/6)^(1/4), BP = exp(1 - 10/9)
    assert score.score == pytest.approx(100 * 2.718281828459045 ** (-1 / 9) * (1 / 54) ** 0.25)
    assert lines == ["0"]
    weights.set(["LM0_0"], [1.0])
    assert evaluate(decoder, weights, sentences)[1] == ["1"]
    kbest = decoder.decode(sentences.sources, weights)[0]
    assert bind_metric(BleuPlusOne(), sentences.references, decoder.words).gains(kbest)[0] > 0.3
