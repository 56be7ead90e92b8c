"""A model that is divided among several processes: rank 0 and its followers."""
