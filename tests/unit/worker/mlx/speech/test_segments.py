"""Windows are cut at pairs of stamps; what is not complete is heard again."""

from lmx.worker.mlx.speech.rules import Cut, cut_window, next_seek

BEGIN = 1000


def stamp(number: int) -> int:
    return BEGIN + number


def test_complete_segments_and_then_silence_use_up_the_window() -> None:
    tokens = [stamp(0), 1, 2, stamp(100), stamp(120), 3, stamp(200)]
    cut = cut_window(tokens, BEGIN, 3000)
    assert cut.segments == (
        Cut(0, 100, (stamp(0), 1, 2, stamp(100))),
        Cut(120, 200, (stamp(120), 3, stamp(200))),
    )
    assert (cut.advance_frames, cut.whole) == (3000, True)


def test_an_incomplete_segment_is_left_to_the_next_window() -> None:
    tokens = [stamp(0), 1, stamp(100), stamp(120), 3, 4]
    cut = cut_window(tokens, BEGIN, 3000)
    assert cut.segments == (Cut(0, 100, (stamp(0), 1, stamp(100))),)
    assert (cut.advance_frames, cut.whole) == (200, False)


def test_a_window_with_one_text_is_one_segment() -> None:
    ended = cut_window([stamp(0), 1, 2, stamp(300)], BEGIN, 1000)
    assert ended.segments == (Cut(0, 300, (stamp(0), 1, 2, stamp(300))),)
    assert ended.advance_frames == 1000
    cut_off = cut_window([stamp(0), 1, 2], BEGIN, 1000)
    assert cut_off.segments[0].end == 500, "it goes on to the end of the window"
    assert cut_window([], BEGIN, 1000).segments == (Cut(0, 500, ()),)


def test_windows_always_advance() -> None:
    assert next_seek(100, 250) == 350
    assert next_seek(100, 0) > 100
