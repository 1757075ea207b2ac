"""What translates: a grammar and a language model, built from a bitext or read from files."""

from torchtune_smt.models.base import Model, ModelSource
from torchtune_smt.models.built import BitextModel, JointModel, PhraseModel
from torchtune_smt.models.files import FileModel, MosesModel
from torchtune_smt.models.folder import load_model

__all__ = [
    "BitextModel",
    "FileModel",
    "JointModel",
    "Model",
    "ModelSource",
    "MosesModel",
    "PhraseModel",
    "load_model",
]
