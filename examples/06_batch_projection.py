"""A projection that takes a list: one statement for many events, and still one bad event stands alone."""

from collections import Counter
from typing import Any

from redrive import App, Event, Tx

app = App("views.db")
views = app.log("views")


@app.projection(views, "page.viewed", batch=True, tables={"pages": "url TEXT PRIMARY KEY, views INTEGER NOT NULL"})
def pages(events: list[Event[Any]], tx: Tx) -> None:
    counted = Counter(event.data["url"] for event in events)
    tx.executemany(
        "INSERT INTO pages VALUES (?, ?) ON CONFLICT (url) DO UPDATE SET views = pages.views + excluded.views",
        counted.items(),
    )


if __name__ == "__main__":
    visits = [{"url": "/"} if n % 3 else {"url": "/about"} for n in range(3000)]
    views.append_many({"type": "page.viewed", "data": visit} for visit in visits)
    views.append("page.viewed", {"link": "/oops"})  # a KeyError: the other 3,000 are applied all the same
    app.run(until_idle=True)
    with app.reader() as tx:
        print(dict(tx.execute("SELECT url, views FROM pages ORDER BY url").fetchall()))
