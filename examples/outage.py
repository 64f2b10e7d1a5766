"""An outage: one sink of three is down for a while, comes back weak, and nobody notices but itself.

    python examples/outage.py                one that comes back able to take 150 requests a second
    python examples/outage.py --unprotected  the same without breaker, limit and budget: the storm
    python examples/outage.py --svg FILE     both, as one picture

It needs `pip install 'redrive[http]'`; the three sinks are servers of its own, on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from redrive import App, breaker, retry, webhook
from redrive.settings import Settings
from redrive.testing.web import HttpServer, Reply, Request

CAPACITY = 150  # requests a second that the sink can take when it is back; beyond it answers 503
LIMIT = 125  # a second; what a tenth of one saves up and the ten under way come on top, and no second has more than 150


@dataclass
class Story:
    """How long everything takes, and what came of it. Times in seconds from the beginning."""

    rate: float = 100.0
    down_for: float = 10.0
    protected: bool = True
    down_at: float = 2.0
    seconds: float = 20.0  # events are appended for so long
    patience: float = 60.0
    arrived: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, list[float]] = field(default_factory=dict)
    order: dict[str, list[str]] = field(default_factory=dict)
    lag: dict[str, float] = field(default_factory=dict)
    peak: int = 0  # requests in the busiest second after the sink came back
    recovered_after: float = 0.0
    letters: int = 0
    sent: int = 0

    async def run(self, folder: Path) -> None:
        """Append events, take the sink down and up again, and wait until everything has arrived."""
        servers = {name: HttpServer() for name in ("crm", "warehouse", "search")}
        for server in servers.values():
            server.start()
        app = self._app(folder, servers)
        sick, began = servers["warehouse"], time.monotonic()
        try:
            async with app.running():
                producer = asyncio.create_task(self._produce(app, began))
                await asyncio.sleep(self.down_at)
                sick.stop()
                await asyncio.sleep(self.down_for)
                back_at = time.monotonic()
                sick.behave = Bottleneck(sick)
                sick.start()
                await producer
                await self._settled(servers)
            self._look(app, servers, began, back_at)
        finally:
            for server in servers.values():
                server.stop()
            app.close()

    def _app(self, folder: Path, servers: dict[str, HttpServer]) -> App:
        settings = Settings() if self.protected else Settings(retry_budget=1e6)
        app = App(str(folder / "shop.db"), settings=settings)
        for name, server in servers.items():
            app.deliver(
                app.log("orders"),
                to=webhook(server.url, name=name, allow_private=True, probe_method="HEAD"),
                start="first",
                retry=retry(attempts=50, wait="1s", wait_max="1s" if not self.protected else "5s"),
                breaker=breaker(failures=5, cooldown="5s") if self.protected else None,
                limit=f"{LIMIT}/s" if self.protected else None,
                concurrency=10 if self.protected else 200,
            )
        return app

    async def _produce(self, app: App, began: float) -> None:
        orders = app.log("orders")
        while (now := time.monotonic() - began) < self.seconds:
            due = int(now * self.rate)
            while self.sent < due:
                await orders.append_async(
                    "order.placed", {"n": self.sent}, key=f"customer-{self.sent % 50}", id=f"order-{self.sent}"
                )
                self.sent += 1
            await asyncio.sleep(0.01)

    async def _settled(self, servers: dict[str, HttpServer]) -> None:
        until = time.monotonic() + self.patience
        while time.monotonic() < until and any(len(ids(server)) < self.sent for server in servers.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    def _look(self, app: App, servers: dict[str, HttpServer], began: float, back_at: float) -> None:
        for name, server in servers.items():
            good = [
                request for request in server.requests if request.headers.get("ce-id") and not refused(server, request)
            ]
            self.arrived[name] = [request.at - began for request in good]
            self.refused[name] = [request.at - began for request in server.requests if refused(server, request)]
            self.order[name] = [request.headers["ce-id"] for request in good]
            self.lag[name] = max(
                (request.at - began - int(request.headers["ce-id"].split("-")[1]) / self.rate for request in good),
                default=0.0,
            )
        posts = [request for request in servers["warehouse"].requests if request.method == "POST"]
        after = Counter(int(request.at - back_at) for request in posts if request.at >= back_at)
        self.peak = max(after.values(), default=0)
        self.recovered_after = max(self.arrived["warehouse"], default=0.0) - (back_at - began)
        self.letters = sum(one.dead for one in app.operate().status())


class Bottleneck:
    """A server that takes so many requests a second and refuses the rest."""

    def __init__(self, server: HttpServer) -> None:
        self.seconds: Counter[int] = Counter()
        self.refused: set[int] = set()
        self.server = server

    def __call__(self, request: Request) -> Reply:
        second = int(request.at)
        self.seconds[second] += 1
        if self.seconds[second] > CAPACITY:
            self.refused.add(id(request))
            return Reply(503)
        return Reply(200)


def refused(server: HttpServer, request: Request) -> bool:
    """Was it answered with an error?"""
    return isinstance(server.behave, Bottleneck) and id(request) in server.behave.refused


def ids(server: HttpServer) -> set[str]:
    """Which events have arrived."""
    return {
        request.headers["ce-id"]
        for request in server.requests
        if "ce-id" in request.headers and not refused(server, request)
    }


def picture(story: Story) -> str:
    """Requests that arrived, per second, as bars."""
    lines = []
    for name, times in story.arrived.items():
        counts = Counter(int(at) for at in times)
        lines.append(f"{name}")
        lines += [
            f"  {second:3d} s  {'█' * (counts[second] // 5)} {counts[second]}"
            for second in range(max(counts, default=0) + 1)
        ]
    return "\n".join(lines)


BAR, UNIT, LANE = 14, 0.4, 110  # pixels: the width of a second, the height of a request, that of a sink


def drawn(stories: list[Story]) -> str:
    """The stories below each other as SVG: what each sink took in green, what it had to refuse in red."""
    seconds = int(max(max(times) for story in stories for times in story.arrived.values())) + 1
    width, height = 110 + seconds * BAR, len(stories) * (3 * LANE + 40) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    top = 0
    for story in stories:
        title = "with breaker, limit and retry budget" if story.protected else "without"
        parts.append(f'<text x="100" y="{top + 24}" font-weight="bold">{title}: requests per second</text>')
        top += 30
        for name in story.arrived:
            parts += [_lane(story, name, top, width)]
            top += LANE
        top += 10
    parts += [f'<text x="{100 + at * BAR}" y="{height - 8}">{at} s</text>' for at in range(0, seconds, 5)]
    return "\n".join([*parts, "</svg>\n"])


def _lane(story: Story, name: str, top: int, width: int) -> str:
    floor, roof = top + LANE - 10, LANE - 10
    parts = [f'<text x="8" y="{floor}">{name}</text>']
    if name == "warehouse":
        left, long = 100 + story.down_at * BAR, story.down_for * BAR
        parts.append(f'<rect x="{left:g}" y="{top}" width="{long:g}" height="{roof}" fill="#eeeeee"/>')
        parts.append(f'<text x="{left + 8:g}" y="{top + 16}" fill="#777777">down</text>')
        line = f'x1="100" x2="{width}" y1="{floor - CAPACITY * UNIT:g}" y2="{floor - CAPACITY * UNIT:g}"'
        parts.append(f'<line {line} stroke="#777777" stroke-dasharray="4"/>')
        parts.append(f'<text x="8" y="{floor - CAPACITY * UNIT + 4:g}" fill="#777777">can take {CAPACITY}</text>')
    taken, refused = (Counter(map(int, times[name])) for times in (story.arrived, story.refused))
    for second in sorted({*taken, *refused}):
        left, low = 100 + second * BAR, float(floor)
        for count, colour in ((taken[second], "#2a7f4f"), (refused[second], "#c0392b")):
            tall = min(count * UNIT, low - top)  # a storm may be higher than the picture
            low -= tall
            parts.append(f'<rect x="{left}" y="{low:g}" width="{BAR - 2}" height="{tall:g}" fill="{colour}"/>')
    return "\n".join(parts)


def tell(story: Story) -> None:
    """What happened, in words."""
    print(picture(story))
    print(
        f"\n{story.sent} events; the healthy sinks were at most "
        f"{max(story.lag['crm'], story.lag['search']):.2f} s behind."
    )
    print(
        f"warehouse was down for {story.down_for:.0f} s, met at most {story.peak} requests a second when it was back,"
    )
    print(f"and had everything {story.recovered_after:.1f} s later; dead letters: {story.letters}.")


def main() -> None:
    """Run it and say what happened."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--unprotected", action="store_true")
    parser.add_argument("--svg", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    stories = [Story(), Story(protected=False)] if chosen.svg else [Story(protected=not chosen.unprotected)]
    for story in stories:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(story.run(Path(folder)))
        tell(story)
    if chosen.svg:
        chosen.svg.write_text(drawn(stories), encoding="utf-8")


if __name__ == "__main__":
    main()
