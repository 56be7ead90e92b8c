"""What a model takes of the memory, read from its files and measured; the machine's own."""
