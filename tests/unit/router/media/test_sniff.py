"""What bytes are is told by the bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.states import MediaForm, MediaKind
from lmx.router.media.sniff import detected_form, form_of, kind_of
from tests.support.fakes.media_files import grey_frames, sine, sound_file, video_file

IMAGE, AUDIO, VIDEO = MediaKind.IMAGE, MediaKind.AUDIO, MediaKind.VIDEO


def iso(brand: bytes, *further: bytes) -> bytes:
    body = brand + bytes(4) + b"".join(further)
    return (8 + len(body)).to_bytes(4, "big") + b"ftyp" + body


BEGINNINGS = [
    (b"\x89PNG\r\n\x1a\n....", MediaForm.PNG, {IMAGE}),
    (b"\xff\xd8\xff\xe0....", MediaForm.JPEG, {IMAGE}),
    (b"GIF89a....", MediaForm.GIF, {IMAGE}),
    (b"GIF87a....", MediaForm.GIF, {IMAGE}),
    (b"RIFF....WEBPVP8 ", MediaForm.WEBP, {IMAGE}),
    (b"BM" + bytes(12) + b"\x28\0\0\0", MediaForm.BMP, {IMAGE}),
    (b"II*\0....", MediaForm.TIFF, {IMAGE}),
    (b"MM\0*....", MediaForm.TIFF, {IMAGE}),
    (iso(b"heic"), MediaForm.HEIC, {IMAGE}),
    (iso(b"mif1", b"mif1", b"heic"), MediaForm.HEIC, {IMAGE}),
    (iso(b"mif1", b"mif1", b"avif"), MediaForm.AVIF, {IMAGE}),
    (iso(b"avif"), MediaForm.AVIF, {IMAGE}),
    (b"RIFF....WAVEfmt ", MediaForm.WAV, {AUDIO}),
    (b"RF64....WAVEds64", MediaForm.WAV, {AUDIO}),
    (b"ID3\4....", MediaForm.MP3, {AUDIO}),
    (b"\xff\xfb\x90\0", MediaForm.MP3, {AUDIO}),
    (b"\xff\xf3\x40\0", MediaForm.MP3, {AUDIO}),
    (b"fLaC....", MediaForm.FLAC, {AUDIO}),
    (b"OggS....", MediaForm.OGG, {AUDIO}),
    (iso(b"M4A "), MediaForm.M4A, {AUDIO}),
    (b"\xff\xf1\x50\x80", MediaForm.AAC, {AUDIO}),
    (b"\xff\xf9\x50\x80", MediaForm.AAC, {AUDIO}),
    (b"ADIF....", MediaForm.AAC, {AUDIO}),
    (iso(b"isom"), MediaForm.MP4, {AUDIO, VIDEO}),
    (iso(b"mp42"), MediaForm.MP4, {AUDIO, VIDEO}),
    (iso(b"qt  "), MediaForm.MOV, {AUDIO, VIDEO}),
    (b"\0\0\1\0moov", MediaForm.MOV, {AUDIO, VIDEO}),
    (b"\x1aE\xdf\xa3....\x42\x82\x84webm", MediaForm.WEBM, {AUDIO, VIDEO}),
    (b"\x1aE\xdf\xa3....\x42\x82\x88matroska", MediaForm.MKV, {AUDIO, VIDEO}),
    (b"RIFF....AVI LIST", MediaForm.AVI, {VIDEO}),
]

FOREIGN = [
    (b"", "is empty"),
    (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
    (b"\xef\xbb\xbf\n <?xml version='1.0'?><svg/>", "SVG"),
    (b"<!DOCTYPE html><html>", "HTML"),
    (b"data:image/png;base64,AAAA", "a data URL inside"),
    (b"%PDF-1.7", "PDF"),
    (b"\x1f\x8b\x08\0", "compressed"),
    (b"PK\3\4", "compressed"),
    (b"#!/bin/sh\n", "no known form"),
    (b"BMX is a sport", "no known form"),
    (b"The free software", "no known form"),
    (b"RIFF....XXXX", "no known form"),
    (b"\xff\xff\xff\xff", "no known form"),
    (b"\xff", "no known form"),
]


@pytest.mark.parametrize(("content", "form", "kinds"), BEGINNINGS)
def test_a_form_is_reported_and_taken_by_its_kinds(
    content: bytes, form: MediaForm, kinds: set[MediaKind]
) -> None:
    assert form_of(content) is form
    for kind in MediaKind:
        if kind in kinds:
            assert detected_form(content, kind, "p") is form
        else:
            with pytest.raises(RequestError, match=f"its content is {form}") as caught:
                detected_form(content, kind, "p")
            assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_MEDIA, "p")


def test_every_form_is_reported() -> None:
    assert {form for _, form, _ in BEGINNINGS} == set(MediaForm)


@pytest.mark.parametrize(("content", "words"), FOREIGN)
@pytest.mark.parametrize("kind", MediaKind)
def test_what_is_no_media_is_refused_in_words(content: bytes, words: str, kind: MediaKind) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        detected_form(content, kind, "p")
    assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_MEDIA, "p")


@given(st.binary(max_size=64) | st.binary(max_size=40).map(lambda rest: b"....ftypmif1" + rest))
def test_any_bytes_have_a_form_or_none(content: bytes) -> None:
    assert form_of(content) is None or isinstance(form_of(content), MediaForm)


@pytest.mark.parametrize(
    ("container", "codec", "form"),
    [("webm", "libopus", "webm"), ("matroska", "flac", "mkv"), ("mp4", "aac", "mp4")],
)
def test_a_container_of_sound_alone_is_a_sound(container: str, codec: str, form: str) -> None:
    recorded = sound_file(sine(440, 1.0, 48_000), 48_000, container, codec)
    assert form_of(recorded) == form
    assert kind_of(recorded) is AUDIO
    # Its tracks may be named where nobody has looked yet.
    assert kind_of(recorded[:256]) is VIDEO


@pytest.mark.parametrize("container", ["matroska", "mp4", "mov"])
def test_a_container_with_pictures_is_a_video(container: str) -> None:
    filmed = video_file(grey_frames(5), 5, container=container, sound=sine(440, 1.0, 48_000))
    assert kind_of(filmed) is VIDEO
    assert all(kind_of(filmed[:end]) is VIDEO for end in range(64, len(filmed), 64))
