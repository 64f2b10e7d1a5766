"""What is worth trying again when no rule of the user says so."""

from __future__ import annotations

import urllib.error
from email.message import Message
from http import HTTPStatus
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import BadKey, Reject, Undecodable, UsageError, VersionConflict
from redrive.policy.classify import http_status, is_permanent
from redrive.policy.outcome import NO_FAILURE, Failed, Postponed, error_in

STATUS_NAMES = ["status_code", "status", "http_status", "code"]


class Answered(Exception):
    """An exception of somebody's HTTP client."""

    def __init__(self, **fields: object) -> None:
        super().__init__("answered")
        vars(self).update(fields)


@pytest.mark.parametrize("error", [Reject("no"), Undecodable("bytes"), BadKey("none"), UsageError("wrong")])
def test_what_says_that_it_cannot_change_is_permanent(error: Exception) -> None:
    assert is_permanent(error)


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionResetError(),
        PermissionError("the mount is gone"),
        TypeError("a bug that the next deploy may fix"),
        MemoryError(),
        RecursionError(),
        VersionConflict("orders", "k", 1, 2),
        Exception(),
    ],
)
def test_everything_else_is_worth_trying_again(error: Exception) -> None:
    assert not is_permanent(error)


@given(st.sampled_from(STATUS_NAMES), st.integers(400, 499), st.booleans())
def test_a_4xx_blames_the_request_unless_it_speaks_of_the_moment(name: str, status: int, on_response: bool) -> None:
    fields = {name: status}
    error = Answered(response=SimpleNamespace(**fields)) if on_response else Answered(**fields)
    assert is_permanent(error) == (status not in {408, 425, 429})


@given(st.sampled_from(STATUS_NAMES), st.integers() | st.text() | st.none() | st.booleans())
def test_nothing_but_a_4xx_makes_an_http_error_permanent(name: str, value: object) -> None:
    if isinstance(value, int) and 400 <= value <= 499:
        return
    assert not is_permanent(Answered(**{name: value}))


def test_a_status_set_on_the_class_counts() -> None:
    class NotFound(Exception):
        code = HTTPStatus.NOT_FOUND

    assert http_status(NotFound()) == 404


def test_the_errors_of_httpx_and_urllib_are_understood() -> None:
    request = httpx.Request("POST", "http://bank.test/")
    gone = httpx.HTTPStatusError("gone", request=request, response=httpx.Response(410, request=request))
    busy = httpx.HTTPStatusError("busy", request=request, response=httpx.Response(503, request=request))
    assert is_permanent(gone)
    assert not is_permanent(busy)
    assert not is_permanent(httpx.ConnectError("refused"))  # its .request is a property that raises
    assert is_permanent(urllib.error.HTTPError("http://bank.test/", 404, "no", Message(), None))


def test_no_code_of_the_exception_is_run_to_find_out() -> None:
    class Nasty(Exception):
        @property
        def status_code(self) -> int:
            raise AssertionError("asked")

        @property
        def response(self) -> object:
            raise AssertionError("asked")

        def __getattr__(self, name: str) -> object:
            raise AssertionError("asked")

        def __str__(self) -> str:
            raise AssertionError("asked")

    assert not is_permanent(Nasty())


def test_a_group_is_permanent_if_one_of_its_errors_is_however_deep() -> None:
    deep: Exception = Reject("no")
    for _ in range(2_000):  # deeper than the interpreter's stack
        deep = ExceptionGroup("layer", [deep])
    assert is_permanent(ExceptionGroup("both", [TimeoutError(), deep]))
    assert not is_permanent(ExceptionGroup("both", [TimeoutError(), OSError()]))


def test_postponed_call_has_an_error_only_if_a_dependency_is_to_blame() -> None:
    """`RetryLater` is a verdict; with an error of the other side behind it, the `on_error` hook receives that."""
    down, bad = ConnectionError("refused"), ValueError("bad")
    found = [error_in(Postponed(NO_FAILURE, 5.0, error)) for error in (None, bad, down)]
    assert found == [None, None, down]
    assert error_in(Failed(bad, NO_FAILURE)) is bad
    assert error_in(None) is None
