"""The life of one model's slot: its value, its events, its effects, and the table of them."""
