"""``build_model``: align a bitext, extract its grammar, estimate language models."""

from __future__ import annotations

from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.hydra_main import hydra_main
from torchtune_smt.cli.wire import make, make_dataset
from torchtune_smt.core.errors import InputError, warn
from torchtune_smt.data.suspicions import corpus_suspicions
from torchtune_smt.models.base import model_size


@hydra_main("build_model")
def main(cfg: DictConfig) -> None:
    """Build the configured model, unless it is there already."""
    model = make(cfg, "model", "from_bitext")
    if not model.from_bitext:
        chosen = HydraConfig.get().runtime.choices["model"]
        raise InputError(f"model={chosen} is not built from a bitext; use model=hiero")
    folds = cfg.lm == "folds"
    model.check_training(folds)
    dataset = make_dataset(cfg, "train")
    bitext = dataset.require("train", training=True)
    print(f"training bitext: {bitext.summary()}")
    warn([*dataset.without_rules(), *corpus_suspicions({"train": bitext})])
    if model.why_not_built(bitext, folds=folds) is None:
        print(f"{model.folder} is up to date; remove it to build it anew")
        return
    model.build(bitext, folds=folds)
    plain: Any = OmegaConf.to_container(cfg.model, resolve=True)
    print(f"the model lies in {model.folder}, {model_size(plain) / 1e6:,.0f} MB")
