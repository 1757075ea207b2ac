"""Which hypotheses of a list are compared."""
