"""Optimizers with sparse gradients and lazy regularisation."""

from torchtune_smt.optim.adagrad import AROW, AdaGrad
from torchtune_smt.optim.adapter import adapted
from torchtune_smt.optim.fobos import FOBOS
from torchtune_smt.optim.ftrl import FTRL
from torchtune_smt.optim.lazy_oscar import FobosOscar
from torchtune_smt.optim.rda import RDA
from torchtune_smt.optim.sgd import SGD, CumulativeL1
from torchtune_smt.optim.sparse import SparseOptimizer
from torchtune_smt.optim.state import lengthened

__all__ = [
    "AROW",
    "FOBOS",
    "FTRL",
    "RDA",
    "SGD",
    "AdaGrad",
    "CumulativeL1",
    "FobosOscar",
    "SparseOptimizer",
    "adapted",
    "lengthened",
]
