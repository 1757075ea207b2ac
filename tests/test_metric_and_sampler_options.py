"""Each file of conf/metric and conf/sampler makes a part that works."""

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from small_lists import kbest_of

from torchtune_smt.core.vocabulary import Vocabulary

HYPOTHESES = ["a b c d e", "a b c d", "a b d", "c", "x"]


def names(repository, group):
    return sorted(path.stem for path in (repository / "conf" / group).glob("*.yaml"))


def make(repository, group, *overrides):
    with initialize_config_dir(str(repository / "conf"), version_base="1.3"):
        return instantiate(compose("train", list(overrides))[group])


def test_every_metric(repository, tmp_path):
    """All rank these hypotheses alike, and no two give them and the short ones equal gains."""
    path = tmp_path / "scores.txt"
    path.write_text("".join(f"0 ||| {h} ||| {0.5 - i}\n" for i, h in enumerate(HYPOTHESES)))
    words = Vocabulary()
    kbest = kbest_of(0, [hypothesis.split() for hypothesis in HYPOTHESES], words)
    short = kbest_of(1, [["a"], ["a", "b"], ["a", "b", "c"], ["c", "a"]], words)
    references = [["a b c d e".split()], [["a", "c"]]]
    seen = {}
    for name in names(repository, "metric"):
        options = {
            "external": [f"metric.path={path}"],
            "mix": ["metric.weights={bleu:1,chrf:1}"],
        }.get(name, [])
        metric = make(repository, "metric", f"metric={name}", *options).bind(references, words)
        gains = metric.gains(kbest)
        assert gains.dtype == np.float64 and gains.shape == (5,)
        assert gains[0] == gains.max() > gains[-1] == gains.min()
        seen[name] = tuple(gains) if name == "external" else (*gains, *metric.gains(short))
    assert len(set(seen.values())) == len(seen) >= 9


@pytest.mark.parametrize(("name", "count"), [("all", 10), ("multipartite", 7), ("pro", 15)])
def test_every_sampler(repository, name, count):
    assert name in names(repository, "sampler")
    kbest = kbest_of(0, [h.split() for h in HYPOTHESES], Vocabulary())
    kbest = kbest.with_gains(np.array([0.9, 0.7, 0.5, 0.3, 0.1]))
    sampler = make(repository, "sampler", f"sampler={name}")
    assert sampler.sample(kbest, (0, 0, 0)).shape == (count, 2)
