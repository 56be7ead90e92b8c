"""A worker's talk with the router and the supervisor."""
