"""Keys that operators make: what they are, their file, and what changes them."""
