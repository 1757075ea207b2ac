"""From Python: tune on k-best lists with a loss of one's own, rerank, evaluate, compare."""

from functools import partial

import torch

from torchtune_smt import Evaluation, KBestLists, Stochastic, measured, reranked, tune
from torchtune_smt.optim import AdaGrad
from torchtune_smt.regularizers import L1
from torchtune_smt.samplers import AllPairs

hypotheses = [
    ["a blue dog", "the dog is blue"],
    ["it rain", "it rains"],
    ["cats sleeps", "cats sleep"],
]
features = [
    [{"LM": -3.1, "length": 3, "bigram:a_blue": 1}, {"LM": -3.3, "length": 4}],
    [{"LM": -1.9, "length": 2, "agreement": -1}, {"LM": -2.2, "length": 2}],
    [{"LM": -2.0, "length": 2, "agreement": -1}, {"LM": -2.4, "length": 2}],
]
references = [["the dog is blue".split()], ["it rains".split()], ["cats sleep".split()]]


class Exponential:
    """exp(-z) of the margin z of a pair; autograd finds the gradient."""

    reduction = "sum"

    def __call__(self, margins):
        """Return the loss of each pair."""
        return torch.exp(-margins)


lists = measured(KBestLists.of_strings(hypotheses, features), references)
optimizer = partial(AdaGrad, lr=0.1, regularizer=L1(0.001))
weights = tune(lists, Stochastic(AllPairs(), Exponential(), optimizer, passes=30))

before = [lists[s].text(0) for s in range(len(lists))]
after = [kbest.text(0) for kbest in reranked(lists, weights, k=1)]
print(*after, sep="\n")

texts = [[" ".join(words) for words in one] for one in references]
evaluation = Evaluation({"before": [before], "after": [after]}, texts)
for system, scores in evaluation.scores(samples=1000).items():
    print(system, *scores)
print(*evaluation.compare(samples=1000), sep="\n")
