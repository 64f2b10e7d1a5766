"""quiet() and strict() hold where they are said, on this thread and in the tasks it starts, and nowhere else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from redrive import UsageError, quiet, strict
from redrive.tracking.modes import MODE


def mode() -> str:
    return MODE.get().value


def test_the_inner_one_counts_and_the_outer_one_comes_back() -> None:
    assert mode() == "plain"
    with quiet():
        assert mode() == "quiet"
        with strict():
            assert mode() == "strict"
            with quiet():
                assert mode() == "quiet"
        assert mode() == "quiet"
    assert mode() == "plain"


def test_one_object_may_be_entered_twice_and_an_error_ends_it() -> None:
    hush = quiet()
    with pytest.raises(ZeroDivisionError), hush, hush:
        1 / 0  # noqa: B018
    assert mode() == "plain"


def test_functions_and_coroutines_can_be_decorated_with_and_without_brackets() -> None:
    @quiet
    def bare(number: int) -> tuple[int, str]:
        """Its own words."""
        return number, mode()

    @strict()
    async def called(number: int) -> tuple[int, str]:
        await asyncio.sleep(0)
        return number, mode()

    assert bare(1) == (1, "quiet")
    assert bare.__doc__ == "Its own words."
    assert asyncio.run(called(2)) == (2, "strict")
    assert mode() == "plain"


def test_a_generator_is_refused_because_it_would_leak_into_its_reader() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    for function in (numbers, later):
        with pytest.raises(UsageError, match="with quiet"):
            quiet(function)


def test_tasks_and_to_thread_inherit_it_and_neighbours_do_not() -> None:
    async def look() -> str:
        await asyncio.sleep(0)
        return mode()

    async def main() -> list[str]:
        with quiet():
            inside = asyncio.create_task(look())
            on_thread = asyncio.to_thread(mode)
            found = [await inside, await on_thread]
        return [*found, await asyncio.create_task(look())]

    assert asyncio.run(main()) == ["quiet", "quiet", "plain"]


def test_another_thread_is_not_quiet() -> None:
    found: list[str] = []
    with quiet():
        thread = threading.Thread(target=lambda: found.append(mode()))
        thread.start()
        thread.join()
    assert found == ["plain"]
