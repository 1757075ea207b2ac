"""What a run writes down while it goes on: TensorBoard events, metrics, translations, groups."""

from __future__ import annotations

import json
import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Float64, Int64, UInt8
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import atomic_writer, check_plain, writing
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.features.templates import numbered_templates
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.runs.folder import GROUPS, METRICS
from torchtune_smt.runs.rounds import Callback, Progress, Rounds
from torchtune_smt.tuners.base import Report
from torchtune_smt.tuners.grouping.groups import save_groups
from torchtune_smt.tuners.grouping.tuner import GroupingTuner
from torchtune_smt.tuners.sentences import translate


class RunLog(Callback):
    """TensorBoard events and ``metrics.jsonl`` of one run folder.

    As a callback it records the numbers of each report, and after each round the weights. A line
    of the file is a JSON object: ``{"step": ..., "name": value, ...}``, the step in sentences tuned
    on.

    resumed: where a stopped run is taken up again; later records are forgotten. Without it, all
        that the folder has are.

    As attributes:
    records: lines in ``metrics.jsonl``.
    """

    def __init__(self, folder: Path, resumed: Progress | None = None) -> None:
        # It takes long to import.
        from torch.utils.tensorboard import SummaryWriter

        path, events = folder / METRICS, folder / "tensorboard"
        purge = None
        self.records = 0
        if resumed is not None:
            # What the stopped run recorded after its checkpoint is done, and recorded, again.
            kept = _whole_lines(path)[: resumed.records]
            with atomic_writer(path, own=True) as file:
                file.writelines(kept)
            self.records = len(kept)
            purge = resumed.sentences + 1
        else:
            # Of a run that did not come as far as its first checkpoint.
            shutil.rmtree(events, ignore_errors=True)
        self._path, self._events = path, events
        self._hook = threading.excepthook
        with writing(events):
            self._writer = SummaryWriter(str(events), purge_step=purge)
        with writing(path):
            self._file = path.open("w" if resumed is None else "a", encoding="utf-8")

    @staticmethod
    def first_numbers(folder: Path, *names: str) -> dict[str, float]:
        """Return what a run recorded first under some names; InputError if it is not there."""
        path = folder / METRICS
        try:
            first = json.loads(_whole_lines(path)[0])
            return {name: float(first[name]) for name in names}
        except (OSError, ValueError, TypeError, LookupError):
            raise InputError("is missing or damaged; start the run anew", path=path) from None

    def __enter__(self) -> Self:
        self._hook, threading.excepthook = threading.excepthook, self._in_thread
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        # Where there is no room for this either, what ended the run is what is to be said.
        already = () if kind is None else (InputError,)
        try:
            with suppress(*already), writing(self._events):
                self._writer.close()
            with suppress(*already), writing(self._path):
                self._file.close()
        finally:
            threading.excepthook = self._hook

    def on_report(self, report: Report, run: Rounds) -> None:
        """Record what was done."""
        if report.numbers:
            self.scalars(run.progress.sentences, report.numbers)
        if report.kind == "round":
            self.weights(run.progress.sentences, run.tuner.weights)
        run.progress.records = self.records

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Record numbers at a step; a tag's part before ``/`` groups it in TensorBoard."""
        # Those of users' classes may be numpy's or torch's.
        values = {
            tag: value if type(value) is int else float(value) for tag, value in values.items()
        }
        for tag, value in values.items():
            self._event("scalar", tag, value, step)
        with writing(self._path):
            self._file.write(json.dumps({"step": step, **values}) + "\n")
            self._file.flush()
        self.records += 1

    def text(self, tag: str, text: str, step: int | None = None) -> None:
        """Record a text (Markdown)."""
        self._event("text", tag, text, step)

    def hparams(self, settings: dict[str, str | float], scores: dict[str, float]) -> None:
        """Record settings and final scores, for TensorBoard's table that compares runs."""
        shown = {f"hparam/{name}": score for name, score in scores.items()}
        self._event("hparams", settings, shown, run_name=".")

    def weights(self, step: int, weights: Weights) -> None:
        """Record each dense weight, and a histogram of the active weights of each template."""
        names = weights.features.names(range(weights.n_dense))
        dense = weights.parameter.detach()[: weights.n_dense].tolist()
        templates = _by_template(weights)
        counts = active_features(weights, templates).items()
        of_names = {f"weight/{name}": value for name, value in zip(names, dense, strict=True)}
        self.scalars(step, of_names | {f"active/{name}": float(count) for name, count in counts})
        for template, values in templates.items():
            self.histogram(f"weights/{template}", values, step)

    def histogram(self, tag: str, values: Float64, step: int) -> None:
        """Record a histogram, if there are values."""
        # TensorBoard has no bins beyond; such weights are about to overflow.
        if values.size and np.abs(values).max() < 1e20:
            self._event("histogram", tag, values, step)

    def image(self, tag: str, image: NDArray[np.uint8], step: int) -> None:
        """Record a picture (height, width, colours)."""
        self._event("image", tag, image, step, dataformats="HWC")

    def _event(self, kind: str, *values: Any, **options: Any) -> None:
        with writing(self._events):
            getattr(self._writer, f"add_{kind}")(*values, **options)

    def _in_thread(self, failed: Any) -> None:
        """Do not print what ends TensorBoard's thread: the next that is recorded raises it."""
        writer = type(failed.thread).__module__.startswith("tensorboard.")
        if not (writer and isinstance(failed.exc_value, OSError)):
            self._hook(failed)


