"""The replaceable parts of a tuning run, as the configuration names them."""

from __future__ import annotations

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig

from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.cli.setup import check_part, make_templates
from torchtune_smt.tuners.epochs import EpochSettings


class Parts:
    """The replaceable parts, made before anything else, so that bad options are found at once."""

    def __init__(self, cfg: DictConfig) -> None:
        self.templates = make_templates(cfg.features)
        with option_errors("metric", cfg.metric):
            self.metric = instantiate(cfg.metric)
        with option_errors("sampler", cfg.sampler):
            self.sampler = instantiate(cfg.sampler)
        with option_errors("loss", cfg.loss):
            self.loss = instantiate(cfg.loss)
        with option_errors("regularizer", cfg.regularizer):
            regularizer = instantiate(cfg.regularizer)
        check_part("metric", self.metric, "bind")
        check_part("sampler", self.sampler, "sample")
        check_part("loss", self.loss, "__call__")
        check_part("regularizer", regularizer, "prox")
        settings = {
            name: value for name, value in cfg.optimizer.items() if name != "regularize_dense"
        }
        self.optimizer = instantiate(
            settings, _partial_=True, _convert_="object", regularizer=regularizer
        )
        with option_errors("optimizer", cfg.optimizer):
            self.optimizer([torch.nn.Parameter(torch.zeros(1))])
        with option_errors("tuner"):
            self.epochs = EpochSettings(cfg.tuner.epochs, cfg.tuner.patience, cfg.tuner.result)
