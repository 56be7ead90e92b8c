"""What two machines say to each other to be paired, and the code that one of them shows."""
