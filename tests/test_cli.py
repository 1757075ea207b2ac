"""The commands, on a small model of the bundled example."""

import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import sacrebleu
from commands import MODEL, NAMES, SMALL, Run, example_source, example_target, run_command, train
from hydra import compose, initialize_config_dir
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf
from small_lists import weights_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from torchtune_smt.cli.options import check_options
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import config_folder, example_folder
from torchtune_smt.core.textio import read_lines
from torchtune_smt.grammar import load_grammar, write_grammar

EXAMPLE = example_folder()


def translate(run: Run, *options: str | Path) -> str:
    given = [f"weights={run.weights}", *options]
    return run_command("translate", *given, folder=run.place).check().out


def references(split: str) -> list[list[str]]:
    return [example_target(split, i) for i in (0, 1)]


def bleu(lines: list[str], split: str = "test") -> float:
    return sacrebleu.corpus_bleu(lines, references(split), tokenize="none", force=True).score


# train


def test_files_of_a_run(run):
    names = {path.name for path in run.folder.iterdir()}
    # From the checkpoint the run can be made longer.
    own = {"tensorboard", ".hydra", "checkpoint.pt", "checkpoint.names"}
    files = {*NAMES, "metrics.jsonl", "config.yaml", "train.log"}
    assert names == files | own
    for name in files:
        assert f"\n  {name} " in run.outcome.out
    assert f"tensorboard --logdir {run.name}\n" in run.outcome.out
    *_, last = run.outcome.out.splitlines()
    # As people write it.
    assert last.startswith("Now try: echo 'Wo kann ich heute noch ein Auto mieten?' | ")
    assert last.endswith(f" translate weights={run.name}/weights.txt.gz input=-")
    assert all(len(line) <= 80 for line in run.outcome.out.splitlines()[-13:-1])
    assert "warning" not in run.outcome.err
    weights = weights_of(run.weights)
    assert all(weights.values()) and any(name.startswith("rule_id:") for name in weights)
    assert f"active features: {len(weights):,} (12 dense, " in run.outcome.out


def test_bleu_that_is_printed_is_that_of_the_translations(run):
    for split in ("dev", "test"):
        lines = read_lines(run.folder / f"{split}.translations.txt")
        found = re.search(rf"^{split} +([\d.]+) +([\d.]+) +([+-][\d.]+)$", run.outcome.out, re.M)
        assert found is not None
        before, after, gain = map(float, found.groups())
        assert after == pytest.approx(bleu(lines, split), abs=0.0051)
        assert gain == pytest.approx(after - before, abs=0.011)
        assert gain > 0
    assert re.search(r"^signature: nrefs:2\|case:mixed\|.*tok:none", run.outcome.out, re.M)


def test_metrics_and_tensorboard_events(run):
    lines = run.metrics()
    steps = [line["step"] for line in lines]
    assert steps == sorted(steps) and (steps[0], steps[-1]) == (0, 60)
    assert [line["train/pairs"] > 0 for line in lines if "train/pairs" in line] == [True] * 4
    events = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    assert "config/text_summary" in events.Tags()["tensors"]
    assert "weights/rule_id" in events.Tags()["histograms"]
    for tag in ("bleu/dev", "train/loss", "train/gain", "weight/LanguageModel", "active/rule_id"):
        expected = [(line["step"], line[tag]) for line in lines if tag in line]
        found = events.Scalars(tag)
        assert [event.step for event in found] == [step for step, _ in expected]
        assert [event.value for event in found] == pytest.approx([value for _, value in expected])
        assert len(found) >= 2
    scores = [line["bleu/dev"] for line in lines if "bleu/dev" in line][1:]
    assert lines[-1]["bleu/dev_tuned"] == max(scores)
    assert f"best epoch: {1 + scores.index(max(scores))}\n" in run.outcome.out


def test_resolved_configuration(run):
    text = (run.folder / "config.yaml").read_text()
    assert "${" not in text
    config = OmegaConf.create(text)
    assert config.tuner.epochs == 2
    assert (run.place / config.model.folder / "model.json").is_file()


def test_one_seed_one_result_in_any_number_of_threads(run):
    again = train(run.place, "again", "threads=1")
    assert "building the model" not in again.outcome.out
    assert again.bytes() == run.bytes()


def test_tuning_starts_from_a_weights_file(run):
    second = train(run.place, "second", "init=file", f"init.file={run.weights}")
    tuned = run.metrics()[-1]
    assert second.metrics()[0]["bleu/dev"] == tuned["bleu/dev_tuned"]
    assert second.metrics()[0]["bleu/test"] == tuned["bleu/test_tuned"]
    assert "weights are left out" not in second.outcome.out


