"""Tests of real processes, with small stand-ins for what is around them."""
