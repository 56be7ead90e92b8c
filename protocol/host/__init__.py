"""What every process of lmx needs of the machine that it runs on: logs, limits, memory, files."""