def test_start_weights_of_features_that_are_not_in_use(run):
    names = weights_of(run.weights)
    sparse = [name for name in names if ":" in name]
    file = f"init.file={run.weights}"
    dense = train(run.place, "start_dense", file, "features=dense", "data.test=null")
    notice = f"{run.weights}: {len(sparse):,} of {len(names):,} weights are left out, as their "
    assert notice + f"features, such as {sparse[0]}, are not in use here" in dense.outcome.out
    left = weights_of(dense.weights)
    assert len(left) == 12 and not any(":" in name for name in left)
    assert not (dense.folder / "test.translations.txt").exists()
    assert "test BLEU" not in dense.outcome.out


def test_start_weights_of_features_that_are_not_there(run):
    options = [*MODEL, *SMALL, "+init.values.LanguagModel=1", "hydra.run.dir=bad"]
    said = "there is no feature LanguagModel at the start, and init.values.LanguagModel would"
    run_command("train", *options, folder=run.place).refused(said)


def test_tuning_on_the_bitext(whole_place):
    folds = train(whole_place, "folds", "tuner.tune_on=train", "lm=folds")
    full = train(whole_place, "full", "tuner.tune_on=train", "lm=full")
    # What a full language model has memorised comes out better than it is.
    assert full.mean("train/gain") > folds.mean("train/gain") + 0.05
    assert "tuning on 30 sentences of the bitext" in folds.outcome.out


def test_several_runs_with_one_command(run):
    options = ["-m", *MODEL, *SMALL, "seed=1,2", "hydra.sweep.dir=sweep"]
    run_command("train", *options, folder=run.place).check()
    assert Run(run.place, "sweep/0", run.outcome).bytes() == run.bytes()
    assert Run(run.place, "sweep/1", run.outcome).bytes()[0] != run.bytes()[0]


# translate and evaluate


def test_translations_are_those_of_the_run(run):
    output = run.place / "new" / "test.out"
    assert translate(run, f"input={EXAMPLE / 'test.de'}", f"output={output}") == ""
    assert output.read_bytes() == (run.folder / "test.translations.txt").read_bytes()
    assert [path.name for path in output.parent.iterdir()] == ["test.out"]


def test_lists_of_the_best_translations(run):
    weight = weights_of(run.weights)
    output = run.place / "test.nbest.gz"
    translate(run, f"input={EXAMPLE / 'test.de'}", f"output={output}", "n_best=5")
    best: dict[int, list[tuple[str, float]]] = {}
    for line in read_lines(output):
        index, words, features, score = line.split(" ||| ")
        row = [feature.rsplit("=", 1) for feature in features.split()]
        assert float(score) == pytest.approx(
            sum(weight.get(name, 0) * float(value) for name, value in row), abs=1e-6
        )
        best.setdefault(int(index), []).append((words, float(score)))
    assert list(best) == list(range(30))
    assert max(map(len, best.values())) == 5
    for entries in best.values():
        scores = [score for _, score in entries]
        assert scores == sorted(scores, reverse=True)
        assert len({words for words, _ in entries}) == len(entries)
    first = [entries[0][0] for entries in best.values()]
    assert first == read_lines(run.folder / "test.translations.txt")


