"""The installed package as it is used: every subcommand, and `train` with every choice of conf/.

    python scripts/dev/wheel_check.py

It is run by the Python of an environment that holds the wheel and what it requires, and nothing
else (`make wheel`), in an empty folder, on tiny data. A choice of a group that no run has had, and
a run that fails, make it fail.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torchtune_smt
from torchtune_smt import cli
from torchtune_smt.core.resources import config_folder, example_folder

SMALL = [
    *("model.order=3", "model.iterations=2", "model.aligner=fast_align"),
    *("tuner.sentences=12", "decoder.k=8", "decoder.pop_limit=5", "threads=1", "data.test=null"),
]
ONCE = ["tuner.epochs=1"]
TWICE = ["tuner.iterations=1"]
GROUPS = [*TWICE, "tuner=grouping", "features=rule_id", "tuner.dev.iterations=1"]
OWN = ["data=files", "data.name=own", "data.source_language=de", "data.target_language=en"]
SETS = ["data.train=[train.de,train.en]", "data.dev=[dev.de,dev.en]"]
PHRASE = ["decoder=phrase", "model=phrase", "model.folder=phrases"]
JOINT = [
    *("decoder.hiero.k=8", "decoder.phrase.k=8", "tuner.sentences=12", "threads=1"),
    *("model.hiero.folder=both/hiero", "model.phrase.folder=both/phrase"),
]
DEV = ["data.train=null", "data.dev=[dev.de,dev.en]", "data.test=null"]
RERANKED = [*OWN, *DEV, "decoder=kbest_files", "decoder.dev=dev.nbest", "init=zero"]
MOSES = ["decoder=phrase", "model=moses", "model.ini=moses.ini", "init=moses"]
WRITTEN = ["model=files", "model.grammar=grammar", "model.language_model=lm.arpa"]
CLASSES = [
    *("features=sparse_classes", "model.source_classes=classes", "model.target_classes=classes"),
]
FEW = ["decoder.k=8", "decoder.pop_limit=5", "threads=1"]
RERANK = ["tuner=pro", *RERANKED, *TWICE]

_SCRIPT = Path(__file__).resolve()
# What is run: the choices must together be all that there are.
RUNS: list[list[str]] = [
    ["data=example", "tuner=online", "optimizer=adagrad", "regularizer=l1", *SMALL, *ONCE],
    ["loss=hinge", "optimizer=fobos", "regularizer=l2", "sampler=hopkins_may", *SMALL, *ONCE],
    ["loss=softmax", "optimizer=rda", "metric=sacrebleu", *SMALL, *ONCE],
    ["loss=ramp", "optimizer=sgd", "regularizer=none", "metric=liang", *SMALL, *ONCE],
    ["loss=hope_fear", "optimizer=arow", "metric=phrasal", "init=default", *SMALL, *ONCE],
    ["loss=expected_gain", "optimizer=fobos", "regularizer=elastic_net", *SMALL, *ONCE],
    ["optimizer=cumulative_l1", "metric=fixed_stupid_bleu", *SMALL, *ONCE],
    ["metric=stupid_bleu", "sampler=all", "features=dense", "loss=logistic", *SMALL, *ONCE],
    ["metric=moses", *SMALL, *ONCE],
    ["metric=wer", *SMALL, *ONCE],
    ["experiment=liu2013", "metric=nakov", *SMALL, *ONCE],
    ["experiment=simianer2012", *SMALL, *ONCE],
    ["experiment=green2013", *PHRASE, "metric=bleu_plus_one", *SMALL, *ONCE],
    ["experiment=green2013", "decoder=hiero", "model=hiero", *SMALL, *ONCE],
    ["experiment=green2013", "decoder=joint", "model=joint", *JOINT, *ONCE],
    [
        "experiment=joint",
        "init.file={hiero:runs/10/weights.txt.gz,phrase:runs/12/weights.txt.gz}",
        *JOINT,
        *ONCE,
    ],
    ["tuner=pro", "features=sparse", "decoder=hiero", *SMALL, *TWICE],
    ["tuner=mira", "metric=ter", "parallel=decode", "engine.workers=1", *SMALL, *TWICE],
    ["tuner=mert", "metric=chrf", "features=dense", "tuner.solver.restarts=2", *SMALL, *TWICE],
    ["tuner=auto", "metric=mix", "metric.weights={bleu:1,ter:1}", "features=dense", *SMALL, *TWICE],
    ["tuner=expected", "metric=wer", *SMALL, *TWICE],
    ["tuner=stochastic", "metric=cer", "optimizer=ftrl", *SMALL, *TWICE],
    ["tuner=batch", "tuner.solver._target_=torchtune_smt.tuners.mira.KBestMira", *SMALL, *TWICE],
    [*GROUPS, "experiment=liu2013_grouping", *SMALL],
    [*GROUPS, "tuner.learning=batch", "regularizer.fraction=0.5", *SMALL],
    [*GROUPS, "tuner.learning=mix", *SMALL],
    [*GROUPS, "tuner.learning=clusters", *SMALL],
    [*GROUPS, "tuner.learning=random_pairs", *SMALL],
    ["parallel=stale", "parallel.max_staleness=0", *SMALL, *ONCE],
    ["parallel=itermix", "parallel.shards=2", "engine=local", "engine.workers=1", *SMALL, *ONCE],
    ["parallel=itersel", "parallel.shards=2", "engine.workers=1", *SMALL, *ONCE],
    ["parallel=mix", "parallel.shards=2", "engine.workers=1", *SMALL, *ONCE],
    ["parallel=serial", *OWN, *SETS, *SMALL, *ONCE],
    ["data=multi30k", "data.folders=[.]", "data.dev=[dev.de,dev.en]", *SMALL, *ONCE],
    ["data=fisher", "data.folders=[.]", "data.dev=[dev.de,dev.en]", *SMALL, *ONCE],
    ["data=tanaka", "data.folders=[.]", "data.dev=[dev.de,dev.en]", *SMALL, *ONCE],
    RERANK,
    ["experiment=green2013", "metric=external", "metric.path=scores", *RERANKED, *ONCE],
    [*OWN, *DEV, *MOSES, *FEW, *ONCE, "sampler.threshold=0"],
    [*OWN, *DEV, *WRITTEN, *CLASSES, *FEW, *ONCE, "sampler.threshold=0"],
    [*PHRASE, "features=phrase_classes", "model.classes=5", *SMALL, *ONCE],
    [*PHRASE, "features=phrase_ngrams", "model.classes=5", "model.class_order=3", *SMALL, *ONCE],
    ["features=sparse_ngrams", "model.classes=5", *SMALL, *ONCE],
    ["init=file", "init.file=runs/0/weights.txt.gz", *SMALL, *ONCE],
]
# What needs more than the package requires, and what it says.
EXTRAS = {"engine=ray": ["parallel=itermix", "engine=ray", *SMALL, *ONCE]}

INI = """\
[distortion-limit]
4
[feature]
UnknownWordPenalty
WordPenalty
PhrasePenalty
PhraseDictionaryMemory name=TranslationModel0 num-features=4 path=table
Distortion
KENLM name=LM0 path=lm.arpa
[weight]
UnknownWordPenalty0= 1
WordPenalty0= -1
PhrasePenalty0= -0.2
TranslationModel0= 0.1 0.1 0.1 0.1
Distortion0= 0.3
LM0= 0.5
"""
LM = "\\data\\\nngram 1=4\n\n\\1-grams:\n-1 <s>\n-1 </s>\n-2 <unk>\n-0.5 .\n\n\\end\\\n"


def write_data() -> None:
    """Write tiny data of every kind to the folder."""
    example = example_folder()
    for name, lines in {"train.de": 300, "train.en": 300, "dev.de": 12, "dev.en.0": 12}.items():
        text = (example / name).read_text("utf-8").splitlines(keepends=True)[:lines]
        Path(name.removesuffix(".0")).write_text("".join(text), "utf-8")
    for other in ("es", "ja"):
        shutil.copy("train.de", f"train.{other}")
    sources = Path("dev.de").read_text("utf-8").splitlines()
    best = Path("dev.en").read_text("utf-8").splitlines()
    lists, scores = [], []
    for i, line in enumerate(best):
        for text, value in ((line, 1.0), (f"no {line}", 0.5), (line.partition(" ")[0], 2.0)):
            lists.append(f"{i} ||| {text} ||| lm= -{value} words= {len(text.split())} ||| 0\n")
            scores.append(f"{i} ||| {text} ||| {1 / value}\n")
    Path("dev.nbest").write_text("".join(lists), "utf-8")
    Path("scores").write_text("".join(dict.fromkeys(scores)), "utf-8")
    # Each source word translates to each word of the sentence that it is in.
    rules: dict[tuple[str, str], None] = {}
    for source, target in zip(sources, best, strict=True):
        rules |= dict.fromkeys((w, o) for w in source.split() for o in target.split())
    table = [f"{w} ||| {o} ||| 0.5 0.4 0.3 0.{1 + i % 7}" for i, (w, o) in enumerate(rules)]
    Path("table").write_text("\n".join(sorted(table)) + "\n", "utf-8")
    grammar = [f"[X] ||| {w} ||| {o} ||| Cost={i % 5}" for i, (w, o) in enumerate(rules)]
    Path("grammar").write_text("\n".join(grammar) + "\n", "utf-8")
    Path("lm.arpa").write_text(LM)
    Path("classes").write_text("ein\t1\neine\t1\na\t1\n")
    Path("moses.ini").write_text(INI)


def run(command: str, *arguments: str, expected: int = 0) -> str:
    """Run a subcommand in this process; raise SystemExit with what it said if it fails."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = cli.main([command, *arguments])
        except SystemExit as error:
            out.write(str(error.code))
            code = int(error.code) if isinstance(error.code, int) else 1
    if code != expected or "Traceback" in out.getvalue():
        raise SystemExit(f"{command} {' '.join(arguments)}\nended with {code}:\n{out.getvalue()}")
    return out.getvalue()


