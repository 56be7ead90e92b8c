"""What is counted of requests, and how it is shown."""
