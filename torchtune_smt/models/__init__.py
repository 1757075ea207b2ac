"""What translates: a grammar and a language model, built from a bitext or read from files."""

from torchtune_smt.models.base import Model, ModelSource
from torchtune_smt.models.bitext import BitextModel
from torchtune_smt.models.files import FileModel
from torchtune_smt.models.folder import load_model
from torchtune_smt.models.moses import MosesModel
from torchtune_smt.models.phrase import PhraseModel

__all__ = [
    "BitextModel",
    "FileModel",
    "Model",
    "ModelSource",
    "MosesModel",
    "PhraseModel",
    "load_model",
]
