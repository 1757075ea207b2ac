"""Optimizers with sparse gradients and lazy regularisation, one file each."""

from torchtune_smt.optim.adagrad import AdaGrad

__all__ = ["AdaGrad"]
