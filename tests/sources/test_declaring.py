"""A source that cannot be read as it is declared is refused then and there, in words that name what to write."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import App, UsageError, mirrors
from redrive.kafka import Topic
from redrive.redis import LetterIndex, LetterStream, Stream, stream
from redrive.sources.codec import Codec

URL = "redis://localhost:6379/0"
WRONG: list[Any] = ["localhost:6379", "http://localhost", "redis://localhost:port", "redis://localhost/shop", "", None]


CUT = ["redis://:12#secret@h", "redis://:12/secret@h", "redis://:12?secret=x@h", "redis://:a@secret@h"]  # not escaped


@pytest.mark.parametrize("url", [*WRONG, *CUT, "http://ada:secret@localhost"])
def test_an_address_that_is_none_is_refused(url: Any) -> None:
    for declare in (
        lambda: Stream(url, "orders"), lambda: LetterStream(url, name="dead"),
        lambda: LetterIndex(url, "dead", name="dead"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match="redis://HOST:6379/0") as told:
            declare()
        assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    "url",
    [
        URL,
        "rediss://u:p@h:1/0",
        "unix:///run/valkey.sock?db=1",
        "redis://[::1]:6379",
        "redis://h/?db=2",
        "rediss://h/0?ssl_cert_reqs=none",
        "redis://h/3/?socket_timeout=5&protocol=3",
    ],
)
def test_an_address_of_any_kind_is_taken(url: str) -> None:
    assert Stream(url, "orders").url == url


@pytest.mark.parametrize("option", ["decode_responses=True", "decode_responses=0", "encoding=utf-16"])
def test_an_address_that_makes_texts_of_bytes_is_refused(option: str) -> None:
    """What was read in order counted as lost at its source, and was passed over."""
    for declare in (lambda url: Stream(url, "orders"), lambda url: LetterStream(url, name="dead")):
        with pytest.raises(UsageError, match=f"leave {option.partition('=')[0]} out"):
            declare(f"{URL}?socket_timeout=5&{option}")


@pytest.mark.parametrize("option", ["nosuch=1", "socket_timeout=soon", "ssl_cert_reqs=none"])
def test_an_option_in_an_address_that_the_driver_does_not_know_is_refused(option: str) -> None:
    """It was a bug of ours, with a traceback, when a worker first connected."""
    for declare in (lambda url: Stream(url, "orders"), lambda url: LetterStream(url, name="dead")):
        with pytest.raises(UsageError, match=option.partition("=")[0]) as told:
            declare(f"redis://ada:secret@localhost/0?{option}")
        assert "secret" not in str(told.value)


@pytest.mark.parametrize("options", [{"stream": "{source.name}:dlq"}, {"stream": 5}, {"length_max": "5"}])
def test_an_option_of_a_stream_of_letters_that_is_none_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"dead: stream="):
        LetterStream(URL, name="dead", **options)


@pytest.mark.parametrize("options", [{"rotate": "much"}, {"keep": "long"}, {"rotate": "-1B"}])
def test_an_option_of_a_mirror_in_files_that_is_none_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="dead: "):
        mirrors.files("dead", name="dead", **options)


def test_a_driver_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'redrive\[redis\]'"):
        Stream(URL, "orders")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"partitions": "2"}, "partitions='2'"), ({"partitions": 2.5}, "partitions=2.5"),
        ({"partitions": True}, "partitions=True"), ({"maxlen": "5"}, "maxlen='5'"), ({"maxlen": True}, "maxlen=True"),
        ({"min_idle": "soon"}, "orders: min_idle: 'soon' is not a duration"), ({"min_idle": -1}, "orders: min_idle"),
    ],
)  # fmt: skip
def test_an_option_of_a_stream_that_is_none_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Stream(URL, "orders", **options)


@pytest.mark.parametrize("declare", [lambda **k: Stream(URL, "orders", **k), lambda **k: Topic("h:1", "orders", **k)])
def test_a_codec_and_a_format_that_disagree_are_refused(declare: Any) -> None:
    with pytest.raises(UsageError, match="takes a Codec"):
        declare(codec="json")
    with pytest.raises(UsageError, match="give one of them"):
        declare(format="raw", codec=Codec("json"))
    assert declare(format="json", codec=Codec("json", id="n")).codec.id == "n"


@pytest.mark.parametrize("name", ["", "two words", None])
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    for declare in (lambda: Stream(URL, name), lambda: Topic("h:1", name)):
        with pytest.raises(UsageError, match="name of a stream or topic"):
            declare()


@pytest.mark.parametrize(
    ("arguments", "options", "why"),
    [
        (("", "o"), {}, "name its brokers"), ((None, "o"), {}, "name its brokers"),
        (("h:1", "o"), {"options": "x"}, "takes a dict"), (("h:1", "o"), {"look_every": "x"}, "'o': look_every"),
    ],
)  # fmt: skip
def test_a_topic_that_is_none_is_refused(arguments: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Topic(*arguments, **options)


def test_an_outbox_that_keeps_for_no_time_is_refused() -> None:
    with pytest.raises(UsageError, match=r"to:redis:orders: keep: 'long' is not a duration"):
        App("x.db").outbox(Stream(URL, "orders"), keep="long")