def _whole_lines(path: Path) -> list[str]:
    """Return the lines of a file; a last one that was cut off is left out."""
    check_plain(path)
    lines = path.read_text("utf-8").splitlines(keepends=True)
    return [line for line in lines if line.endswith("\n")]


def active_features(
    weights: Weights, templates: dict[str, Float64] | None = None
) -> dict[str, int]:
    """Return the number of weights that are not 0, by template (``dense`` for dense features)."""
    templates = _by_template(weights) if templates is None else templates
    dense = int(weights.parameter.detach()[: weights.n_dense].count_nonzero())
    return {"dense": dense, **{name: values.size for name, values in templates.items()}}


def _by_template(weights: Weights) -> dict[str, Float64]:
    """Return the sparse weights that are not 0 of each template."""
    values = weights.parameter.detach().cpu().double().numpy()
    active = np.flatnonzero(values[weights.n_dense :]) + weights.n_dense
    templates, number = numbered_templates(weights.features, active)
    return {template: values[active[number == t]] for t, template in enumerate(templates)}


SAMPLES: Final = 5


@dataclass(eq=False)
class SampleTranslations(Callback):
    """Records how a few sentences of a set are translated after each round.

    log: gets the texts.
    sentences: they must be decoded elsewhere, too: nothing new may come into the decoder's
        vocabularies. `SAMPLES` of them are taken, at equal distances.
    """

    log: RunLog
    decoder: Decoder
    weights: Weights
    sentences: Sentences

    def record(self, step: int) -> None:
        """Record the translations with the weights of the moment, at a step."""
        sources, last = self.sentences.sources, len(self.sentences) - 1
        places = np.linspace(0, last, min(SAMPLES, last + 1)).astype(int).tolist()
        blocks = []
        lines = translate(self.decoder, self.weights, [sources[i] for i in places])
        for i, line in zip(places, lines, strict=True):
            rows = [("source", " ".join(sources[i].words))] if sources[i].words else []
            rows += [("reference", " ".join(words)) for words in self.sentences.references[i]]
            rows.append(("translation", line))
            blocks.append("\n".join(f"{name:<12} {text}" for name, text in rows))
        # As code: what stands in a sentence is no markup.
        self.log.text("translations", "\n\n".join(f"```\n{block}\n```" for block in blocks), step)

    def on_report(self, report: Report, run: Rounds) -> None:
        """Record the translations after a round."""
        if report.kind == "round":
            self.record(run.progress.sentences)


@dataclass(eq=False)
class GroupRecords(Callback):
    """Draws the groups of each iteration, and writes those of the weights that are kept."""

    log: RunLog
    folder: Path

    def on_report(self, report: Report, run: Rounds) -> None:
        """Record the weights and sizes of groups after an iteration."""
        if report.kind != "round":
            return
        assert isinstance(run.tuner, GroupingTuner) and run.tuner.groups is not None
        groups, step = run.tuner.groups, run.progress.sentences
        packed = groups.pack(run.tuner.weights.parameter.detach().numpy())
        weights, sizes = packed[groups.n_dense :], groups.sizes[groups.n_dense :]
        if weights.size:
            self.log.histogram("groups/weights", weights, step)
            self.log.histogram("groups/log10_sizes", np.log10(sizes), step)
        title = (
            f"iteration {report.round}: {weights.size:,} groups of {sizes.sum():,} features, "
            f"dev {run.shown(run.progress.last)}"
        )
        self.log.image("groups/picture", draw_groups(weights, sizes, title), step)
        if report.kept:
            save_groups(self.folder / GROUPS, groups, packed, run.tuner.weights.features)


def draw_groups(weights: Float64, sizes: Int64, title: str) -> UInt8:
    """Draw a point a group of sparse features: weight to the right, number of features upwards.

    Returns uint8 [560, 800, 3]
    """
    # It takes long to import; pyplot would choose a backend for the whole process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((8, 5.6), dpi=100, layout="constrained")
    axes = figure.subplots()
    for colour, chosen in (("C0", weights > 0), ("C1", weights < 0), ("gray", weights == 0)):
        axes.scatter(weights[chosen], sizes[chosen], color=colour)
    axes.set(title=title, xlabel="weight of the group", ylabel="features in the group")
    axes.set_yscale("log" if sizes.size else "linear")
    axes.grid(alpha=0.3)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3]
