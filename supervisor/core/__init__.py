"""The core, the single writer of all models' slots. It decides what happens to each model, and
which of them get the memory."""
