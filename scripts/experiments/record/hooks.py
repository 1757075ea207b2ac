"""Runs a script of a repository, and records what its decoder and its log are given.

    python scripts/experiments/record/hooks.py [--keep-lists] [--stop-at N] FOLDER PART SCRIPT
        [ARGUMENT ...]

Started by record.py, in the repository that is recorded. Files in FOLDER, where PART counts the
processes of a run that is stopped and resumed:

    lists-PART.txt, lists-PART.npz   what the decoder returned; see seen_lists.py
    features-PART.txt.gz             all features in the order of their ids, at the end
    weights-STEP.txt                 the weights that are not 0, whenever the run logs them

The functions in `HOOKS` alone know the package. One that finds its classes gone raises ImportError,
and the next one is tried.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from seen_lists import ListWriter, SeenList


class Recorder:
    """Takes what hooks find.

    Parameters
    ----------
    folder : path
    part : str
    keep : bool
        Write whole lists, not only their digests.
    stop_at : int, optional
        Stop the run, as Ctrl-C does, instead of decoding more than so many sentences.
    """

    def __init__(self, folder: Path, part: str, *, keep: bool, stop_at: int | None) -> None:
        if stop_at is not None:
            # A shell has what it starts in the background ignore it.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._folder = folder
        self._part = part
        self._stop_at = stop_at
        self._decoded = 0
        self._lists = ListWriter(folder / f"lists-{part}", keep=keep)
        self._features: Callable[[], Sequence[str]] = list

    def before_decoding(self, sentences: int) -> None:
        """Count sentences that are about to be decoded."""
        self._decoded += sentences
        if self._stop_at is not None and self._decoded > self._stop_at:
            signal.raise_signal(signal.SIGINT)

    def decoded(self, lists: Sequence[SeenList], features: Callable[[], Sequence[str]]) -> None:
        """Take the lists of a call; `features` returns all names in the order of their ids."""
        self._lists.call(lists)
        self._features = features

    def logged(self, step: int, names: Sequence[str], values: Sequence[float]) -> None:
        """Take the weights that are not 0 after so many sentences were tuned on."""
        lines = sorted(f"{name} {value!r}\n" for name, value in zip(names, values, strict=True))
        (self._folder / f"weights-{step:06}.txt").write_text("".join(lines), encoding="utf-8")

    def close(self) -> None:
        """Write what is known at the end."""
        self._lists.close()
        text = "".join(f"{name}\n" for name in self._features())
        (self._folder / f"features-{self._part}.txt.gz").write_bytes(
            gzip.compress(text.encode(), mtime=0)
        )


def hook_log(recorder: Recorder, log: Any, note: Callable[[Any], None] = lambda _: None) -> None:
    """Let the class of a run's log hand on weights; `note` is told their features."""
    log_weights = log.weights

    @functools.wraps(log_weights)
    def logging(self: Any, step: int, weights: Any) -> None:
        log_weights(self, step, weights)
        note(weights.features)
        values = weights.parameter.detach().cpu().double().numpy()
        active = np.flatnonzero(values)
        recorder.logged(step, weights.features.names(active), values[active].tolist())

    log.weights = logging


def hook_shared_weights(recorder: Recorder) -> None:
    """Decoders that return `KBest`, and add features to the `Weights` that they are given."""
    from torchtune_smt.run_log import RunLog
    from torchtune_smt.vocabulary import Vocabulary

    from torchtune_smt.decoders.hiero import HieroDecoder
    from torchtune_smt.decoders.kbest_files import KBestFiles
    from torchtune_smt.kbest import KBest

    def all_names(vocabulary: Vocabulary) -> list[str]:
        return vocabulary.names(range(len(vocabulary)))

    def seen(kbest: KBest, words: Vocabulary, features: Vocabulary) -> SeenList:
        tokens, token = np.unique(kbest.tokens, return_inverse=True)
        text = np.array(words.names(tokens), object)[token]
        begins = kbest.token_begin.tolist()
        ids, feature = np.unique(kbest.feature, return_inverse=True)
        return SeenList(
            kbest.index,
            [" ".join(text[begins[h] : begins[h + 1]]) for h in range(len(kbest))],
            features.names(ids),
            kbest.row_begin,
            feature,
            kbest.value,
            kbest.score,
        )

    def recorded(decode: Any) -> Any:
        @functools.wraps(decode)
        def wrapper(self: Any, sources: Any, weights: Any, *, k: int | None = None) -> Any:
            recorder.before_decoding(len(sources))
            kbests = decode(self, sources, weights, k=k)
            features = weights.features
            lists = [seen(kbest, self.target_words, features) for kbest in kbests]
            recorder.decoded(lists, functools.partial(all_names, features))
            return kbests

        return wrapper

    HieroDecoder.decode = recorded(HieroDecoder.decode)
    KBestFiles.decode = recorded(KBestFiles.decode)
    hook_log(recorder, RunLog)


def hook_snapshots(recorder: Recorder) -> None:
    """Decoders that return `KBestLists` over features of their own."""
    from torchtune_smt.decoders.hiero import HieroDecoder
    from torchtune_smt.decoders.kbest_files import KBestFiles
    from torchtune_smt.kbest.lists import KBest, KBestLists
    from torchtune_smt.runs.log import RunLog

    logged: list[Any] = []

    def seen(kbest: KBest) -> SeenList:
        ids, feature = np.unique(kbest.rows.feature, return_inverse=True)
        if kbest.words is None:
            texts = [f"hypothesis {entry}" for entry in kbest.entry.tolist()]
        else:
            texts = kbest.texts()
        names = kbest.features.names(ids)
        rows = kbest.rows
        return SeenList(kbest.index, texts, names, rows.begin, feature, rows.value, kbest.score)

    def recorded(decode: Any) -> Any:
        @functools.wraps(decode)
        def wrapper(self: Any, sources: Any, snapshot: Any, *, k: int | None = None) -> KBestLists:
            recorder.before_decoding(len(sources))
            lists = decode(self, sources, snapshot, k=k)
            features = logged[-1] if logged else self.features
            recorder.decoded(
                [seen(kbest) for kbest in lists],
                lambda: features.names(range(len(features))),
            )
            return lists

        return wrapper

    HieroDecoder.decode = recorded(HieroDecoder.decode)
    KBestFiles.decode = recorded(KBestFiles.decode)
    hook_log(recorder, RunLog, logged.append)


HOOKS: Final = (hook_snapshots, hook_shared_weights)


def install(recorder: Recorder) -> None:
    """Install the first hook that fits the package."""
    import torchtune_smt

    if not Path(torchtune_smt.__file__).is_relative_to(Path.cwd()):
        raise SystemExit(f"{torchtune_smt.__file__} is not the package of {Path.cwd()}")
    for hook in HOOKS:
        try:
            return hook(recorder)
        except ImportError:
            continue
    raise SystemExit(
        "no hook fits this version of the package: add one to scripts/experiments/record/hooks.py"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("part")
    parser.add_argument("--keep-lists", action="store_true")
    parser.add_argument("--stop-at", type=int)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    script = Path(options.command[0]).resolve()
    # As if the script were run by itself.
    sys.path[0] = str(script.parent)
    recorder = Recorder(
        options.folder, options.part, keep=options.keep_lists, stop_at=options.stop_at
    )
    install(recorder)
    sys.argv = options.command
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        recorder.close()


if __name__ == "__main__":
    main()
