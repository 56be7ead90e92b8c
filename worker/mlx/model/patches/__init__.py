"""Models of mlx-vlm that answer wrongly as they are, and what makes them right."""
