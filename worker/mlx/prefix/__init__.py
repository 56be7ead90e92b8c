"""The prefix cache, in memory and on the disk."""
