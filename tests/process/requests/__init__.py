"""One lmx for all files here, which ends when their last test has."""
