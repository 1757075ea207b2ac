"""The fixed set of runs that record.py records."""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[3]
MODEL: Final = "model"
LANGUAGE_MODEL: Final = Path("data", "lm.arpa.gz")


@dataclass(frozen=True)
class Run:
    """A command and what is recorded of it.

    Attributes
    ----------
    name : str
    arguments : tuple of str
    script : str
        In the repository that is recorded.
    keep_lists : bool
        Record whole lists, not only their digests.
    stop_at : int, optional
        Stop instead of decoding more than so many sentences, and resume.
    slow : bool
        Left out unless it is asked for.
    """

    name: str
    arguments: tuple[str, ...]
    script: str = "train.py"
    keep_lists: bool = True
    stop_at: int | None = None
    slow: bool = False


# On 40 sentences of the phrasebook, or on 40 pairs of its bitext.
_SMALL: Final = ("decoder.k=30", "decoder.pop_limit=10", "tuner.sentences=40")
_DENSE: Final = ("features=dense",)
_OSCAR: Final = ("regularizer=oscar", "regularizer.lambda2=1e-8")
_NO_PENALTY: Final = ("regularizer=none",)

_ONLINE: Final = {
    "adagrad": (),
    "adagrad-l2": ("regularizer=l2",),
    "adagrad-epoch": ("optimizer.regularize_each=epoch",),
    "adagrad-average": ("tuner.result=average",),
    "sgd": ("optimizer=sgd", *_NO_PENALTY),
    "sgd-average": (
        "optimizer=sgd",
        *_NO_PENALTY,
        "optimizer.average=step",
        "tuner.result=average",
    ),
    "fobos-l1": ("optimizer=fobos", "optimizer.lr=0.1", "regularizer.strength=1e-3"),
    "fobos-elastic_net": (
        *("optimizer=fobos", "optimizer.lr=0.1", "regularizer=elastic_net"),
        *("regularizer.lambda1=1e-3", "regularizer.lambda2=1e-3"),
    ),
    "fobos-oscar": ("optimizer=fobos", "optimizer.lr=0.1", *_OSCAR),
    "fobos_oscar": ("optimizer=fobos_oscar", "optimizer.lr=0.1", *_OSCAR),
    "cumulative_l1": ("optimizer=cumulative_l1", "regularizer.strength=1e-3"),
    "loss-expected_gain": ("loss=expected_gain",),
    "loss-hinge": ("loss=hinge",),
    "loss-hope_fear": ("loss=hope_fear",),
    "loss-perceptron": ("loss=perceptron",),
    "loss-ramp": ("loss=ramp",),
    "loss-softmax": ("loss=softmax",),
    "loss-logistic-each": ("loss.reduction=each",),
    "metric-moses": ("metric=moses",),
    "metric-sacrebleu": ("metric=sacrebleu",),
    "metric-phrasal": ("metric=phrasal",),
    "sampler-all": ("sampler=all",),
    "sampler-multipartite": ("sampler=multipartite",),
    "train": ("tuner.tune_on=train",),
}

_BATCH: Final = {
    "pro-dense": ("tuner=pro", *_DENSE),
    "pro": ("tuner=pro", "metric=moses", "tuner.unique=string"),
    "pro-sacrebleu": ("tuner=pro", "metric=sacrebleu", *_DENSE),
    "mira": ("tuner=mira",),
    "mert": ("tuner=mert", *_DENSE, "tuner.solver.restarts=5"),
    "stochastic": ("tuner=stochastic",),
    "stochastic-hinge": (
        *("tuner=stochastic", "loss=hinge", "optimizer=cumulative_l1"),
        "regularizer.strength=1e-5",
    ),
    "stochastic-hope_fear": ("tuner=stochastic", "loss=hope_fear", "optimizer=sgd", *_NO_PENALTY),
    "stochastic-oscar": ("tuner=stochastic", "optimizer=fobos_oscar", "optimizer.lr=0.1", *_OSCAR),
    "grouping": (
        *("tuner=grouping", "features=rule_id", "regularizer.dimension=100000"),
        "tuner.dev.iterations=2",
    ),
    "grouping-keep": (
        *("tuner=grouping", "tuner.tune_on=dev", "tuner.zero_group=keep"),
        *("tuner.dev.iterations=2", "sampler.pairs=10"),
    ),
}

# On lists that were written beforehand: those of `write_lists`, and those of other decoders.
_LISTS: Final = {
    "online": (),
    "online-last": ("tuner.result=last",),
    "online-oscar": ("optimizer=fobos_oscar", "optimizer.lr=0.1", *_OSCAR),
    "pro": ("tuner=pro", "tuner.result=last"),
    "pro-distinct": ("tuner=pro", "sampler.distinct=true"),
    "mira": ("tuner=mira", "tuner.solver.passes=10"),
    "mert": ("tuner=mert", "decoder.features=dense", "tuner.solver.restarts=5"),
    "stochastic": ("tuner=stochastic", "loss=softmax"),
    "grouping": (
        *("tuner=grouping", "tuner.tune_on=dev", "regularizer.dimension=20000"),
        *("tuner.dev.iterations=2", "sampler.distinct=true"),
    ),
}


