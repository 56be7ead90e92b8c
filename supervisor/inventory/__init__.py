"""Which models there are on the disk, are downloaded, were added or are deleted."""
