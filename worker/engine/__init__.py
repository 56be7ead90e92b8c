"""What a worker needs of any engine: its interfaces, and the values that cross them."""