def fixed_runs(folder: Path, shared: Path) -> Iterator[Run]:
    """Yield all runs whose data are there; the first builds the model that others need.

    Parameters
    ----------
    folder : path
        Of the recording.
    shared : path
        Multi30k and the outputs of other decoders.
    """
    model = f"model.folder={folder / MODEL / 'run'}"
    yield Run(MODEL, (model,), "scripts/build_model.py", keep_lists=False)
    for seed in range(1, 6):
        yield Run(f"demo-{seed}", (model, f"seed={seed}"), keep_lists=False)
    small = (model, *_SMALL)
    online = (*small, "tuner.epochs=3", "tuner.batch_size=10")
    for name, options in _ONLINE.items():
        yield Run(f"online-{name}", (*online, *options))
    for name, options in _BATCH.items():
        yield Run(name, (*small, "tuner.iterations=3", *options))
    # 200 sentences before tuning; then 40 and 100 an epoch or iteration.
    often = "tuner.checkpoint_minutes=0"
    yield Run("online-resumed", (*online, often), stop_at=365)
    yield Run("mira-resumed", (*small, "tuner.iterations=3", "tuner=mira"), stop_at=365)
    yield Run(
        "grouping-resumed",
        (*small, "tuner.iterations=2", *_BATCH["grouping"], often),
        stop_at=600,
    )
    made = [f"decoder.{name}={folder / list_file(name)}" for name in ("dev", "test")]
    yield from _on_lists("lists", made, _LISTS, keep_lists=True)
    if shared.is_dir():
        yield from _runs_on(shared, folder)


def _on_lists(
    prefix: str, files: Sequence[str], names: Iterable[str], *, keep_lists: bool = False
) -> Iterator[Run]:
    """Yield some of the runs on lists."""
    for name in names:
        options = _LISTS[name]
        batch = any(option.startswith("tuner=") for option in options)
        steps = "tuner.iterations=3" if batch else "tuner.epochs=3"
        arguments = ("decoder=kbest_files", "init=zero", *files, steps, *options)
        yield Run(f"{prefix}-{name}", arguments, keep_lists=keep_lists)


def _runs_on(shared: Path, folder: Path) -> Iterator[Run]:
    """Yield the runs on Multi30k, with the outputs of other decoders."""
    multi30k = shared / "data" / "multi30k-de-en"
    data = ("data=multi30k", f"data.folders=[{multi30k}]")
    moses, cdec = shared / "oracles" / "moses", shared / "oracles" / "cdec"
    batch = ("pro", "mira", "mert")
    dense = f"decoder.dev={moses / 'dev.100best.default.gz'}"
    yield from _on_lists("moses", [*data, dense], batch)
    sparse = f"decoder.dev={moses / 'dev.100best.sparse.gz'}"
    yield from _on_lists("moses-sparse", [*data, sparse], ["online-last"])
    # Statistics in the place of words and references.
    names = ",".join(str(moses / "mira" / f"run{i}.NAME.dat.gz") for i in (1, 2))
    features = f"decoder.dev=[{names.replace('NAME', 'features')}]"
    scores = f"decoder.dev_scores=[{names.replace('NAME', 'scores')}]"
    yield from _on_lists("statistics", [features, scores], ["online", *batch])
    kbest = f"decoder.dev={cdec / 'dev.k100.pop200.kbest.gz'}"
    yield from _on_lists("cdec", [*data, kbest, "decoder.missing=0"], ["pro"])
    grammar = (
        *("data=multi30k", "model=files", f"model.grammar={cdec / 'grammar.dev.gz'}", *_DENSE),
        f"model.language_model={folder / LANGUAGE_MODEL}",
        *(f"weights={cdec / 'weights'}", f"input={multi30k / 'dev.de'}"),
    )
    for pop_limit in (30, 200):
        for k in (1, 100):
            name = f"cdec-pop{pop_limit}-k{k}"
            output = f"output={folder / name / 'output.txt.gz'}"
            n_best = () if k == 1 else (f"n_best={k}",)
            yield Run(
                name,
                (*grammar, f"decoder.pop_limit={pop_limit}", output, *n_best),
                "scripts/translate.py",
                keep_lists=False,
                slow=pop_limit == 200,
            )


def list_file(name: str) -> Path:
    """Return where the lists of a set lie in a recording."""
    return Path("data", f"{name}.nbest.gz")


def write_data(folder: Path, shared: Path) -> None:
    """Write the lists, and a link to the language model, whose cache goes beside it."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for name in ("dev", "test"):
        (folder / list_file(name)).write_bytes(gzip.compress(_made_lists(name).encode(), mtime=0))
    link = folder / LANGUAGE_MODEL
    if shared.is_dir() and not link.is_symlink():
        link.symlink_to(shared / "oracles" / "lm" / "multi30k.en.5gram.arpa.gz")


def _made_lists(name: str) -> str:
    """Return lists in Moses's format: damaged references of the phrasebook, with made-up features.

    They have ties and copies, and 12 hypotheses a sentence.
    """
    draw = random.Random(name)
    example = REPOSITORY / "torchtune_smt" / "example"
    lines_of = ((example / f"{name}.en.{r}").read_text("utf-8").splitlines() for r in (0, 1))
    texts = [[re.findall(r"'?\w+|[.,?!]", line.lower()) for line in text] for text in lines_of]
    words = sorted({word for text in texts for line in text for word in line})
    lines = []
    for sentence, references in enumerate(zip(*texts, strict=True)):
        for _ in range(12):
            chosen = list(draw.choice(references))
            for _ in range(draw.randrange(5)):
                place = draw.randrange(len(chosen))
                other = draw.choice(words)
                chosen[place : place + 1] = draw.choice([[], [other], [chosen[place], other]])
                chosen = chosen or ["."]
            model = [round(draw.gauss(-len(chosen), 2), draw.randrange(4)) for _ in range(3)]
            dense = f"LM0= {model[0]} TM0= {model[1]} {model[2]} WordPenalty0= -{len(chosen)}"
            pairs = [f"{a}~{b}" for a, b in pairwise(chosen)]
            sparse = "".join(f" WB_{pair}= {pairs.count(pair)}" for pair in dict.fromkeys(pairs))
            lines.append(f"{sentence} ||| {' '.join(chosen)} ||| {dense}{sparse} ||| {model[0]}\n")
    return "".join(lines)
