"""Models that the libraries compute wrongly as they are, and what makes them right."""
