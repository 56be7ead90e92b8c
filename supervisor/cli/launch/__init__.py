"""``lmx launch``: starts coding agents of other makers with a model of lmx."""
