"""The tests of lmx, and what they share: a package, so that each module has one name."""
