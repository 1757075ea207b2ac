"""Optimizers with sparse gradients and lazy regularisation, one file each."""

from torchtune_smt.optim.adagrad import AdaGrad
from torchtune_smt.optim.adapter import adapted
from torchtune_smt.optim.arow import AROW
from torchtune_smt.optim.cumulative_l1 import CumulativeL1
from torchtune_smt.optim.fobos import FOBOS
from torchtune_smt.optim.growth import lengthened
from torchtune_smt.optim.lazy_oscar import FobosOscar
from torchtune_smt.optim.rda import RDA
from torchtune_smt.optim.sgd import SGD
from torchtune_smt.optim.sparse import SparseOptimizer

__all__ = [
    "AROW",
    "FOBOS",
    "RDA",
    "SGD",
    "AdaGrad",
    "CumulativeL1",
    "FobosOscar",
    "SparseOptimizer",
    "adapted",
    "lengthened",
]
