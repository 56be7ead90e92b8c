"""The supervisor's process: its start, its end, and what goes between its parts."""
