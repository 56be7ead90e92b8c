"""What depends on the device: a Mac's GPU memory (what is wired, how much mlx may take, how it is
given back), and functions for a CPU."""
