"""Sparse features and a neural network, learnt together: its score is one more column."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from torchtune_smt.lists import Collate, KBestLists, ListDataset, LogLinear, loss_of_lists
from torchtune_smt.losses import Softmax
from torchtune_smt.optim import AdaGrad
from torchtune_smt.regularizers import L1

# Good hypotheses have a large LM, and as many openings as endings: no weight of a word says that.
generator = np.random.default_rng(1)
words = np.array(["(", ")", "a", "b"])
texts, features, gains = [], [], []
for _ in range(200):
    drawn = [words[generator.integers(4, size=6)] for _ in range(8)]
    lm = generator.normal(size=8)
    open_ends = [abs(int((w == "(").sum()) - int((w == ")").sum())) for w in drawn]
    texts.append([" ".join(w) for w in drawn])
    features.append([{"LM": x, f"noise:{i}": 1.0} for i, x in enumerate(lm)])
    gains.append([float(x - 2 * o) for x, o in zip(lm, open_ends, strict=True)])
lists = KBestLists.of_strings(texts, features, gains=gains)


class Mixed(nn.Module):
    """W·H plus the score of a network that sees the words."""

    def __init__(self, lists, size=16):
        super().__init__()
        self.linear = LogLinear(len(lists.features))
        self.words = nn.EmbeddingBag(len(lists.words), size, mode="sum", include_last_offset=True)
        self.network = nn.Sequential(nn.Linear(size, size), nn.Tanh(), nn.Linear(size, 1))

    def forward(self, batch):
        """Return the score of each hypothesis, [n]."""
        neural = self.network(self.words(batch.tokens, batch.token_begin))
        return self.linear(batch) + neural.squeeze(1)


def mean_gain(model):
    """Return the mean gain of the hypotheses that a model likes best."""
    with torch.no_grad():
        scores = model(lists.to_torch()).view(len(lists), -1)
    return torch.from_numpy(lists.gain).view(len(lists), -1)[range(len(lists)), scores.argmax(1)]


torch.manual_seed(1)
model = Mixed(lists)
sparse = AdaGrad(model.linear.parameters(), lr=0.1, regularizer=L1(0.02))
sparse.attach(model.linear)
dense = torch.optim.Adam([*model.words.parameters(), *model.network.parameters()], lr=0.01)
for _ in range(10):
    for batch in DataLoader(ListDataset(lists), 20, shuffle=True, collate_fn=Collate()):
        loss = loss_of_lists(Softmax(), model(batch), batch).mean()
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
model.eval()  # Weights that were put off are brought up to date.
print(lists.features.names(model.linear.weight.detach().numpy().nonzero()[0]))
print(f"{mean_gain(model.linear).mean():.2f} alone, {mean_gain(model).mean():.2f} together")
