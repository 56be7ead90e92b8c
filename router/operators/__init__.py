"""The routes for operators, and those that only show."""
