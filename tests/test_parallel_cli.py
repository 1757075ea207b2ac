"""Parallel strategies by the command line, on the bundled example."""

import re

import pytest
from commands import MODEL, run_command, train


def test_workers(place):
    """Any number of them gives the same bytes; they are killed, and the run too, in tests/fuzz.

    OSCAR's d is not counted again, in charts that another decoder has met or not.
    """
    options = ["optimizer=fobos_oscar", "regularizer=oscar", "parallel=itermix", "data.test=null"]
    run = train(place, "two_workers", *options, "parallel.shards=3", "engine.workers=2")
    for tag in ("train/loss", "train/gain", "parallel/shard_features", "parallel/begin"):
        assert sum(tag in line for line in run.metrics()) == 6
    parts = [line for line in run.metrics() if "parallel/seconds" in line]
    assert all(0 < one["parallel/seconds_learning"] < one["parallel/seconds"] for one in parts)
    tag = "parallel/utilisation"
    shares = [line[tag] for line in run.metrics() if tag in line]
    assert len(shares) == 2 and all(0 < share <= 1 for share in shares)
    assert "  shard 3: 10 sentences, gain 0." in run.outcome.out
    found = re.search(r"OSCAR's d = ([\d,]+) \(features of the charts\)", run.outcome.out)
    given = [f"regularizer.dimension={found[1].replace(',', '')}", "engine.workers=1"]
    same = train(place, "one_worker", *options, "parallel.shards=3", *given)
    for name in ("weights.txt.gz", "dev.translations.txt"):
        assert (run.folder / name).read_bytes() == (same.folder / name).read_bytes()


REFUSED = {
    "parallel=mix tuner=pro": "parallel: Mix spreads the mini-batches of an epoch",
    "parallel=decode": "parallel: Decode decodes all sentences with the same weights",
    "engine.workers=2": "parallel=serial has no shards .* engine.workers=2 would change",
    "parallel=stale loss=perceptron loss.reduction=each": "loss.reduction=each takes",
    "parallel=mix tuner.checkpoint_minutes=1": "parallel=mix saves the run after each",
    "parallel=itersel parallel.threshold=1": "parallel: give one of features, threshold",
    "parallel=itersel parallel.features=null": "parallel: give one of features, threshold",
    "parallel=mix parallel.shards=2 parallel.labels=x": "give one of them",
    "parallel=stale parallel.simulate=1 parallel.workers=2": "simulate has no threads",
    "parallel=stale parallel.simulate=1 parallel.max_staleness=2": "simulate has no threads",
    "parallel=mix parallel.shards=31": "parallel.shards=31, and there are 30 sentences",
    "parallel=mix optimizer=sgd regularizer=none optimizer.average=step tuner.result=average": (
        "optimizer.average=step: under parallel=mix each shard has an optimizer of its own"
    ),
    "parallel=itermix optimizer=rda": "RDA forgets the sparse weights .* take parallel=mix",
    "parallel=itermix tuner.towards=start": "tuner.towards=start: under parallel=itermix",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_does_not_go_together(place, options):
    arguments = [*MODEL, "tuner.sentences=30", "hydra.run.dir=refused", *options.split()]
    outcome = run_command("train", *arguments, folder=place)
    assert outcome.code == 1 and re.search(REFUSED[options], outcome.err), outcome.err
