"""Bad input to the commands: one clear message, an exit code, and nothing half-written."""

import os
from unittest.mock import Mock

import pytest
from commands import MODEL, SMALL, content, run_command

from torchtune_smt.decoders.hiero import HieroDecoder

GRAMMAR = """\
[X] ||| a ||| x ||| EgivenF=-0.1
[X] ||| b ||| y ||| EgivenF=-0.2
[X] ||| [X,1] b ||| y [1] ||| EgivenF=-0.3
"""
ARPA = """\
\\data\\
ngram 1=4

\\1-grams:
-1.0\t<unk>
-99\t<s>
-0.5\t</s>
-0.7\tx

\\end\\
"""
TEXT = {"de": "a b\nb a b\na\n", "en": "x y\ny x\nx\n"}
FILES = {
    **{f"{split}.{end}": text for split in ("train", "dev", "test") for end, text in TEXT.items()},
    "grammar": GRAMMAR,
    "lm.arpa": ARPA,
    "weights": "EgivenF 1.0\nLanguageModel 0.5\n",
    "system": "x y\ny\nx\n",
    "links": "0-0\n0-0\n0-0\n",
}

LANGUAGES = ["data=files", "data.name=own", "data.source_language=de", "data.target_language=en"]
DATA = LANGUAGES + [f"data.{split}=[{split}.de,{split}.en]" for split in ("dev", "test")]
BITEXT = "data.train=[train.de,train.en]"
MODEL_FILES = ["model=files", "model.grammar=grammar", "model.language_model=lm.arpa"]
TRAIN = ["train", *DATA, BITEXT, "tuner.epochs=1"]
TUNE = ["train", *DATA, "tuner.epochs=1", *MODEL_FILES]
TRANSLATE = ["translate", *LANGUAGES, *MODEL_FILES, "weights=weights", "input=dev.de", "output=out"]
EVALUATE = ["evaluate", "systems=system", "references=dev.en"]

Changes = dict[str, str | bytes | None]


def write(folder, changes):
    """Write the good files but for some changes; None: the file is missing."""
    for name, text in {**FILES, **changes}.items():
        if text is not None:
            data = text if isinstance(text, bytes) else text.encode()
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)


def check(folder, arguments, *parts):
    """Run a command that must fail with one line that has these parts, and change nothing."""
    before = content(folder, "*.cache")
    outcome = run_command(*arguments, folder=folder)
    assert outcome.code == 1
    # The sets are the same here, which commands warn of.
    (line,) = (o for o in outcome.err.splitlines() if not o.startswith("warning: "))
    assert line.startswith("error: ")
    for part in parts:
        assert part in line
    assert content(folder, "*.cache") == before


@pytest.mark.parametrize("command", [TRAIN, TUNE, TRANSLATE, EVALUATE])
def test_the_good_files_are_good(tmp_path, command):
    write(tmp_path, {})
    run_command(*command, "hydra.run.dir=run", folder=tmp_path).check()


INIT = [*TUNE, "init=file", "init.file=weights"]
LINKS = [*TRAIN, "model.alignment_file=links"]
# The files that commands read. What is wrong within them, their readers' own tests know.
READ = [
    *((TUNE, name) for name in ("dev.de", "dev.en", "test.de", "grammar", "lm.arpa")),
    *((TRAIN, name) for name in ("train.de", "train.en")),
    *((TRANSLATE, name) for name in ("dev.de", "weights", "grammar")),
    *((EVALUATE, name) for name in ("system", "dev.en")),
    *((INIT, "weights"), (LINKS, "links")),
]


@pytest.mark.parametrize(("command", "name"), READ)
def test_each_file_is_named(tmp_path, command, name):
    whole = FILES[name].encode()
    for data, said in (
        (None, ": no such file; check the path"),
        (whole.replace(b"\n", b"\n\xff", 1), ":2: is not valid UTF-8; convert"),
    ):
        write(tmp_path, {name: data})
        if data is None:
            (tmp_path / name).unlink(missing_ok=True)
        check(tmp_path, command, name + said)


