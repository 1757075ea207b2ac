"""Comparisons of systems as one HTML page that needs nothing else."""
