"""Models that read texts aloud: Kokoro and Pocket TTS."""
