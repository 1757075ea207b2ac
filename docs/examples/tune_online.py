"""Tuning from Python: online, on dev, three epochs."""

from torchtune_smt.core.resources import EXAMPLE
from torchtune_smt.core.weights import Weights
from torchtune_smt.core.weights_io import save_weights
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.features import RuleId, RuleShape, SourceNgram
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.losses import Logistic
from torchtune_smt.metrics import BleuPlusOne
from torchtune_smt.models import load_model
from torchtune_smt.optim import AdaGrad
from torchtune_smt.regularizers import L1
from torchtune_smt.runs.console import Console
from torchtune_smt.runs.rounds import Rounds
from torchtune_smt.samplers import ProSampler
from torchtune_smt.tuners.online import OnlineTuner
from torchtune_smt.tuners.sentences import score_corpus, translate

steps = {"normalize": True, "tokenize": True, "lowercase": True}
corpus = Dataset("example", "de", "en", folders=EXAMPLE, **steps).require("dev")
dev = Sentences.of(corpus.source, corpus.references)

model = load_model("outputs/models/example")
templates = [RuleId(), SourceNgram(), RuleShape()]
decoder = HieroDecoder(model, templates=templates, pop_limit=50)
weights = Weights(decoder.dense_names)
weights.set(decoder.dense_names, [0.1] * weights.n_dense)

tuner = OnlineTuner(
    decoder,
    weights,
    dev,
    BleuPlusOne().bind(dev.references, decoder.words),
    ProSampler(),
    Logistic(),
    AdaGrad([weights.parameter], lr=0.02, regularizer=L1(0.1), unregularized=weights.n_dense),
)


def bleu():
    """Return dev BLEU with the weights as they are."""
    return score_corpus(translate(decoder, weights, dev.sources), dev).score


progress = Rounds(tuner, bleu, rounds=3, callbacks=[Console(len(dev))]).run()
print("best epoch", progress.best.round, "with dev BLEU", progress.best.score)
save_weights("weights.txt.gz", weights)
