"""k-best lists: in memory, on disk, and as other tools write them."""
