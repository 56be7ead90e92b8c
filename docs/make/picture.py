"""Draw ``docs/start/picture.svg``: ``lmx top`` while one of two models is killed.

What the picture shows happened: it runs an lmx with two copies of the demo model, streams an answer
from each, kills one of them in the middle, and draws what ``top`` and the two clients saw, a frame
each half second. The frames are one SVG that changes by a CSS animation, without a script.
"""

import asyncio
import io
import re
import sys
import time
from pathlib import Path
from typing import Final

from rich.align import Align
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from lmx.protocol.messages.control import EventList, GetEvents, KillModel
from lmx.protocol.messages.status import GetStatus, Status
from lmx.protocol.token_rates import TokenRates
from lmx.supervisor.cli.views.top import top_frame
from tests.support.rigs.rig import PATIENT, Rig, Stream, ask, http, rig

PICTURE: Final = Path(__file__).resolve().parents[1] / "start" / "picture.svg"
_WIDTH, _TOP_HEIGHT, _PANEL_HEIGHT = 108, 13, 9
_FRAME_S: Final = 0.5
_FRAMES: Final = 28
_KILL_AT: Final = 9
_END_S: Final = 3.0
"""How long the last frame stays before the picture begins again."""
_PROMPT: Final = "Write a long story about a lighthouse keeper and the sea."
_BODY: Final = """<g class="frame" style="animation-delay:{{delay}}s">{backgrounds}{matrix}</g>"""


def main() -> None:
    """Run lmx with the folder of the demo model that the command line names, and draw."""
    source = sys.argv[1]
    models = [{"id": name, "source": source, "context_length": 2048} for name in ("story", "agent")]
    with rig({"models": models, "timing": PATIENT | {"shutdown_grace_s": 1.0}}) as lmx:
        for name in ("story", "agent"):
            lmx.wait_state(name, "ready", deadline_s=120)
        frames = asyncio.run(_watch(lmx))
    PICTURE.write_text(_animated(frames))


async def _watch(lmx: Rig) -> list[RenderableType]:
    rates = TokenRates()
    frames: list[RenderableType] = []
    async with http() as session:
        streams = {
            name: Stream(session, lmx.url, ask(name, _PROMPT, max_tokens=1500, temperature=0.7))
            for name in ("story", "agent")
        }
        began_s = time.time()
        for stream in streams.values():
            await stream.has_text(1)
        commands = ["$ lmx top"]
        for number in range(_FRAMES):
            if number == _KILL_AT:
                commands.append("$ lmx kill agent")
                await asyncio.to_thread(lmx.ask, KillModel("agent"))
            status: Status = await asyncio.to_thread(lmx.ask, GetStatus())
            listed: EventList = await asyncio.to_thread(lmx.ask, GetEvents(0, 2000))
            events = [event for event in listed.events if event.at_s > began_s]
            rates.take(status.status.workers, time.monotonic())
            top = top_frame(status.status, rates, events, (_WIDTH, _TOP_HEIGHT), time.time())
            panels = [_panel(name, stream) for name, stream in streams.items()]
            above = Align(top, vertical="top", height=_TOP_HEIGHT)
            frames.append(Group(Text(commands[-1], style="bold"), above, Columns(panels)))
            await asyncio.sleep(_FRAME_S)
        for stream in streams.values():
            await stream.hang_up()
    return frames


def _panel(name: str, stream: Stream) -> Panel:
    width = _WIDTH // 2 - 1
    lines = Text(" ".join(stream.text.split())).wrap(Console(width=width - 4), width - 4)
    room = _PANEL_HEIGHT - 2 - 2 * len(stream.errors)
    shown = Text("\n").join(lines[-room:])
    for error in stream.errors:
        shown.append(f"\nerror: {error['code']}", style="bold red")
    return Panel(shown, title=f"a client of {name}", width=width, height=_PANEL_HEIGHT)


def _animated(frames: list[RenderableType]) -> str:
    height = 1 + _TOP_HEIGHT + _PANEL_HEIGHT
    total_s = len(frames) * _FRAME_S + _END_S
    share = 100 * _FRAME_S / total_s
    groups, styles = [], []
    for number, frame in enumerate(frames):
        console = Console(
            record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True, highlight=False
        )
        console.print(frame)
        name = f"f{number}"
        drawn = console.export_svg(code_format="{styles}\x00" + _BODY, unique_id=name)
        style, body = drawn.split("\x00")
        last = number == len(frames) - 1
        # Rich's clips are not drawn here; its lines are cut already.
        body = re.sub(r' clip-path="[^"]*"', "", body)
        styles.append(style + (f".frame.{name}{{animation-name:stay}}" if last else ""))
        # A negative delay: the animation is under way as if it had begun so long ago.
        delay_s = number * _FRAME_S - total_s
        groups.append(body.replace("{delay}", f"{delay_s:g}").replace('"frame"', f'"frame {name}"'))
    width_px, height_px = _WIDTH * 12.2 + 24, height * 24.4 + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width_px:.0f} {height_px:.0f}">\n'
        "<title>lmx top: one model is killed, the other's stream continues</title>\n<style>\n"
        "text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:20px}\n"
        f".frame{{visibility:hidden;animation:show {total_s:g}s infinite}}\n"
        f"@keyframes show{{0%{{visibility:visible}}{share:.3f}%,100%{{visibility:hidden}}}}\n"
        f"@keyframes stay{{0%{{visibility:visible}}{share + 100 * _END_S / total_s:.3f}%,100%"
        "{visibility:hidden}}\n" + "\n".join(styles) + "\n</style>\n"
        f'<rect width="{width_px:.0f}" height="{height_px:.0f}" rx="10" fill="#292929"/>\n'
        '<g transform="translate(12,12)">\n' + "\n".join(groups) + "\n</g>\n</svg>\n"
    )


if __name__ == "__main__":
    main()
