"""The thinnest path through all layers: append, project, handle, park, emit."""

from __future__ import annotations

from pathlib import Path

from redrive import App, Reject, retry


def test_an_event_is_projected_handled_and_a_failing_one_holds_its_key(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"))
    orders, receipts = app.log("orders"), app.log("receipts")

    @app.projection(orders, tables={"revenue": "key TEXT PRIMARY KEY, cents INTEGER NOT NULL"}, retry=retry(attempts=1))
    def revenue(event, tx):  # type: ignore[no-untyped-def]
        if event.data["cents"] < 0:
            raise Reject("negative")
        tx.execute(
            "INSERT INTO revenue VALUES (:k, :c) ON CONFLICT (key) DO UPDATE SET cents = cents + excluded.cents",
            {"k": event.key, "c": event.data["cents"]},
        )

    @app.on(orders, start="first")
    async def receipt(event, ctx):  # type: ignore[no-untyped-def]
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        ctx.emit(receipts, "receipt.sent", {"n": ctx.state["n"]})

    for key, cents in [("a", 1), ("b", 2), ("a", -3), ("a", 4), ("b", 5)]:
        orders.append("order.placed", {"cents": cents}, key=key)
    app.run(until_idle=True)
    with app.reader() as tx:
        assert tx.execute("SELECT * FROM revenue ORDER BY key").fetchall() == [("a", 1), ("b", 7)]
        letters = tx.execute("SELECT position, state, reason FROM redrive_letters ORDER BY position").fetchall()
    assert letters == [(3, "dead", "rejected"), (4, "retrying", "behind_head")]
    per_key = [(event.key, event.data["n"]) for key in "ab" for event in receipts.read_key(key)]
    assert per_key == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)]
    app.close()
