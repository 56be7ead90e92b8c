"""Files that clients upload, and those that lmx makes for them: their records and their bytes."""
