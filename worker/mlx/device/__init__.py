"""The memory of a Mac's GPU: what is wired, how much mlx may take, and how it is given back."""
