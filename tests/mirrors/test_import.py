"""Letters brought back from a mirror: those that were open are letters again, and nobody else is touched."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Event, Reject, Tx, mirrors
from redrive.mirrors.folders import paths
from redrive.mirrors.reading import read
from redrive.redis import LetterIndex, LetterStream, Stream
from redrive.replay import bringing
from redrive.replay.bringing import Brought, bring_back
from redrive.replay.explain import explain
from redrive.testing import Harness
from tests.mirrors.conftest import Shop


def bring(shop: Any, place: Any) -> Brought:
    desk = shop.app.operate("ada")
    return bring_back(desk.operator, desk.letters, read(str(place)), "the database is gone")


@pytest.fixture
def gone(tmp_path: Path) -> Iterator[Any]:
    """A shop whose store is lost; what its mirror holds is in the folder."""
    shop = Shop(None, mirrors.files(tmp_path / "dead", name="dead-files"))
    yield shop
    shop.harness.close()


def test_letters_of_a_store_that_is_gone_can_be_replayed(shops: Any, gone: Any, tmp_path: Path) -> None:
    gone.bad = {1, 2}
    ids = [gone.order(n, key=key).id for n, key in ((1, "ada"), (2, "bob"), (3, "ada"), (4, "eve"))]
    gone.run()
    gone.desk.edit(2, {"n": 5}, "it was 5")
    gone.run()
    shop = shops()
    shop.run()
    assert bring(shop, tmp_path / "dead").imported == 3
    letters = shop.harness.letters()
    assert [(one.event_id, one.state, one.key) for one in letters] == [
        (ids[0], "dead", "ada"), (ids[1], "dead", "bob"), (ids[2], "retrying", "ada"),
    ]  # fmt: skip
    assert (letters[0].error_message, letters[0].attempts) == ("no charge for 1", 1)
    assert [one.outcome for one in shop.desk.history(letters[0].id)] == ["imported"]
    shop.run()
    assert [one.state for one in shop.harness.letters()] == ["dead", "dead", "retrying"], "nothing runs by itself"
    shop.harness.replay()
    assert [one.state for one in shop.harness.letters()] == ["applied", "applied", "applied"]
    assert bring(shop, tmp_path / "dead").imported == 0


def test_an_import_touches_nobody_else(shops: Any, gone: Any, tmp_path: Path) -> None:
    gone.bad = {1}
    gone.order(1, kind="order.audited")
    gone.run()
    shop = shops()
    seen = []

    @shop.app.on(shop.orders, start="first")
    def watch(event: Event[Any], ctx: Any) -> None:
        seen.append(event.data["n"])

    shop.order(7)
    shop.run()
    assert bring(shop, tmp_path / "dead").imported == 2
    shop.order(8)
    shop.run()
    shop.harness.replay()
    assert seen == [7, 8]
    states = {one.subscription: one.state for one in shop.harness.letters()}
    assert states == {"charge": "applied", "audit": "dead", "watch": "discarded"}
    (imported,) = [one.event_id for one in shop.harness.letters() if one.subscription == "watch"]
    runtime = shop.app.runtime
    fates = {fate.subscription: fate for fate in explain(runtime.store, runtime.env, imported, None).fates}
    assert fates["watch"].fate == "discarded"
    assert "ada imported the event for another subscription" in fates["watch"].why


def test_a_running_owner_takes_over_what_is_imported(shops: Any, gone: Any, tmp_path: Path) -> None:
    gone.bad = {1}
    gone.order(1)
    gone.run()
    shop = shops()
    shop.order(7)
    shop.run()  # the engine stays alive between these calls
    bring(shop, tmp_path / "dead")
    shop.bad = {1}
    shop.order(8)
    shop.order(9, key="bob")
    shop.run()
    assert [(one.state, one.reason) for one in shop.harness.letters()] == [
        ("dead", "rejected"), ("retrying", "behind_head"),
    ]  # fmt: skip


def test_import_tells_how_far_it_is(
    backend: str | None, gone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bringing, "CHUNK", 2)
    gone.bad = set(range(5))
    for n in range(5):
        gone.order(n, key=f"k{n}")
    gone.run()
    shop = Shop(backend)
    shop.run()
    desk, told = shop.app.operate("ada"), []
    entries = read(str(tmp_path / "dead"))
    bring_back(desk.operator, desk.letters, entries, "gone", lambda done, total: told.append((done, total)))
    shop.harness.close()
    assert told == [(2, 5), (4, 5), (5, 5)]


def test_partitions_share_what_is_imported(backend: str | None, gone: Any, tmp_path: Path) -> None:
    gone.bad = set(range(20))
    for n in range(20):
        gone.order(n, key=f"k{n % 5}")
    gone.run()
    app, handled = App("/nonexistent/x.db", name="shop"), []

    @app.on(app.log("orders"), start="first", partitions=3)
    def charge(event: Event[Any], ctx: Any) -> None:
        handled.append((event.key, event.data["n"]))

    with Harness(app, backend) as harness:
        harness.append("orders", "order.placed", {"n": 100}, key="k1", id="a new one")
        harness.run_until_idle()
        desk = app.operate("ada")
        assert bring_back(desk.operator, desk.letters, read(str(tmp_path / "dead")), "gone").imported == 20
        harness.append("orders", "order.placed", {"n": 101}, key="k1", id="another new one")
        harness.run_until_idle()
        harness.replay()
        for key in range(5):
            mine = [n for found, n in handled if found == f"k{key}"]
            assert mine == [*([100] if key == 1 else []), *range(key, 20, 5), *([101] if key == 1 else [])]
        assert [verdict for verdict in desk.verify() if not verdict.sound] == []


def test_what_was_to_be_retried_is_retried_here(shops: Any, gone: Any, tmp_path: Path) -> None:
    """A letter that waited for its next attempt does so here, and goes on by itself."""
    gone.broken = {1}
    gone.order(1)
    gone.run()
    assert [one.state for one in gone.harness.letters()] == ["retrying"]
    shop = shops()
    shop.run()
    assert bring(shop, tmp_path / "dead").imported == 1
    shop.run()
    assert [(one.state, one.attempts) for one in shop.harness.letters()] == [("applied", 2)]


def test_in_total_order_an_imported_letter_holds_back_what_comes_later(backend: str | None, tmp_path: Path) -> None:
    def make(store: str | None, *to: Any) -> tuple[App, Harness]:
        app = App("/nonexistent/x.db", name="shop")

        @app.on(app.log("orders"), order="total", start="first")
        def charge(event: Event[Any], ctx: Any) -> None:
            if event.data == 1:
                raise Reject("no")

        if to:
            app.mirror(to=to)
        return app, Harness(app, store)

    _, harness = make(None, mirrors.files(tmp_path, name="dead-files"))
    with harness:
        harness.append("orders", "order.placed", 1, key="ada", id="the lost one")
        harness.run_until_idle()
    app, harness = make(backend)
    with harness:
        harness.run_until_idle()
        desk = app.operate("ada")
        assert bring_back(desk.operator, desk.letters, read(str(tmp_path)), "gone").imported == 1
        harness.append("orders", "order.placed", 2, key="bob")
        harness.run_until_idle()
        assert [verdict for verdict in desk.verify() if not verdict.sound] == []
        (status,) = desk.status()
        assert (status.applied, status.dead) == (0, 1)


def test_what_is_here_is_left_to_its_subscription_but_for_an_edit_that_it_lacks(shops: Any, tmp_path: Path) -> None:
    shop = shops(mirrors.files(tmp_path, name="dead-files"))
    shop.bad = {1, 2}
    for n, key in ((1, "ada"), (2, "bob")):
        shop.order(n, key=key)
    shop.run()
    shop.harness.app.operate("ada").letters.edit(2, {"n": 3}, "it was 3")
    shop.run()
    shop.desk.discard([1], "not needed")
    brought = bring(shop, tmp_path)
    assert (brought.imported, brought.edited) == (0, 0)
    assert [why for _, why in brought.skipped] == ["it is discarded here, as letter 1", "it is letter 2 here"]


def test_an_edit_that_only_the_mirror_has_is_taken_over(shops: Any, gone: Any, tmp_path: Path) -> None:
    gone.bad = {1}
    event = gone.order(1)
    gone.run()
    gone.desk.edit(1, {"n": 3}, "it was 3")
    gone.run()
    shop = shops()
    shop.bad = {1}
    shop.harness.append(shop.orders, "order.placed", {"n": 1}, key="ada", id=event.id)
    shop.run()
    assert bring(shop, tmp_path / "dead").edited == 1
    shop.harness.replay()
    assert [one.state for one in shop.harness.letters()] == ["applied"]


def test_who_is_not_here_is_told(shops: Any, gone: Any, tmp_path: Path) -> None:
    gone.bad = {1}
    gone.order(1)
    gone.run()
    gone.harness.app.operate("ada").subscriptions.rename("charge", "charge2")
    shop = shops()
    brought = bring(shop, tmp_path / "dead")
    assert brought.imported == 0
    assert [why for _, why in brought.skipped] == ["no subscription 'charge' reads 'orders' here"]


def test_what_is_settled_in_the_mirror_stays_settled(shops: Any, gone: Any, tmp_path: Path) -> None:
    gone.bad = {1, 2}
    gone.order(1, key="ada")
    gone.order(2, key="bob")
    gone.run()
    gone.bad = {1}
    gone.harness.replay()
    gone.desk.discard([1], "not needed")
    gone.run()
    shop = shops()
    shop.run()
    brought = bring(shop, tmp_path / "dead")
    assert (brought.imported, brought.settled, brought.skipped) == (0, 2, [])


def test_a_damaged_line_costs_its_letter_and_no_other(shops: Any, gone: Any, tmp_path: Path) -> None:
    gone.bad = {1, 2, 3}
    for n in (1, 2, 3):
        gone.order(n, key=str(n))
    gone.run()
    (path,) = paths(tmp_path / "dead")
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first[:40] + b"?" + first[41:] + b"".join(rest))
    shop = shops()
    shop.run()
    entries = [one for one in read(str(path)) if isinstance(one, mirrors.Entry)]
    desk = shop.app.operate("ada")
    assert bring_back(desk.operator, desk.letters, entries, "gone").imported == 2


@pytest.mark.parametrize("key", ["orders:dlq", "shop:letters"])
def test_streams_and_indexes_are_brought_back_as_files_are(shops: Any, server: Any, valkey_url: str, key: str) -> None:
    gone = Shop(
        None, LetterStream(valkey_url, name="dead-stream"), LetterIndex(valkey_url, "shop:letters", name="dead-index")
    )
    gone.bad = {1}
    event = gone.order(1)
    gone.run()
    gone.harness.close()
    shop = shops()
    shop.run()
    assert bring(shop, f"{valkey_url}/{key}").imported == 1
    assert [one.event_id for one in shop.harness.letters()] == [event.id]
    shop.harness.replay()
    assert [one.state for one in shop.harness.letters()] == ["applied"]


def on_a_stream(url: str, given: list[Any], *to: Any) -> tuple[App, Harness]:
    app = App("/nonexistent/x.db", name="shop")
    app.projection(Stream(url, "orders", partitions=1), name="charge")(lambda event, tx: given.append(event.data))
    if to:
        app.mirror(to=to)
    return app, Harness(app)


def test_what_was_no_event_when_it_came_is_told_and_its_bytes_are_in_the_mirror(
    server: Any, valkey_url: str, tmp_path: Path
) -> None:
    make = partial(on_a_stream, valkey_url, [])
    server.xadd("orders", {"data": "{broken"})
    with make(mirrors.files(tmp_path, name="dead-files"))[1] as harness:
        harness.run_until_idle()
    server.delete("orders")
    app, harness = make()
    with harness:
        harness.run_until_idle()
        desk, found = app.operate("ada"), list(read(str(tmp_path)))
        brought = bring_back(desk.operator, desk.letters, found, "gone")
    assert [why for _, why in brought.skipped] == [
        "it was no event when it came; what came is in the mirror, as base64 in its data"
    ]
    assert base64.b64encode(b"{broken") in bytes(found[0].event)


def test_an_edit_of_what_was_no_event_is_taken_over_once_the_broker_gave_it_again(
    server: Any, valkey_url: str, tmp_path: Path
) -> None:
    given: list[Any] = []

    make = partial(on_a_stream, valkey_url, given)
    server.xadd("orders", {"data": "{broken"})
    app, harness = make(mirrors.files(tmp_path, name="dead-files"))
    with harness:
        harness.run_until_idle()
        app.operate("ada").letters.edit(1, {"n": 1}, "it was 1")
        harness.run_until_idle()
    app, harness = make()
    with harness:
        harness.run_until_idle()
        desk = app.operate("ada")
        assert bring_back(desk.operator, desk.letters, read(str(tmp_path)), "gone").edited == 1
        harness.replay()
    assert given == [{"n": 1}]


def test_what_was_no_event_is_told_also_if_it_waited_behind_another(
    server: Any, valkey_url: str, tmp_path: Path
) -> None:
    make = partial(on_a_stream, valkey_url, [])
    for _ in range(2):
        server.xadd("orders", {"key": "ada", "data": "{broken"})
    with make(mirrors.files(tmp_path, name="dead-files"))[1] as harness:
        harness.run_until_idle()
    server.delete("orders")
    app, harness = make()
    with harness:
        harness.run_until_idle()
        desk = app.operate("ada")
        brought = bring_back(desk.operator, desk.letters, read(str(tmp_path)), "gone")
    assert [why for _, why in brought.skipped] == [
        "it was no event when it came; what came is in the mirror, as base64 in its data"
    ] * 2


@pytest.mark.parametrize("with_id", [True, False])
def test_what_a_broker_gives_again_after_an_import_is_recognised(
    server: Any, valkey_url: str, backend: str | None, tmp_path: Path, with_id: bool
) -> None:
    def make(store: str | None, *to: Any) -> tuple[App, Harness]:
        app = App("/nonexistent/x.db", name="shop")

        @app.projection(Stream(valkey_url, "orders", partitions=1), tables={"charged": "n INTEGER PRIMARY KEY"})
        def charge(event: Event[Any], tx: Tx) -> None:
            if event.data == 1:
                raise Reject("no")
            tx.execute("INSERT INTO charged VALUES (:n)", {"n": event.data})

        if to:
            app.mirror(to=to)
        return app, Harness(app, store)

    for n in (1, 2):
        fields = {"type": "order.placed", "key": str(n), "data": str(n)} | ({"id": f"o{n}"} if with_id else {})
        server.xadd("orders", fields)
    _, harness = make(None, mirrors.files(tmp_path, name="dead-files"))
    with harness:
        harness.run_until_idle()
    app, harness = make(backend)
    with harness:
        with server.pipeline() as pipe:
            kept = server.dump("orders")
            pipe.delete("orders").execute()
        harness.run_until_idle()
        desk = app.operate("ada")
        assert bring_back(desk.operator, desk.letters, read(str(tmp_path)), "gone").imported == 1
        (imported,) = harness.letters()
        history = desk.letters.history(imported.id)
        server.restore("orders", 0, kept)
        harness.advance("1m")
        assert harness.query("SELECT n FROM charged") == [(2,)]
        assert harness.letters() == [imported], "not even a failed attempt was added to it"
        assert desk.letters.history(imported.id) == history
        assert [verdict for verdict in desk.verify() if not verdict.sound] == []
