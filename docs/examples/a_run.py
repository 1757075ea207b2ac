"""A run from Python, in a folder of its own, as the command makes it."""

from torchtune_smt import BitextModel, Dataset, HieroDecoder, Parts, Recipe, Run
from torchtune_smt.core.resources import EXAMPLE
from torchtune_smt.features import RuleId, RuleShape, SourceNgram
from torchtune_smt.regularizers import L1
from torchtune_smt.tuners.online import OnlineTuner

parts = Parts(
    dataset=Dataset(
        "example", "de", "en", folders=EXAMPLE, normalize=True, tokenize=True, lowercase=True
    ),
    decoding=Recipe.of(HieroDecoder, k=100, pop_limit=50),
    model=BitextModel("outputs/models/from_python", iterations=2, order=3, folds=2),
    templates=[RuleId(), SourceNgram(), RuleShape()],
    regularizer=L1(0.1),
    tuning=Recipe.of(OnlineTuner),
    init_values={"EgivenF": 0.1, "FgivenE": 0.1, "LanguageModel": 0.1, "PassThrough": -1},
    rounds=2,
)
run = Run("outputs/from_python", parts)
run.prepare()
run.tune()
print("dev BLEU", run.finish())
