"""The kinds of commands that `kills.py` kills."""

from __future__ import annotations

from typing import Final, NamedTuple

DATA: Final = [
    *["data.train=[train.de,train.en]", "data.dev=[dev.de,dev.en.0,dev.en.1]", "data.test=null"],
    *["model.order=2", "model.iterations=2"],
]
_TUNE: Final = [
    *["train", *DATA, "model.folder=model"],
    *["decoder.k=10", "decoder.pop_limit=5"],
]
# Save in the middle of an epoch, or of an iteration, too.
_OFTEN: Final = ["tuner.checkpoint_minutes=0"]
_ONLINE: Final = ["tuner=online", "features=rule_id", "tuner.epochs=4", "tuner.batch_size=5"]
_BATCH: Final = ["tuner.iterations=4", "tuner.patience=null"]
_GROUPING: Final = [
    *["tuner=grouping", "features=rule_id", "tuner.sentences=20", "tuner.passes=3", *_OFTEN],
    *["tuner.iterations=3", "tuner.dev.iterations=2"],
    *["regularizer.lambda1=1e-4", "regularizer.lambda2=1e-7"],
]
_STALE: Final = ["parallel=stale", "parallel.workers=3", "tuner.batch_size=2"]
_SHARDS: Final = [*_ONLINE, "tuner.epochs=12", "parallel.shards=3", "engine.workers=2"]


class Kind(NamedTuple):
    """A command that is killed, whether its result is exact, and whether processes compute."""

    command: list[str]
    exact: bool = True
    workers: bool = False


def _tuned(*options: str) -> Kind:
    return Kind([*_TUNE, *options, "threads=1"])


def _with_workers(*options: str) -> Kind:
    return Kind([*_TUNE, *options], workers=True)


KINDS: Final[dict[str, Kind]] = {
    "online": _tuned(*_ONLINE, *_OFTEN),
    "pro": _tuned("tuner=pro", *_BATCH, "features=rule_id"),
    "mira": _tuned("tuner=mira", *_BATCH, "features=rule_id"),
    "mert": _tuned("tuner=mert", *_BATCH, "features=dense"),
    "stochastic": _tuned("tuner=stochastic", *_BATCH, "features=rule_id", "tuner.solver.passes=3"),
    "grouping": _tuned(*_GROUPING),
    "mix": _with_workers(*_SHARDS, "parallel=mix", "tuner.result=average"),
    "itermix": _with_workers(*_SHARDS, "parallel=itermix", "tuner.result=last"),
    "itersel": _with_workers(*_SHARDS, "parallel=itersel", "parallel.features=100"),
    "decode": _with_workers(*_GROUPING, "parallel=decode", "engine.workers=2"),
    "learn": _with_workers(
        *[*_GROUPING, "tuner.learning=mix", "tuner.shards=3", "optimizer.lr=10"],
        *["parallel=decode", "engine.workers=2"],
    ),
    "in_time": Kind([*_TUNE, *_ONLINE, *_OFTEN, *_STALE, "parallel.max_staleness=0"]),
    # No two runs are the same, and steps are kept between checkpoints.
    "stale": Kind([*_TUNE, *_ONLINE, *_STALE], exact=False),
    "build": Kind(["build-model", *DATA, "model.folds=2"]),
}
