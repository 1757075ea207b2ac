"""Tuning algorithms: the loops that bring decoders, gains, losses and optimizers together."""
