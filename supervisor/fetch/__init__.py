"""The programs that fetch and convert models, each in a process of its own."""
