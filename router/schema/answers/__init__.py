"""The shapes of the answers."""
