"""Tuning in parallel: strategies say what is computed where, engines compute it."""
