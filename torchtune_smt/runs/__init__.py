"""A run: rounds, evaluation, what is recorded and taken up again."""