def choices_had() -> set[str]:
    """Return the choices of groups that the runs have had, by what Hydra recorded of them."""
    import yaml

    found = set()
    for path in Path("runs").glob("*/.hydra/hydra.yaml"):
        chosen = yaml.safe_load(path.read_text("utf-8"))["hydra"]["runtime"]["choices"]
        found |= {f"{group}={choice}" for group, choice in chosen.items()}
    return found


# Runs with one of these are those of a second process: each compiles for as long as the other.
# Of the first one's files they read the model of `SMALL` at most, which either builds.
APART = {"decoder=phrase", "decoder=joint", "experiment=joint", "decoder=kbest_files"}
APART |= {"experiment=liu2013", "tuner=mira", "tuner=grouping"}


def tune(*, apart: bool) -> None:
    """Do the runs of the second process, or those of the first."""
    for number, options in enumerate(RUNS):
        if apart != APART.isdisjoint(options):
            begin = time.perf_counter()
            run("train", *options, f"hydra.run.dir=runs/{number}")
            print(f"{time.perf_counter() - begin:5.1f} s  train {' '.join(options)}", flush=True)


def check() -> None:
    """Run everything."""
    write_data()
    with subprocess.Popen([sys.executable, _SCRIPT, "apart"]) as second:
        tune(apart=False)
    if second.returncode:
        raise SystemExit(second.returncode)
    for choice, options in EXTRAS.items():
        said = run("train", *options, "hydra.run.dir=bad", expected=1)
        assert said.count("\n") <= 3, said
        print(f"         {choice}: {said.strip()}", flush=True)
    folders = [path for path in config_folder().iterdir() if path.is_dir()]
    every = {f"{folder.name}={path.stem}" for folder in folders for path in folder.glob("*.yaml")}
    missing = sorted(every - choices_had() - set(EXTRAS))
    if missing:
        raise SystemExit(f"no run has had {', '.join(missing)}: add them to RUNS")
    run("build-model", "model.folder=built", "model.order=2", "model.folds=0", "model.iterations=1")
    run("translate", "weights=runs/0/weights.txt.gz", "input=dev.de", "output=out", "n_best=3")
    run(
        "rerank",
        f"weights=runs/{RUNS.index(RERANK)}/weights.txt.gz",
        "input=dev.nbest",
        "output=best",
    )
    run("tune", "dev=dev.nbest", "references=dev.en", "metric=wer", "samples=20", "html=t.html")
    run("evaluate", "best", "references=[dev.en]")
    run("compare", "runs/0", "runs/1", "split=dev", "samples=20", "html=report.html")
    run("analyse", "overlap", "runs/0", "runs/1")
    run("plot", "runs/0", "--output", "plot.png")
    run("get-data")
    script = Path(sys.executable).with_name("torchtune-smt")
    said = subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout
    assert said == f"torchtune-smt {torchtune_smt.__version__}\n", said
    print(f"wheel: {len(RUNS)} runs and all subcommands passed")


if __name__ == "__main__":
    if sys.argv[1:] == ["apart"]:
        tune(apart=True)
        sys.exit()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        check()
