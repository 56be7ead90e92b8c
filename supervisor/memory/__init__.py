"""How much memory a model takes, from its files and as measured, and how much the machine has."""
