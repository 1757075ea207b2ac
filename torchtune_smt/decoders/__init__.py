"""Decoders: from source sentences and weights to k-best lists."""
