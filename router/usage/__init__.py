"""What was used, by whom and when, and the history of the figures."""
