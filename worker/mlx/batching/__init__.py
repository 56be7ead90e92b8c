"""Which sequences are computed together and when: buckets of similar length, prompts in turns."""
