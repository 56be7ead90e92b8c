"""``lmx bench``: measures servers of the OpenAI API, and how they compare."""
