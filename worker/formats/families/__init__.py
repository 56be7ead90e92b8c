"""The families of models, by how they call tools: one file for each, and one table."""
