"""What a run shows: bars of how far it is, and lines of what has come out."""

from __future__ import annotations

import sys

from tqdm import tqdm

from torchtune_smt.runs.rounds import Callback, Rounds
from torchtune_smt.tuners.base import Report


class Console(Callback):
    """Shows bars on stderr, and prints what rounds and their parts have to say.

    sentences: those of a round, where steps come one after the other: one bar, with what they say,
        shows how many of all rounds are done. By default there is a bar for each long piece of
        work. There are bars on a terminal alone: a log has the lines that say what has come out.
    """

    def __init__(self, sentences: int | None = None) -> None:
        self._sentences = sentences
        # The bar, what it is about, and what it shows.
        self._bar: tqdm | None = None
        self._what = ""
        self._done = 0

    def on_start(self, run: Rounds) -> None:
        """Show how far all rounds are."""
        if self._sentences is not None:
            self._bar = tqdm(
                total=run.rounds * self._sentences,
                initial=run.progress.sentences,
                unit="sent",
                file=sys.stderr,
                smoothing=0.05,
                disable=None,
            )

    def on_report(self, report: Report, run: Rounds) -> None:
        """Show a step, or print what is said of a part or a round."""
        if self._sentences is not None and self._bar is not None:
            self._bar.update(report.sentences)
            if report.kind == "step":
                where = f"{run.tuner.unit} {report.round}, {report.text}"
                self._bar.set_postfix_str(where, refresh=False)
        if report.kind != "step" and report.text:
            # In one piece: a signal between a line and its end would join the next one to it.
            tqdm.write(f"{report.text}\n", file=sys.stdout, end="")
            sys.stdout.flush()

    def on_work(self, what: str, done: int, total: int, unit: str) -> None:
        """Show how much of a piece of work is done."""
        if self._sentences is not None:
            return
        if self._what != what or done < self._done:
            self._close()
            self._what = what
            self._bar = tqdm(
                desc=what,
                total=total,
                unit=unit,
                unit_scale=unit == "step",
                file=sys.stderr,
                leave=False,
                disable=None,
            )
        if self._bar is not None:
            self._bar.update(done - self._done)
        self._done = done
        if done >= total:
            self._close()

    def on_end(self, run: Rounds) -> None:
        """End the bar."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar, self._what, self._done = None, "", 0
