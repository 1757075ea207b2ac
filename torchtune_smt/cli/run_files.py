"""A look at a run's folder before Hydra writes to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from torchtune_smt.core.errors import InputError
from torchtune_smt.runs.folder import check_unused, claimed


class CheckFolder(Callback):
    """Looks at the run's folder before Hydra writes its own records over those that are there."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Refuse a folder that is in use, or holds a run."""
        folder = Path(config.hydra.run.dir)
        # Commands without records, such as translate, may run where a run lies: it is not theirs.
        if config.hydra.output_subdir is None or config.resume is not None or not folder.is_dir():
            return
        try:
            with claimed(folder):
                if not config.overwrite:
                    check_unused(folder)
        except InputError as error:
            # Hydra makes warnings of other exceptions.
            raise SystemExit(f"error: {error}") from None
