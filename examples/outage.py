"""An outage: one sink of three is down for a while, comes back weak, and nobody notices but itself.

    python examples/outage.py                one that comes back able to take 150 requests a second
    python examples/outage.py --unprotected  the same without breaker, limit and budget: the storm
    python examples/outage.py --svg FILE     both, as one picture

It needs `pip install 'redrive[http]'`; the three sinks are servers of its own, on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import tempfile
import time
from bisect import bisect_left
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
    gone: bool = True  # who is down takes no connections; False: it answers, with 503
    appended: list[tuple[str, str, float]] = field(default_factory=list)  # by the producer: id, key, and when it was
    arrived: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, list[float]] = field(default_factory=dict)
    order: dict[str, list[str]] = field(default_factory=dict)
    lags: dict[str, list[float]] = field(default_factory=dict)  # from when it was appended to its arrival
    unanswered: set[str] = field(default_factory=set)  # by the sink as it went, maybe: these may come twice
    peak: int = 0  # requests in the busiest second after the sink came back, wherever that begins
    recovered_after: float = 0.0
    letters: int = 0

    async def run(self, folder: Path) -> None:
        """Append events, take the sink down and up again, and wait until everything has arrived."""
        servers = {name: HttpServer() for name in ("crm", "warehouse", "search")}
        for server in servers.values():
            server.start()
        app = self._app(folder, servers)
        sick, door, began = servers["warehouse"], Door(), time.monotonic()
        sick.behave = door
        try:
            async with app.running():
                producer = asyncio.create_task(self._produce(app, began))
                await asyncio.sleep(self.down_at)
                self._take_down(sick, door)
                await asyncio.sleep(self.down_for)
                back_at, door.capacity = time.monotonic(), CAPACITY
                if self.gone:
                    sick.start()
                await producer
                await self._settled(app, servers)
            self._look(app, servers, began, back_at)
        finally:
            for server in servers.values():
                server.stop()
            app.close()

    def _take_down(self, sick: HttpServer, door: Door) -> None:
        if not self.gone:
            door.capacity = 0
            return
        sick.stop()
        # A connection carries one request at a time: of each, only the last one may have got no reply.
        last = {request.connection: request.headers for request in sick.requests}
        self.unanswered = {headers["ce-id"] for headers in last.values() if "ce-id" in headers}

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
        orders, total = app.log("orders"), round(self.rate * self.seconds)
        while len(self.appended) < total:
            now = time.monotonic() - began
            while (number := len(self.appended)) < min(total, now * self.rate):
                id, key = f"order-{number}", f"customer-{number % 50}"
                self.appended.append((id, key, time.monotonic() - began))  # a busy machine may be late itself
                await orders.append_async("order.placed", {"n": number}, key=key, id=id)
            await asyncio.sleep(0.01)

    async def _settled(self, app: App, servers: dict[str, HttpServer]) -> None:
        until = time.monotonic() + self.patience
        while time.monotonic() < until and not self._is_done(app, servers):  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    def _is_done(self, app: App, servers: dict[str, HttpServer]) -> bool:
        """Has everything arrived, and is nothing left that would be sent again?"""
        return all(len(ids(server)) == len(self.appended) for server in servers.values()) and not any(
            one.lag_events or one.retrying or one.waiting for one in app.operate().status()
        )

    def _look(self, app: App, servers: dict[str, HttpServer], began: float, back_at: float) -> None:
        sent = {id: at for id, _, at in self.appended}
        for name, server in servers.items():
            good = [
                request for request in server.requests if request.headers.get("ce-id") and not refused(server, request)
            ]
            self.arrived[name] = [request.at - began for request in good]
            self.refused[name] = [request.at - began for request in server.requests if refused(server, request)]
            self.order[name] = [request.headers["ce-id"] for request in good]
            self.lags[name] = [request.at - began - sent[request.headers["ce-id"]] for request in good]
        after = [one.at for one in servers["warehouse"].requests if one.method == "POST" and one.at >= back_at]
        self.peak = max((bisect_left(after, at + 1.0) - index for index, at in enumerate(after)), default=0)
        self.recovered_after = max(self.arrived["warehouse"], default=0.0) - (back_at - began)
        self.letters = sum(one.dead for one in app.operate().status())


class Door:
    """A server that takes so many requests a second and refuses the rest."""

    def __init__(self) -> None:
        self.capacity = math.inf
        self.seconds: Counter[int] = Counter()
        self.refused: set[int] = set()

    def __call__(self, request: Request) -> Reply:
        second = int(request.at)
        self.seconds[second] += 1
        if self.seconds[second] > self.capacity:
            self.refused.add(id(request))
            return Reply(503)
        return Reply(200)


def refused(server: HttpServer, request: Request) -> bool:
    """Was it answered with an error?"""
    return isinstance(server.behave, Door) and id(request) in server.behave.refused


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
        f"\n{len(story.appended)} events; the healthy sinks were at most "
        f"{max(story.lags['crm'] + story.lags['search']):.2f} s behind."
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
