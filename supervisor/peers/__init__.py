"""Peers that were stored while lmx ran: their file, and their owner."""
