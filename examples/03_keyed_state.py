"""Keyed state: a few values per key, saved in the transaction that settles the event."""

from typing import Any

from redrive import App, Ctx, Event

app = App("accounts.db")
logins, alerts = app.log("logins"), app.log("alerts")


@app.on(logins, "login.*", key_by="user", start="first")
def watch_for_guessing(event: Event[Any], ctx: Ctx) -> None:
    if event.type == "login.succeeded":
        ctx.state.clear()  # an empty state is deleted
        return
    ctx.state["failures"] = ctx.state.get("failures", 0) + 1
    if ctx.state["failures"] == 3:
        ctx.emit(alerts, "account.locked", {"user": ctx.key})


if __name__ == "__main__":
    tries = [("ada", "failed"), ("bob", "failed"), ("ada", "failed"), ("bob", "succeeded"), ("ada", "failed")]
    logins.append_many({"type": f"login.{result}", "data": {"user": user}} for user, result in tries)
    app.run(until_idle=True)
    for alert in alerts.read():
        print(alert.type, alert.data["user"])
