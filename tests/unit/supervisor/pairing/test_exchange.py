"""What a code proves, what becomes of one, and what it may be given for."""

from dataclasses import replace

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.pairing import OfferState
from lmx.supervisor.control.pairing import key_name, peer_url
from lmx.supervisor.keys import changes
from lmx.supervisor.pairing.exchange import (
    CODE_LETTERS,
    LETTERS,
    OwnPart,
    Said,
    Secret,
    WrongCodeError,
    draw,
    new_code,
    read_code,
    shown_code,
)
from lmx.supervisor.pairing.offer import LIFE_S, MOST_TRIES, Offer

CODE = "K7QZM4XH2P"


def parts() -> tuple[OwnPart, OwnPart, Said]:
    taker, shower = draw(), draw()
    said = Said("00ff", "studio", taker.public, taker.nonce, shower.public, shower.nonce)
    return taker, shower, said


def secrets_of(code: str, other: str, changed: dict[str, object]) -> tuple[Secret, Secret]:
    taker, shower, said = parts()
    seen = replace(said, **changed)  # type: ignore[arg-type]
    return (
        Secret(taker, seen.shower_public, seen, code),
        Secret(shower, said.taker_public, said, other),
    )


def test_who_has_the_code_proves_it_and_reads_what_was_sealed() -> None:
    taker, shower = secrets_of(CODE, CODE, {})
    shower.check("taker", taker.proof("taker"))
    taker.check("shower", shower.proof("shower"))
    sealed = taker.seal("taker", {"key": "a secret"})
    assert b"a secret" not in sealed
    assert shower.open("taker", sealed) == {"key": "a secret"}
    assert taker.open("shower", shower.seal("shower", {"key": 1})) == {"key": 1}
    # One side's proof is not the other's, and neither is what it sealed.
    with pytest.raises(WrongCodeError):
        shower.check("shower", taker.proof("taker"))
    with pytest.raises(WrongCodeError):
        taker.open("shower", sealed)
    for place in (0, len(sealed) - 1):
        changed = bytes(one ^ (at == place) for at, one in enumerate(sealed))
        with pytest.raises(WrongCodeError):
            shower.open("taker", changed)


@pytest.mark.parametrize(
    ("other", "changed"),
    [
        ("K7QZM4XH2Q", {}),
        (CODE, {"machine": "studi0"}),
        (CODE, {"exchange_id": "00fe"}),
        (CODE, {"shower_nonce": bytes(16)}),
        (CODE, {"taker_nonce": bytes(16)}),
        (CODE, {"shower_public": draw().public}),
        (CODE, {"taker_public": draw().public}),
    ],
)
def test_with_another_code_or_other_words_nothing_is_proved(
    other: str, changed: dict[str, object]
) -> None:
    taker, shower = secrets_of(CODE, other, changed)
    for side in ("taker", "shower"):
        with pytest.raises(WrongCodeError):
            shower.check(side, taker.proof(side))
    with pytest.raises(WrongCodeError):
        shower.open("taker", taker.seal("taker", {"key": 1}))


@pytest.mark.parametrize("public", [bytes(32), bytes([1, *bytes(31)]), b"short"])
def test_a_key_that_fixes_the_secret_is_refused(public: bytes) -> None:
    _, shower, said = parts()
    with pytest.raises(WrongCodeError):
        Secret(shower, public, replace(said, taker_public=public), CODE)


def test_codes_are_read_as_people_write_them() -> None:
    code = new_code()
    assert len(code) == CODE_LETTERS
    assert set(code) <= set(LETTERS)
    assert len(LETTERS) ** CODE_LETTERS > 2**49
    assert read_code(shown_code(code)) == code
    assert read_code(f" {code[:3].lower()} {code[3:]} ") == code
    for wrong in ("", CODE[:-1], CODE + "A", "K7QZM4XH2O"):
        with pytest.raises(OperationError, match="is no code"):
            read_code(wrong)


def test_an_exchange_has_one_proof_and_a_code_few_tries() -> None:
    _, shower, said = parts()
    offer = Offer("o", CODE, LIFE_S)
    for number in range(MOST_TRIES):
        exchange = replace(said, exchange_id=str(number))
        offer.begin(shower, exchange, 1.0)
        assert offer.attempt(str(number), 2.0) == (shower, exchange)
        with pytest.raises(OperationError, match="is over") as replayed:
            offer.attempt(str(number), 2.0)
        assert replayed.value.code is ErrorCode.NOT_FOUND
        assert offer.is_open(2.0)
        error = offer.was_wrong()
        assert error.code is ErrorCode.PERMISSION_DENIED
    assert not offer.is_open(2.0)
    assert "void now" in error.message
    assert offer.code == ""
    assert offer.view(2.0).state is OfferState.VOID
    with pytest.raises(OperationError):
        offer.attempt("nobody began it", 2.0)


def test_a_code_is_not_void_while_a_proof_is_judged() -> None:
    """It may be the right one."""
    _, shower, said = parts()
    offer = Offer("o", CODE, LIFE_S)
    for number in range(MOST_TRIES):
        offer.begin(shower, replace(said, exchange_id=str(number)), 1.0)
    for number in range(MOST_TRIES):
        offer.attempt(str(number), 2.0)
    for _ in range(MOST_TRIES - 1):
        assert "void" not in offer.was_wrong().message
        assert offer.is_open(2.0)
    assert "void now" in offer.was_wrong().message
    assert not offer.is_open(2.0)


def test_codes_and_exchanges_expire() -> None:
    _, shower, said = parts()
    offer = Offer("o", CODE, LIFE_S)
    offer.begin(shower, said, 0.0)
    with pytest.raises(OperationError):
        offer.attempt(said.exchange_id, 60.0)
    assert offer.tries_left == MOST_TRIES, "it was no try"
    for number in range(100):
        offer.begin(shower, replace(said, exchange_id=str(number)), 61.0)
    assert len(offer._exchanges) == 32
    assert offer.is_open(LIFE_S - 0.1)
    assert not offer.is_open(LIFE_S)
    assert "expired" in offer.view(LIFE_S).detail
    offer.end(OfferState.FAILED, "too late")
    assert offer.view(LIFE_S).state is OfferState.VOID
    assert CODE not in repr(Offer("o", CODE, 1.0))


@pytest.mark.parametrize(
    ("host", "remote", "url"),
    [
        ("0.0.0.0", "192.168.1.7", "http://192.168.1.7:8000"),
        ("::", "::ffff:192.168.1.7", "http://192.168.1.7:8000"),
        ("::", "fd00::7%en0", "http://[fd00::7]:8000"),
        ("192.168.1.9", "192.168.1.7", "http://192.168.1.9:8000"),
        ("127.0.0.1", "127.0.0.1", "http://127.0.0.1:8000"),
        ("127.0.0.1", "192.168.1.7", None),
        ("localhost", "192.168.1.7", None),
        ("0.0.0.0", "", None),
    ],
)
def test_the_address_of_the_other_machine(host: str, remote: str, url: str | None) -> None:
    assert peer_url(host, 8000, remote) == url


def test_a_key_s_name_is_one_that_keys_may_have() -> None:
    assert key_name("laptop") == "peer-laptop"
    assert key_name("x" * 55) == "peer-" + "x" * 55
    long = {key_name("x" * 59 + end) for end in "ab"}
    assert len(long) == 2, "two machines never share a key"
    assert {len(name) for name in long} == {60}
    for name in long:
        assert changes._NAME.fullmatch(name)
