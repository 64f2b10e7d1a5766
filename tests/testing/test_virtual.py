"""Virtual time: waiting is free, order is kept, a hang is an error."""

from __future__ import annotations

import asyncio
import time

import pytest

from redrive.errors import UsageError
from redrive.testing.virtual import Deadlock, FakeClock, VirtualLoop, run


def test_a_year_of_waiting_takes_no_time() -> None:
    clock, began = FakeClock(), time.monotonic()
    run(asyncio.sleep(365 * 86_400), clock)
    assert clock.monotonic() >= 365 * 86_400
    assert time.monotonic() - began < 5


def test_timers_fire_in_the_order_of_their_times() -> None:
    order: list[str] = []

    async def wait(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append(name)

    async def main() -> None:
        await asyncio.gather(wait("third", 3), wait("first", 1e-4), wait("second", 2.9999))

    run(main())
    assert order == ["first", "second", "third"]


def test_a_timeout_ends_what_never_answers() -> None:
    async def main() -> str:
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 10)
        except TimeoutError:
            return f"gave up after {asyncio.get_running_loop().time():.0f} s"
        return "answered"

    assert run(main()) == "gave up after 10 s"


def test_waiting_for_what_never_comes_is_a_deadlock_that_names_who_waits() -> None:
    async def main() -> None:
        await asyncio.create_task(asyncio.Event().wait(), name="the-patient-one")

    with pytest.raises(Deadlock, match="the-patient-one"):
        run(main())


def test_the_wall_clock_can_be_set_back_while_time_goes_on() -> None:
    clock = FakeClock(start=1000.0)
    clock.advance(5)
    clock.jump(-100)
    assert (clock.now(), clock.monotonic()) == (905.0, 5.0)


def test_time_does_not_pass_backwards() -> None:
    with pytest.raises(UsageError, match="backwards"):
        FakeClock().advance(-1)


def test_the_same_program_runs_the_same_way_twice() -> None:
    async def main() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        seen: list[tuple[str, float]] = []

        async def step(name: str) -> None:
            for turn in range(3):
                await asyncio.sleep(0.1 * (turn + 1))
                seen.append((name, loop.time()))

        await asyncio.gather(*(step(name) for name in "abc"))
        return seen

    assert run(main()) == run(main())


def test_a_job_for_another_thread_runs_on_this_one() -> None:
    async def main() -> tuple[int, int]:
        return await asyncio.to_thread(divmod, 7, 2)

    assert run(main()) == (3, 1)


def test_an_error_of_a_job_reaches_whoever_waits_for_it() -> None:
    async def main() -> None:
        await asyncio.to_thread(divmod, 1, 0)

    with pytest.raises(ZeroDivisionError):
        run(main())


def test_sockets_are_refused_with_advice() -> None:
    async def main() -> None:
        await asyncio.open_connection("127.0.0.1", 9)

    with pytest.raises(UsageError, match="fake"):
        run(main())


def test_a_callback_of_this_thread_needs_no_pipe() -> None:
    loop = VirtualLoop()
    called: list[str] = []
    loop.call_soon_threadsafe(called.append, "once")
    loop.call_soon_threadsafe(loop.stop)
    loop.run_forever()
    loop.close()
    assert called == ["once"]


def test_while_a_callback_stalls_everybody_else_goes_on() -> None:
    seen: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)

        def stall(name: str, seconds: float) -> None:
            seen.append(f"{name} stalls")
            loop.let_others_run(seconds)
            seen.append(f"{name} goes on at {loop.time():g}")

        async def other() -> None:
            for _ in range(3):
                await asyncio.sleep(2)
                seen.append(f"other at {loop.time():.0f}")

        loop.call_later(1, stall, "outer", 4)
        loop.call_later(3, stall, "inner", 1.5)
        await other()
        await asyncio.sleep(5)

    run(main())
    assert seen == [
        "outer stalls", "other at 2", "inner stalls", "other at 4", "inner goes on at 4.5", "outer goes on at 5",
        "other at 6",
    ]  # fmt: skip


def test_who_waits_for_less_than_a_hair_does_not_wait_for_ever() -> None:
    """What is left of a pause after a rounding error: if the clock stood still, a loop would never get there."""
    clock = FakeClock()

    async def wait_until(end: float) -> int:
        turns = 0
        while clock.monotonic() < end:
            await asyncio.sleep(end - clock.monotonic())
            turns += 1
            assert turns < 100
        return turns

    assert run(wait_until(3e-13), clock) == 1
