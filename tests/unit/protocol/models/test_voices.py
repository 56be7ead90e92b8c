"""Which voices a folder has."""

from pathlib import Path

from lmx.protocol.models.voices import MOST_VOICES, voice_files


def test_voices_are_files(tmp_path: Path) -> None:
    assert voice_files(tmp_path, "kokoro") == {}
    for folder, names in (
        ("voices", ("af_heart", "jf_alpha", "bm_george", "a b", "x" * 65)),
        ("embeddings", ("alba",)),
    ):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / f"{name}.safetensors").touch()
    (tmp_path / "voices" / "af_sky.pt").touch()
    assert list(voice_files(tmp_path, "kokoro")) == ["af_heart", "alba", "bm_george"]
    found = voice_files(tmp_path, "pocket_tts")
    assert list(found) == ["af_heart", "alba", "bm_george", "jf_alpha"]
    assert found["alba"] == tmp_path / "embeddings" / "alba.safetensors"


def test_a_folder_with_very_many_files_is_read_in_part(tmp_path: Path) -> None:
    (tmp_path / "voices").mkdir()
    for number in range(MOST_VOICES + 5):
        (tmp_path / "voices" / f"v{number}.safetensors").touch()
    assert len(voice_files(tmp_path, "pocket_tts")) == MOST_VOICES
