"""What a run writes down while it goes on: TensorBoard events and a file of metrics."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from torchtune_smt.features.template import template_of
from torchtune_smt.weights import Weights


class RunLog:
    """TensorBoard events and ``metrics.jsonl`` of one run folder.

    A line of the file is a JSON object: ``{"step": ..., "name": value, ...}``, the step in
    sentences tuned on.
    """

    def __init__(self, folder: Path) -> None:
        self._writer = SummaryWriter(str(folder / "tensorboard"))
        self._file = (folder / "metrics.jsonl").open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close()
        self._file.close()

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Record numbers at a step; a tag's part before ``/`` groups it in TensorBoard."""
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()

    def text(self, tag: str, text: str) -> None:
        """Record a text (Markdown)."""
        self._writer.add_text(tag, text)

    def weights(self, step: int, weights: Weights) -> None:
        """Record each dense weight, and a histogram of the active weights of each template."""
        values = weights.parameter.detach().cpu().double().numpy()
        dense = {f"weight/{weights.features[i]}": values[i] for i in range(weights.n_dense)}
        counts = active_features(weights)
        self.scalars(
            step,
            {name: float(value) for name, value in dense.items()}
            | {f"active/{name}": float(count) for name, count in counts.items()},
        )
        active = np.flatnonzero(values[weights.n_dense :]) + weights.n_dense
        by_template: dict[str, list[float]] = {}
        for i in active.tolist():
            by_template.setdefault(template_of(weights.features[i]), []).append(values[i])
        for template, chosen in by_template.items():
            self._histogram(f"weights/{template}", np.array(chosen), step)

    def _histogram(self, tag: str, values: Any, step: int) -> None:
        self._writer.add_histogram(tag, values, step)


def active_features(weights: Weights) -> dict[str, int]:
    """Return the number of weights that are not 0, by template (``dense`` for dense features)."""
    values = weights.parameter.detach().cpu().numpy()
    names = weights.features.names(np.flatnonzero(values))
    return dict(Counter(template_of(name) for name in names))
