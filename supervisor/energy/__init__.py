"""How much energy the machine takes, and which models take it."""
