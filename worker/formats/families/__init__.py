"""The families of models, by how they call tools: one value for each, and the choice among them."""
