"""The one router process: kept running, replaced, and what it has counted."""
