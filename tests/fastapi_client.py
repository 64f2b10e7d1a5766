"""A client of examples/fastapi_app.py: posts orders, restarts the server in between, and prints what came of it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import httpx


async def use(api: Any) -> dict[str, Any]:
    positions, refused = [], []
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=api), base_url="http://shop") as client:
        for start in range(2):
            async with api.router.lifespan_context(api):
                for customer in ("ada", "bob"):
                    answer = await client.post("/orders", json={"customer": customer, "cents": 100 + start})
                    positions.append(answer.json()["position"])
                refused.append((await client.post("/orders", json={"customer": "ada", "cents": -5})).status_code)
        async with api.router.lifespan_context(api):
            revenue = (await client.get("/revenue")).json()
            while sum(revenue.values()) < 402:  # the last ones are applied in the background
                revenue = (await client.get("/revenue")).json()
    return {"positions": positions, "refused": refused, "revenue": revenue}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(sys.argv[1]).parent))
    from fastapi_app import api

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    result = asyncio.run(use(api))
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    sys.stdout.write(json.dumps({**result, "signals_untouched": before == after}))
