"""The processes of lmx: started, watched, handed over and ended."""
