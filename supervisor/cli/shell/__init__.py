"""What the shell sees of the command line: help in sections, and completion."""