LONG = "words, and at most"
NO_FOLDER = "choose a folder that you may write to"
OWN = "the grammar has a feature"
RULE = "[X] ||| c ||| z ||| EgivenF=-1"
OUTPUT = "output is a file that is read: choose another"
TEMPLATE = "features.templates=[{_target_:torchtune_smt.features."
LISTS_OF_CLASSES = "must be a list of classes, as in [{_target_:my_module.MyClass}]"
SETTINGS = "settings/loss/mine.yaml"
# A command, with what is changed of its files, and what it says.
CASES: list[tuple[list[str], Changes, str]] = [
    # Text
    (TUNE, {"dev.en": "x y\ny x\n"}, "dev.en: dev.en has 2 lines, dev.de has 3; each line must"),
    (
        [*TRANSLATE, "data.tokenize=false"],
        {"dev.de": "a b\n[X] <unk>\na <s> b\n"},
        "dev.de:3: the word '<s>' is reserved; replace it or remove the line",
    ),
    ([*TUNE, "decoder.max_words=3"], {"test.de": "a\nb\na a b b\n"}, f"test.de:3: has 4 {LONG} 3"),
    (
        [*TRAIN, "tuner.tune_on=train", "model.folds=3", "decoder.max_words=3"],
        {"train.de": "a b\nb a b a\na\n"},
        f"train.de:2: has 4 {LONG} 3",
    ),
    (TRANSLATE, {"dev.de": "a b " * 30_000}, f"dev.de:1: has 60000 {LONG} 1000 are decoded (dec"),
    ([*TUNE, "data.dev=[dev.de]"], {}, "data.dev names 1 files; give the source and at least one"),
    (
        ["train", "data=multi30k", "data.folders=[here,there]"],
        {},
        "the data of multi30k is in none of here, there: fetch it with torchtune-smt get-data mult",
    ),
    ([*TUNE, "data.dev=dev"], {}, "data.dev=dev is the name of a set, and data.folders names no"),
    ([*TRAIN, "data.train=null"], {}, "data.train is null, and it is needed; name its files"),
    ([*TRANSLATE, "input=."], {}, ".: is a folder, and a file was"),
    (EVALUATE, {"system": "x\n"}, "system: has 1 lines, and there are references of 3 sentences"),
    # Models, weights and alignments
    (
        [*TUNE, "features=sparse"],
        {"grammar": f"{GRAMMAR}{RULE} rule_shape:T~T=5\n"},
        f"grammar:4: {OWN} rule_shape:T~T, and the decoder",
    ),
    (TRANSLATE, {"weights": "other 1\n"}, "weights: has no weight for any dense feature of this"),
    (INIT, {"weights": "other 1\n"}, "weights: has no weight for any of this model's dense"),
    (LINKS, {"links": "0-0\n0:\x1b\x850\n0-0\n"}, "links:2: 0:\\x1b\\x850 is no alignment point"),
    ([*TRAIN, "model.discount_fallback=null"], {}, "the discounts of 1-grams cannot be estimated"),
    ([*TRAIN, "tuner.tune_on=train", "model.folds=0"], {}, "lm=folds needs cross-fitted language"),
    ([*TUNE, "tuner.tune_on=train"], {}, "needs a grammar that can leave a sentence out again"),
    # Folders, and files that are read
    *(([*TUNE, f"hydra.run.dir={name}/run"], {}, NO_FOLDER) for name in ("/proc", "system")),
    ([*TRANSLATE, "output=system/out"], {}, NO_FOLDER),
    ([*TRAIN, "model.folder=system/model"], {}, NO_FOLDER),
    ([*TRAIN, "model.folder=."], {}, "exists and holds no model; choose another folder"),
    ([*EVALUATE, "output=./dev.en"], {}, f"dev.en: {OUTPUT}"),
    ([*EVALUATE, "output=a", "html=a"], {}, "a: html is what output names, too: choose another"),
    ([*TRANSLATE[:-1], "output=dev.de"], {}, f"dev.de: {OUTPUT}"),
    (["rerank", "input=a", "weights=weights", "output=weights"], {}, f"weights: {OUTPUT}"),
    (["analyse", "overlap", "weights", "system", "output=a.png", "plot=a.png"], {}, "plot is what"),
    # Options
    (
        ["train", "n_best=3"],
        {},
        "there is no option n_best of this command, though another",
    ),
    (["train", "model.ini=a"], {}, "there is no option model.ini with the model that is chosen he"),
    (["train", "nonsense"], {}, "missing EQUAL"),
    (["train", "init=file"], {}, "init.file is missing; give it with init.file=VALUE"),
    (["train", "model.discount_fallback=[1]"], {}, "model: discount_fallback must be 3 numbers"),
    (
        ["train", "loss=null"],
        {},
        "Config group override must be a string or a list. Got NoneType",
    ),
    (["train", "experiment=null"], {}, "experiment=null names no choice; leave it out, or see --h"),
    (
        ["train", "~loss"],
        {},
        "~loss: loss cannot be taken away; give it another value, as in",
    ),
    (["train", "~tuner.result"], {}, "~tuner.result: tuner.result cannot be taken away"),
    (["train", "callbacks=[1]"], {}, f"callbacks {LISTS_OF_CLASSES}"),
    (["train", "hydra.run.dir="], {}, "hydra.run.dir= names no folder; name one, or leave it out"),
    (
        ["train", f"{TEMPLATE}RuleId,min_count:a}}]"],
        {},
        "features.templates[0].min_count must be a whole number, not 'a'",
    ),
    (
        ["train", f"{TEMPLATE}RuleId,least:1}}]"],
        {},
        "RuleId got an unexpected keyword argument 'least'",
    ),
    (["translate", "weights=w"], {}, "input is missing; give it with input=VALUE"),
    (["translate", "weights=w", "input=a", "beam=3"], {}, "there is no option beam"),
    (["translate", "weights=w", "input=a", "capitalize=true"], {}, "change nothing without deto"),
    (["evaluate", "systems=[]"], {}, "systems is an empty list of files; name one file at least"),
    (["evaluate", "systems={a:[]}"], {}, "systems.a is an empty list of files; name one file"),
    (["evaluate", "systems={}"], {}, "systems={} names no system; name one at least"),
    (["evaluate", "systems=3"], {}, "systems must be a file, a list of files, or names with files"),
    (["evaluate", "systems=[[a,b],c]"], {}, "systems has ['a', 'b'] in the place of a file; runs"),
    (["evaluate", "systems={a:{b:c}}"], {}, "systems.a must be a file or a list of files, not"),
    (["evaluate", "systems=a", "metrics=[comet]"], {}, "metrics has 'comet'; choose of bleu, chrf"),
    (["build_model", "data=nonsense"], {}, "there is no data=nonsense; choose of example"),
    # Configuration files of one's own
    *(
        (
            ["train", "loss=mine", "--config-dir=settings"],
            {SETTINGS: text},
            "loss has no _target_: the file",
        )
        for text in ("reduction: sum\n", "", "- a\n")
    ),
]


