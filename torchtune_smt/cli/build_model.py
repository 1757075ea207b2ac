"""``build_model``: align a bitext, extract its grammar, estimate language models."""

from __future__ import annotations

from omegaconf import DictConfig

from torchtune_smt.cli.hydra_main import hydra_main
from torchtune_smt.cli.setup import model_settings, require_split
from torchtune_smt.core.errors import InputError
from torchtune_smt.model_folder import build_model, check_model


@hydra_main("build_model")
def main(cfg: DictConfig) -> None:
    """Build the configured model, unless it is there already."""
    if cfg.model.kind != "bitext":
        raise InputError(f"model={cfg.model.kind} is not built from a bitext; use model=hiero")
    bitext = require_split(cfg.data, "train", training=True)
    settings = model_settings(cfg.model)
    print(f"training bitext: {bitext.summary()}")
    if check_model(cfg.model.folder, bitext, settings) is None:
        print(f"{cfg.model.folder} is up to date; remove it to build it anew")
        return
    build_model(cfg.model.folder, bitext, settings)
    print(f"the model lies in {cfg.model.folder}")
