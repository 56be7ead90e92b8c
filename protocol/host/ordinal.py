"""A place in a queue as people say it. This module is pure."""


def ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 4th, 11th ..."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{ending or 'th'}"