@pytest.mark.parametrize(("command", "changes", "said"), CASES)
def test_refusals(tmp_path, command, changes, said, monkeypatch):
    # Hydra prints traces then.
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    write(tmp_path, changes)
    check(tmp_path, command, said)


def test_a_pipe_may_be_written_to_twice(tmp_path):
    write(tmp_path, {})
    link = tmp_path / "null"
    link.symlink_to(os.devnull)
    run_command(*EVALUATE, "output=/dev/null", "html=null", folder=tmp_path).check()


LISTS = ["decoder=kbest_files", "data=example", "decoder.dev=damaged"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["data=example", "init=file", "init.file=none"], "none: no such file"),
        (["data=example", "decoder.max_words=9999999999"], "decoder.max_words must be"),
        (["decoder=kbest_files", "decoder.dev=missing", "threads=1"], "threads=1 would change"),
        (["decoder=kbest_files", "decoder.dev=missing", "init=file", "init.file=none"], "none: no"),
        ([*LISTS, "init=zero", "tuner=pro", "tuner.sparse=scale"], "tuner.sparse=scale"),
        ([*LISTS, "data.dev=[none.de,none.en]"], "none.de: no such file"),
        ([*LISTS, "decoder.test_scores=none"], "decoder.test_scores needs decoder.test"),
        ([*LISTS, "tuner.tune_on=train", "decoder.train=bad"], "bad: no such file"),
    ],
)
def test_options_are_refused_before_anything_is_read_or_built(options, said, tmp_path):
    (tmp_path / "damaged").write_text("no list\n")
    outcome = run_command("train", *options, folder=tmp_path)
    outcome.refused(said)
    assert "language model" not in outcome.out


def test_an_absurd_limit_is_named(tmp_path, monkeypatch):
    write(tmp_path, {})
    monkeypatch.setattr(HieroDecoder, "_search", Mock(side_effect=MemoryError))
    run_command(*TRANSLATE, "decoder.pop_limit=1000000", folder=tmp_path).refused(
        "sentence 1 (counted from 0), of 3 words, 'b a b': its search needs",
        "lower decoder.pop_limit (1,000,000), or split the sentence",
    )


def test_remarks_of_readers_are_no_results(tmp_path):
    """What was left out is said on the standard error output; translations stand alone."""
    write(
        tmp_path, {"grammar": GRAMMAR + "[X] ||| a ||| x ||| EgivenF=-7\n", "test.de": "a\n\na\n"}
    )
    outcome = run_command(*TRANSLATE[:-1], folder=tmp_path).check()
    assert outcome.out.count("\n") == 3 and "dropped" not in outcome.out
    assert "warning: grammar: 1 rules occur again and were dropped" in outcome.err
    (tmp_path / "system").write_text("x y\nx\n")
    outcome = run_command(*EVALUATE[:2], *DATA, "split=test", folder=tmp_path).check()
    assert "warning: test: 2 sentences, 1 lines dropped (1 empty)\n" in outcome.err
    assert "dropped" not in outcome.out and "BLEU" in outcome.out


def test_tuning_that_diverges_is_stopped(run):
    options = [*MODEL, *SMALL, "optimizer.lr=1e308", "hydra.run.dir=diverged"]
    run_command("train", *options, folder=run.place).refused("lower the learning rate")
    # What was measured until then is there; nothing looks like a result.
    names = {path.name for path in (run.place / "diverged").iterdir()}
    assert not {"weights.txt.gz", "dev.translations.txt"} & names