def test_each_line_of_the_standard_input_is_answered(run, monkeypatch):
    """The answers to what has arrived are there before more is asked for."""
    lines = (EXAMPLE / "test.de").read_bytes().splitlines(keepends=True)
    pieces = [lines[0], lines[1], lines[2] + lines[3][:3], lines[3][3:], b"".join(lines[4:])]
    ends = [0, *(b"".join(pieces[: i + 1]).count(b"\n") for i in range(len(pieces)))]
    answered = []

    class Pipe(io.BytesIO):
        def read1(self, size=-1):
            assert isinstance(sys.stdout, io.StringIO)
            answered.append(sys.stdout.getvalue().count("\n"))
            return pieces.pop(0) if pieces else b""

    stdin = SimpleNamespace(buffer=Pipe(), isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", stdin)
    outcome = run_command("translate", f"weights={run.weights}", "input=-", folder=run.place)
    assert outcome.check().out == (run.folder / "test.translations.txt").read_text()
    assert answered == ends


BAD_LINES = {
    b"a ||| b": "reserved",
    b"</s>": "reserved",
    "d\u00e9j\u00e0".encode("latin-1"): "UTF-8",
    b"a\0b": "zero byte",
    b"a\rb": "line end",
    b"der zug " * 600: "1200 words",
}


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    stdin = SimpleNamespace(buffer=io.BytesIO(data), isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", stdin)


@pytest.mark.parametrize(
    ("bad", "number"), [*((bad, 4) for bad in BAD_LINES), (b"|||", 1), (b"\xff", 6)]
)
def test_a_bad_line_loses_none_before_it(run, monkeypatch, bad, number):
    given = [line.encode() for line in example_source("test")[:5]]
    answers = read_lines(run.folder / "test.translations.txt")[:5]
    given.insert(number - 1, bad)
    pipe(monkeypatch, b"\n".join(given))
    arguments = [f"weights={run.weights}", "input=-", "data.tokenize=false"]
    outcome = run_command("translate", *arguments, folder=run.place)
    assert outcome.out.splitlines() == answers[: number - 1]
    outcome.refused(f"standard input:{number}: ", BAD_LINES.get(bad, ""))


@pytest.mark.parametrize(
    ("where", "on_error"), [("pipe", "copy"), ("file", "skip"), ("file to file", "copy")]
)
def test_bad_lines_are_copied_or_skipped(run, tmp_path, monkeypatch, on_error, where):
    given = [line.encode() for line in example_source("test")[:6]]
    data = b"".join(b"%s\n%s\n" % pair for pair in zip(BAD_LINES, given, strict=True))
    pipe(monkeypatch, data)
    (tmp_path / "in").write_bytes(data)
    name = "standard input" if where == "pipe" else str(tmp_path / "in")
    given = "-" if where == "pipe" else name
    options = ["data.tokenize=false", f"on_error={on_error}", f"input={given}"]
    options += [f"output={tmp_path / 'out'}"] * (where == "file to file")
    outcome = run_command("translate", f"weights={run.weights}", *options, folder=run.place).check()
    out = outcome.out.encode("utf-8", "surrogateescape")
    if where == "file to file":
        out = (tmp_path / "out").read_bytes()
    answers = read_lines(run.folder / "test.translations.txt")
    expected = [answer.encode() for answer in answers[:6]]
    assert out.split(b"\n")[1::2] == expected
    copied = list(BAD_LINES) if on_error == "copy" else [b""] * 6
    assert out.split(b"\n")[:-1:2] == copied
    for number, what in enumerate(BAD_LINES.values()):
        assert re.search(f"{re.escape(name)}:{2 * number + 1}: .*{what}", outcome.err)
    if on_error == "skip":
        given = [f"weights={run.weights}", *options[:2], f"input={tmp_path / 'in'}", "n_best=1"]
        lists = run_command("translate", *given, folder=run.place).check().out.splitlines()
        assert [line.split(" ||| ")[0] for line in lists] == [*"13579", "11"]


def test_text_as_people_type_it(run, monkeypatch):
    kept = ["http://www.example.org/a?b=c", "10:30", "3/4", "me@example.org", "<b>"]
    lines = ["Wo ist der Bahnhof?", "wo ist der bahnhof ?", f"Um {', '.join(kept)}."]
    pipe(monkeypatch, "\n".join(lines).encode())
    arguments = [f"weights={run.weights}", "input=-", "detokenize=true", "capitalize=true"]
    outcome = run_command("translate", *arguments, folder=run.place).check()
    typed, tokens, copied = outcome.out.splitlines()
    assert typed == tokens and "ahnhof" not in typed and typed[0].isupper()
    assert all(what in copied.removesuffix(".").replace(",", "").split() for what in kept)


def test_every_line_gets_a_translation(run, tmp_path):
    lines = ["", "xyzzy plugh", " ".join(["der zug fährt ab ."] * 40), "   ", "ja", "\x85 \u2028"]
    (tmp_path / "in").write_text("\n".join(lines))
    raw = ["data.normalize=false", "data.tokenize=false"]
    output = translate(run, f"input={tmp_path / 'in'}", *raw).split("\n")
    assert len(output) == len(lines) + 1
    assert output[0] == output[3] == ""
    assert output[1] == "xyzzy plugh"
    assert len(output[2].split()) > 100
    # No blanks and no line ends, though Python takes them for some.
    assert output[5] == "\x85 \u2028"
    lists = translate(run, f"input={tmp_path / 'in'}", "n_best=2").removesuffix("\n").split("\n")
    assert {line.split(" ||| ")[0] for line in lists} == set("012345")
    (tmp_path / "in").write_text("")
    assert translate(run, f"input={tmp_path / 'in'}") == ""


# What a run recorded


def test_the_model_is_the_one_of_the_run(run, place):
    """A grammar and a language model in files, which translate finds again by the weights."""
    model = place / "outputs" / "models" / "example"
    write_grammar(place / "rules.gz", load_grammar(model / "grammar"))
    lm = model / "lm.arpa.gz"
    options = ["model=files", "model.grammar=rules.gz", f"model.language_model={lm}"]
    arguments = [*SMALL, *options, "hydra.run.dir=files", "features=dense"]
    files = Run(place, "files", run_command("train", *arguments, folder=place).check())
    expected = (files.folder / "test.translations.txt").read_text()
    assert translate(files, f"input={EXAMPLE / 'test.de'}") == expected
    # What is given now replaces what was recorded.
    given = [f"weights={files.weights}", f"input={EXAMPLE / 'test.de'}", "model.grammar=nowhere"]
    run_command("translate", *given, folder=place).refused("error: nowhere: no such file; check")


# The user's own files


def test_files_of_the_user(place, tmp_path):
    """Raw text is tokenised and lowercased; then it is the example's."""
    sets = []
    for split, ends in (("train", ["de", "en"]), ("dev", ["de", "en.0", "en.1"])):
        for end in ends:
            lines = read_lines(EXAMPLE / f"{split}.{end}")[:250]
            if split == "train":
                lines.insert(7, "" if end == "de" else "A line without a source.")
            text = "".join(f"{line}\n" for line in lines)
            (tmp_path / f"{split}.{end}").write_text(text)
        files = ",".join(str(tmp_path / f"{split}.{end}") for end in ends)
        sets.append(f"data.{split}=[{files}]")
    options = ["data=files", "data.name=mine", *LANGUAGES, *sets]
    own = train(place, "mine", *options)
    assert "training bitext: 250 sentences, 1 lines dropped (1 empty)" in own.outcome.out
    assert (place / "outputs" / "models" / "mine" / "model.json").is_file()
    for line in read_lines(own.folder / "dev.translations.txt"):
        assert line == line.lower()
        assert not re.search(r"\w[.?!]$", line)
    # What only tuning on the bitext needs is added where it is wanted, and stays.
    built = run_command("build_model", *options, *MODEL, "lm=folds", folder=place).check()
    assert "shared grammar with outputs/models/mine" in built.out
    assert "estimated 10 cross-fitted language models" in built.out
    for more in ([], ["lm=folds"]):
        built = run_command("build_model", *options, *MODEL, *more, folder=place).check()
        assert "outputs/models/mine is up to date" in built.out
    refused = run_command("build_model", *options, "lm=folds", "model.folds=0", folder=place)
    assert refused.err.startswith("error: lm=folds needs cross-fitted language models")
    # A model that is missing is built here, too, and says what it leaves out.
    folder = f"model.folder={tmp_path / 'model'}"
    arguments = [f"weights={own.weights}", f"input={tmp_path / 'dev.de'}", folder]
    again = run_command("translate", *arguments, folder=place).check()
    assert "training bitext: 250 sentences, 1 lines dropped (1 empty)" in again.err
    assert again.out == (own.folder / "dev.translations.txt").read_text()


def test_build_model(place):
    options = ["data=example", "model.folder=built", "model.folds=0", *MODEL[:1]]
    built = run_command("build_model", *options, folder=place).check()
    assert "training bitext: 300 sentences" in built.out
    assert "the model lies in built" in built.out
    # No run folder is made by this command.
    assert not (place / ".hydra").exists()
    files = ["model=files", "model.grammar=a", "model.language_model=b"]
    refused = run_command("build_model", "data=example", *files, folder=place)
    refused.refused("error: model=files is not built from a bitext; use model=hiero")


# Configurations


LANGUAGES = ["data.source_language=de", "data.target_language=en"]
EXPERIMENTS = sorted(path.stem for path in (config_folder() / "experiment").glob("*.yaml"))


def composed(name: str, *overrides: str) -> DictConfig:
    Plugins.instance()
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        return compose(name, list(overrides))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes(name):
    """All choices of the other groups are made in test_unread_options and test_combinations."""
    config = composed("train", f"experiment={name}")
    check_options(config)
    OmegaConf.to_container(config, resolve=True)


def test_options_of_ones_own_classes_are_their_own_business():
    """What an option may be is told by the class that takes it, and not by the option's name."""
    own = {"_target_": "my_module.MyDecoder", "k": "many", "max_span": None}
    config = composed("translate", "weights=a", "input=b")
    check_options(OmegaConf.merge(config, {"decoder": own}))
    files = composed("train", "decoder=kbest_files", "decoder.dev=[a]")
    assert files.decoder.k is None
    check_options(files)
    with pytest.raises(
        InputError, match=r"decoder\.k must be a whole number, 1 or more .*, not None"
    ):
        check_options(OmegaConf.merge(config, {"decoder": {"k": None}}))
