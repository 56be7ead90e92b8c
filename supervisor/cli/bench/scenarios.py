"""What `lmx bench` sends: scenarios, their phases and clients, and texts that no server has seen.
Pure."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

_MOST_A_SECOND: Final = 4
"""Requests of one client: a quick server gets no more of them."""
_AGENT_TURNS: Final = 12
_TEXT: Final = (
    "time year people way day man thing woman life child world school state family student "
    "group country problem hand part place case week company system program question work "
    "night point home water room mother area money story fact month lot right study book eye "
    "job word business issue side kind head house service friend father power hour game line "
    "end member law car city name team minute idea body back parent face level office door "
    "health person art war history party result change morning reason research girl guy "
    "moment air teacher force education foot boy age policy music market sense nation plan "
    "college interest death experience effect class control field value road table fire rate "
    "river paper tree sound light window color"
)
_WORDS: Final = tuple(_TEXT.split())


@dataclass(frozen=True, slots=True)
class Client:
    """One client: it sends a request, waits for the end of the answer, and sends the next one."""

    prompt_tokens: int
    answer_tokens: int
    kind: str = ""
    """Requests of one kind are counted together."""
    first_kind: str = ""
    """The kind of its first request, if that is another one."""
    shared_tokens: int = 0
    """Of the prompt's beginning, which all requests of the phase share."""
    grows_tokens: int | None = None
    """A conversation: each turn sends the earlier ones and their answers again, and so many new
    tokens."""
    marker: bool = False
    """The system prompt ends with a line that is another one in each turn."""
    delay_s: float = 0.0
    pause_s: float = 0.0
    hangs_up_after: int | None = None
    """It closes the connection after so many pieces of the answer. 0: before the first one."""
    most_requests: int = 1

    @property
    def least_requests(self) -> int:
        """It sends so many even after the end of its phase: one of each kind."""
        return 2 if self.first_kind else 1


@dataclass(frozen=True, slots=True)
class Phase:
    """What happens at a time. After ``seconds`` no client begins another request, except
    its first ones."""

    scenario: str
    name: str
    clients: tuple[Client, ...]
    seconds: float = 0.0

    @property
    def most_requests(self) -> int:
        """How many requests all clients send at most."""
        return sum(client.most_requests for client in self.clients)

    @property
    def most_prompt_tokens(self) -> int:
        """About how many tokens all prompts have at most, without the answers in conversations."""
        return sum(map(_most_prompt_tokens, self.clients))


def _most_prompt_tokens(client: Client) -> int:
    count = client.most_requests
    return count * client.prompt_tokens + (client.grows_tokens or 0) * count * (count - 1) // 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a user may choose."""

    clients: Sequence[int] = (1, 4, 16)
    prompts: Sequence[int] = (256, 1024)
    answer_tokens: int = 64


def _concurrency(sizes: Sizes) -> list[Phase]:
    return [
        Phase("concurrency", _count(number, "client"), (Client(100, sizes.answer_tokens),) * number)
        for number in sizes.clients
    ]


def _prompts(sizes: Sizes) -> list[Phase]:
    return [
        Phase("prompts", f"prompt of {number:,} tokens", (Client(number, 8),))
        for number in sizes.prompts
    ]


def _prefix(_: Sizes) -> list[Phase]:
    client = Client(650, 8, "prefix seen before", "prefix seen first", shared_tokens=600)
    return [Phase("prefix", "shared prefix of 600 tokens", (client,))]


def _agent(sizes: Sizes) -> list[Phase]:
    agent = Client(1000, sizes.answer_tokens // 2, "later turns", "first turn", grows_tokens=100)
    return [
        Phase("agent", "agent", (agent,)),
        Phase("agent", "agent, changing system prompt", (replace(agent, marker=True),)),
    ]


def _mixed(sizes: Sizes) -> list[Phase]:
    answer = sizes.answer_tokens
    agent = Client(1500, answer, "agent", grows_tokens=200, pause_s=1.0)
    chats = (
        Client(200 + 100 * number, answer, "chats", grows_tokens=50, delay_s=number, pause_s=1.0)
        for number in range(3)
    )
    small = Client(40, 8, "small requests", delay_s=0.5, pause_s=1.0)
    return [Phase("mixed", "mixed day", (agent, *chats, small))]


def _cancel(sizes: Sizes) -> list[Phase]:
    stays = Client(100, sizes.answer_tokens, "who stays")
    leaves = (
        Client(400, 4 * sizes.answer_tokens, "who leave", delay_s=number / 8, hangs_up_after=pieces)
        for number, pieces in enumerate((0, 1, 5, 0, 1, 5, 0, 1))
    )
    return [
        Phase("cancel", "cancel storm", (stays, *leaves)),
        Phase("cancel", "after the storm", (replace(stays, kind=""),)),
    ]


_SCENARIOS: Final = {
    "concurrency": (_concurrency, "more and more clients at once"),
    "prompts": (_prompts, "longer and longer prompts"),
    "prefix": (_prefix, "prompts that begin alike"),
    "agent": (_agent, "a conversation that grows"),
    "mixed": (_mixed, "an agent, chats and small requests at once"),
    "cancel": (_cancel, "clients that hang up"),
}
SCENARIOS: Final = {name: words for name, (_, words) in _SCENARIOS.items()}
"""The scenarios, and what each is."""
QUICK: Final = ("concurrency", "prompts", "prefix", "cancel")
"""Those that are run unless others are chosen."""


def phases_of(
    scenarios: Sequence[str], sizes: Sizes, seconds: float, rounds: int
) -> tuple[Phase, ...]:
    """Return the phases of one round, so that all rounds take about ``seconds`` for one server. The
    order of the scenarios is always the same."""
    phases = [phase for name in _SCENARIOS if name in scenarios
              for phase in _SCENARIOS[name][0](sizes)]  # fmt: skip
    share = seconds / rounds / len(phases)
    return tuple(_limited(phase, share) for phase in phases)


def _limited(phase: Phase, seconds: float) -> Phase:
    most = max(1, math.ceil(_MOST_A_SECOND * seconds))

    def limited(client: Client) -> Client:
        turns = most if client.grows_tokens is None else min(most, _AGENT_TURNS)
        return replace(client, most_requests=max(turns, client.least_requests))

    return replace(phase, clients=tuple(map(limited, phase.clients)), seconds=seconds)


def in_order(count: int, round_number: int) -> list[int]:
    """Return in which order ``count`` servers are asked in a round: each is first in its turn."""
    first = round_number % count
    return [*range(first, count), *range(first)]


def text_of(seed: str, tokens: int, tokens_per_word: float) -> str:
    """Return words of about so many tokens. Another seed gives another text from its first words
    on, so that no server has its beginning in a cache."""
    count = max(1, round(tokens / tokens_per_word))
    chance = hashlib.shake_128(seed.encode()).digest(count)
    return " ".join(_WORDS[byte % len(_WORDS)] for byte in chance)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
