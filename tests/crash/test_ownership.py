"""One owner at a time: a zombie that wakes up commits nothing, a second process stands by and takes over."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import Child, Zygote, wait_until
from worker_app import OF_HANDLERS, OF_PROJECTIONS
from world import World

from redrive import App
from redrive.observe.signals import LeaseTaken
from redrive.testing.servers import Databases

EVERYBODY = {*OF_PROJECTIONS, *OF_HANDLERS}
SHORT = {"REDRIVE_LEASE": "500ms"}
# Where a worker has read or called, or just committed, and holds no lock.
PLACES = (
    "lease.committed:1", "lease.committed:4", "batch.read:1", "batch.read:3", "batch.committed:2", "letter.committed:1",
    "round.called:1", "round.called:3", "round.committed:2",
)  # fmt: skip
SETTLED = "CREATE TRIGGER settled AFTER UPDATE OF position, applied, ignored ON redrive_progress"


def is_stopped(child: Child) -> bool:
    """Is it asleep by SIGSTOP?"""
    return Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def owners(world: World) -> set[str]:
    return {owner for (owner,) in world.rows("SELECT owner FROM redrive_progress")}


@pytest.mark.parametrize("place", PLACES)
def test_a_worker_that_sleeps_longer_than_its_lease_commits_nothing(
    place: str, zygote: Zygote, tmp_path: Path, store: str | None
) -> None:
    world = World(zygote, tmp_path, env=SHORT, store=store)
    assert world.producer(24).wait() == 0
    zombie = world.worker(stop_at=place, heard="zombie")
    wait_until(lambda: is_stopped(zombie), what=f"{place} is reached")
    owned = {(line["subscription"], line["epoch"]) for line in world.signals("LeaseTaken", "zombie")}
    heir = world.worker(heard="heir")
    wait_until(lambda: {line["subscription"] for line in world.signals("LeaseTaken", "heir")} == EVERYBODY)
    wait_until(world.is_drained)
    before = world.durable_state()
    zombie.signal(signal.SIGCONT)
    # It may have taken more than it was heard of before it fell asleep.
    wait_until(lambda: owned <= {(one["subscription"], one["epoch"]) for one in world.signals("LeaseLost", "zombie")})
    assert world.durable_state() == before
    for worker in (zombie, heir):
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.said
    world.check()


@pytest.mark.parametrize("place", ["batch.read:1", "batch.read:4", "round.called:1", "round.called:2"])
def test_a_worker_that_was_robbed_in_its_sleep_settles_nothing_before_it_owns_it_again(
    place: str, zygote: Zygote, tmp_path: Path, store: str | None
) -> None:
    """Progress is where the sleeper left it, only the epoch has moved: as after an owner that did nothing."""
    world = World(zygote, tmp_path, env=SHORT, store=store)
    assert world.producer(12).wait() == 0
    note = "BEGIN INSERT INTO settlings VALUES (NEW.epoch); END"
    if store is not None:
        noted = note.replace("END", "RETURN NULL; END")
        world.change(f"CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS '{noted}'")
        note = "FOR EACH ROW EXECUTE FUNCTION noted()"
    world.change("CREATE TABLE settlings (epoch INTEGER)", f"{SETTLED} {note}")
    sleeper = world.worker(stop_at=place, heard="sleeper")
    wait_until(lambda: is_stopped(sleeper), what=f"{place} is reached")
    world.change("UPDATE redrive_progress SET epoch = epoch + 1, owner = NULL, lease_until = 0")
    sleeper.signal(signal.SIGCONT)
    wait_until(world.is_drained)
    sleeper.signal(signal.SIGTERM)
    assert sleeper.wait() == 0, sleeper.said
    stolen = {(line["subscription"], line["epoch"]) for line in world.signals("LeaseLost", "sleeper")}
    assert stolen == {(name, 1) for name in EVERYBODY}
    assert set(world.rows("SELECT DISTINCT epoch FROM settlings")) <= {(1,), (3,)}, "nobody settled as the thief"
    world.check()


def test_a_second_process_stands_by_and_takes_over_at_once_when_the_owner_is_killed(
    zygote: Zygote, tmp_path: Path, store: str | None
) -> None:
    world = World(zygote, tmp_path, env={"REDRIVE_LEASE": "10m"}, store=store)  # nobody waits for it to lapse
    owner = world.worker(heard="owner")
    wait_until(lambda: len(world.signals("LeaseTaken", "owner")) == len(EVERYBODY))
    heir = world.worker(heard="heir")
    assert world.producer(30).wait() == 0
    wait_until(world.is_drained)
    assert world.signals("LeaseTaken", "heir") == []
    owner.kill()
    wait_until(lambda: len(world.signals("LeaseTaken", "heir")) == len(EVERYBODY))
    assert all(line["unclean"] is False for line in world.signals("LeaseTaken", "heir")), "nothing was in flight"
    assert world.producer(30).wait() == 0
    wait_until(world.is_drained)
    heir.signal(signal.SIGTERM)
    assert heir.wait() == 0
    world.check()


def test_a_second_process_takes_over_at_once_when_the_owner_stops_gracefully(
    zygote: Zygote, tmp_path: Path, store: str | None
) -> None:
    world = World(zygote, tmp_path, env={"REDRIVE_LEASE": "10m"}, store=store)  # far beyond anybody's patience
    owner = world.worker(heard="owner")
    wait_until(lambda: len(world.signals("LeaseTaken", "owner")) == len(EVERYBODY))
    heir = world.worker(heard="heir")
    producer = world.producer(60)
    wait_until(lambda: world.acked > 10)
    owner.signal(signal.SIGTERM)
    wait_until(lambda: len(world.signals("LeaseTaken", "heir")) == len(EVERYBODY))
    assert owner.wait() == 0
    assert producer.wait() == 0
    wait_until(world.is_drained)
    assert {line["unclean"] for line in world.signals("LeaseTaken", "heir")} == {False}
    heir.signal(signal.SIGTERM)
    assert heir.wait() == 0
    world.check()


def test_a_worker_asleep_inside_a_transaction_still_owns_it_and_nothing_is_doubled(
    zygote: Zygote, tmp_path: Path
) -> None:
    """It holds the write lock, so nobody can take over: whoever comes waits, and halts if it takes too long."""
    world = World(zygote, tmp_path, env=SHORT | {"REDRIVE_BUSY_TIMEOUT": "50ms"})
    assert world.producer(20).wait() == 0
    world.drain()
    world.producer(20).wait()
    sleeper = world.worker(stop_at="batch.called:2", heard="sleeper")
    wait_until(lambda: is_stopped(sleeper))
    heir = world.worker(heard="heir")
    wait_until(lambda: heir.ended or world.signals("Halted", "heir"))
    sleeper.signal(signal.SIGCONT)
    wait_until(world.is_drained)
    for worker in (sleeper, heir):
        worker.signal(signal.SIGTERM)
        worker.wait()
    world.check()


def test_the_server_ends_the_transaction_of_a_worker_that_fell_asleep_in_it(
    zygote: Zygote, tmp_path: Path, postgres: Databases
) -> None:
    """Else its rows would stay locked for as long as it sleeps, and nobody could take over."""
    url = postgres.make()
    world = World(zygote, tmp_path, env=SHORT | {"REDRIVE_BUSY_TIMEOUT": "1s"}, store=url)
    assert world.producer(20).wait() == 0
    world.drain()
    assert world.producer(20).wait() == 0
    sleeper = world.worker(stop_at="batch.called:2", heard="sleeper")
    wait_until(lambda: is_stopped(sleeper))
    heir = world.worker(heard="heir")
    wait_until(world.is_drained, what="the heir has done it all while the other sleeps")
    before = world.durable_state()
    sleeper.signal(signal.SIGCONT)
    wait_until(lambda: world.signals("LeaseLost", "sleeper") or world.signals("Halted", "sleeper"))
    assert world.durable_state() == before
    for worker in (sleeper, heir):
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.said
    world.check()
    postgres.drop(url)


def told(world: World, kind: str, heard: str) -> set[tuple[str, int]]:
    """Of which subscriptions and epochs one has heard that."""
    return {(line["subscription"], line["epoch"]) for line in world.signals(kind, heard)}


def test_twenty_zombies_wake_up_and_commit_nothing(zygote: Zygote, tmp_path: Path, postgres: Databases) -> None:
    """Each falls asleep with the leases of the one before it; the last one does it all, then all of them wake up."""
    url = postgres.make()
    world, dice = World(zygote, tmp_path, env=SHORT, store=url), random.Random(0)
    zombies: list[Child] = []
    for number in range(20):
        assert world.producer(4).wait() == 0
        place = dice.choice(PLACES)
        zombies.append(world.worker(stop_at=place, heard=f"zombie {number}"))
        wait_until(lambda: is_stopped(zombies[-1]), what=f"number {number} falls asleep at {place}")
    heir = world.worker(heard="heir")
    wait_until(lambda: {line["subscription"] for line in world.signals("LeaseTaken", "heir")} == EVERYBODY)
    wait_until(world.is_drained)
    world.check()
    before = world.durable_state(owned=False)
    everybody = [f"zombie {number}" for number in range(20)]
    for zombie in zombies:
        zombie.signal(signal.SIGCONT)
    for heard, zombie in zip(everybody, zombies, strict=True):
        owned = told(world, "LeaseTaken", heard)
        assert owned, "it owned something when it fell asleep"
        wait_until(lambda: owned <= told(world, "LeaseLost", heard))  # noqa: B023
        zombie.signal(signal.SIGTERM)
    assert world.durable_state(owned=False) == before
    epochs = "SELECT s.name, p.epoch FROM redrive_progress p JOIN redrive_subscriptions s ON s.id = p.subscription"
    taken = lambda: set[Any]().union(*(told(world, "LeaseTaken", heard) for heard in (*everybody, "heir")))  # noqa: E731
    wait_until(lambda: {*world.rows(epochs)} <= taken(), what="whoever owns anything took it, in an epoch of its own")
    for zombie in zombies:  # they have had their signal
        assert zombie.wait() == 0, zombie.said
    heir.signal(signal.SIGTERM)
    assert heir.wait() == 0, heir.said
    world.check()
    postgres.drop(url)


def test_an_owner_on_another_machine_is_replaced_when_its_lease_is_over(
    zygote: Zygote, tmp_path: Path, postgres: Databases, record_property: Callable[[str, str], None]
) -> None:
    """Nobody here can see that its process is dead. By the clock of the server, which leases go by."""
    url = postgres.make()
    world = World(zygote, tmp_path, env={"REDRIVE_LEASE": "2s"}, store=url)
    owner = world.worker(heard="owner", machine="another")
    wait_until(lambda: len(world.signals("LeaseTaken", "owner")) == len(EVERYBODY))
    heir = world.worker(heard="heir")
    assert world.producer(30).wait() == 0
    wait_until(world.is_drained)
    assert world.signals("LeaseTaken", "heir") == []
    [(killed_at,)] = world.rows("SELECT extract(epoch FROM clock_timestamp())::double precision")
    owner.kill()
    wait_until(lambda: len(world.signals("LeaseTaken", "heir")) == len(EVERYBODY))
    [(taken_at,)] = world.rows("SELECT max(lease_set_at) FROM redrive_progress WHERE epoch = 2")
    record_property(
        "a lease of 2 s of an owner that nobody can see", f"taken {taken_at - killed_at:.2f} s after its death"
    )
    assert 1.0 < taken_at - killed_at < 3.0, "not before it is over, and not much later"
    assert world.producer(10).wait() == 0
    wait_until(world.is_drained)
    heir.signal(signal.SIGTERM)
    assert heir.wait() == 0, heir.said
    world.check()
    postgres.drop(url)


def test_a_killed_owner_that_nobody_has_reaped_is_dead_all_the_same(zygote: Zygote, tmp_path: Path) -> None:
    """A container's first process often reaps nobody: the dead stay in the table of processes."""
    world = World(zygote, tmp_path, env={"REDRIVE_LEASE": "10m"})
    owner = world.worker(heard="owner")
    wait_until(lambda: len(world.signals("LeaseTaken", "owner")) == len(EVERYBODY))
    owner.signal(signal.SIGKILL)
    wait_until(lambda: owner.ended)
    heir = world.worker(heard="heir")
    wait_until(lambda: len(world.signals("LeaseTaken", "heir")) == len(EVERYBODY))
    heir.signal(signal.SIGTERM)
    assert heir.wait() == 0
    assert owner.wait() == -signal.SIGKILL


def test_two_apps_in_one_process_do_not_take_the_lease_from_each_other(tmp_path: Path) -> None:
    """Both are the same process, and each took the other's lease for its own."""
    taken: list[int] = []

    def make() -> App:
        app = App(str(tmp_path / "shop.db"))

        @app.projection(app.log("orders"))
        def count(event: Any, tx: Any) -> None: ...

        app.listen(lambda facts: taken.extend(fact.epoch for fact in facts if isinstance(fact, LeaseTaken)))
        return app

    first, second = make(), make()

    async def main() -> None:
        async with first.running(), second.running():
            for n in range(10):
                await first.log("orders").append_async("paid", {"n": n})
            await asyncio.to_thread(wait_until, lambda: first.operate("test").status()[0].applied == 10)
            assert taken == [1]

    asyncio.run(main())
    first.close()
    second.close()
