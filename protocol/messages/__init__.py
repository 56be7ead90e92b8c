"""The messages between processes: what each means, and its fields."""
