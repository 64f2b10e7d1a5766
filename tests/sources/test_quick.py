"""The quick way through a codec says the same as the long way, or nothing."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from redrive.codec import to_json
from redrive.sources import quick
from redrive.sources.codec import FORMATS, Codec, Place
from redrive.sources.port import Plain
from redrive.sources.quick import Quick

NAMES = st.sampled_from([b"id", b"type", b"key", b"data", b"time", b"ce_specversion", b"note", b"\xff"])
TEXTS = st.sampled_from([b"", b"a", b"a.b", b"two words", b"\xff", b"x" * 300, b"x" * 600, "ü".encode(), b"\x00"])
DATA = st.one_of(
    TEXTS,
    st.sampled_from([b'{"a": 1, "a": 2}', b"[1, 2]", b'{"specversion": "1.0"}', b'"\\ud800"', b"18446744073709551616"]),
    st.dictionaries(st.text(max_size=3), st.integers(0, 3) | st.text(max_size=3), max_size=3).map(to_json),
)
FIELDS = st.lists(
    NAMES.flatmap(lambda name: st.tuples(st.just(name), DATA if name == b"data" else TEXTS)), min_size=1, max_size=5
)


@given(st.lists(FIELDS, min_size=1, max_size=4), st.sampled_from(FORMATS), st.booleans())
def test_what_is_read_quickly_is_what_would_have_been_read(messages, format, is_mapped):  # type: ignore[no-untyped-def]
    codec = Codec(format, key="note", id="key") if is_mapped else Codec(format)
    reader = Quick(codec, "orders")
    for fields in messages:  # the same reader: what it has learnt must not change what it says
        parts = [part for field in fields for part in field]
        (checked,) = reader.checked([(b"1-0", parts)])
        found = reader.decode(parts, 3, "1-0", "orders:1-0", 1_000, checked)
        if found is not None:
            named = {name.decode("utf-8", "backslashreplace"): value for name, value in fields}
            event, has_id = codec.decode(named, named.get("data"), Place("orders:1-0", "orders", None, 1_000))
            assert (found.event, found.has_id) == (event._replace(may_repeat=False), has_id)
            assert (found.partition, found.position) == (3, "1-0")


def test_the_usual_message_is_read_quickly_and_a_special_one_is_not() -> None:
    reader = Quick(Codec(), "orders")

    def decode(*fields: bytes) -> Plain | None:
        return reader.decode([*fields], 0, "1-0", "orders:1-0", 1_000)

    usual = [b"type", b"order.placed", b"key", b"ada", b"data", b'{"cents": 4200}']
    found = decode(*usual)
    assert found is not None
    assert (found.id, found.type, found.key, found.data_raw) == ("orders:1-0", "order.placed", "ada", usual[5])
    assert not found.has_id
    assert decode(*usual, b"id", b"7") == msgspec.structs.replace(found, id="7", has_id=True)
    assert decode(*usual, b"trace", b"x") is None
    assert decode(b"data", b'{"specversion":"1.0"}') is None
    assert decode(b"data", b'{"a":1,"a":2}') is None


def test_what_was_checked_together_is_what_each_has_as_its_data() -> None:
    reader = Quick(Codec(), "orders")
    entry, other = [b"key", b"a", b"data", b"{}"], [b"data", b"x", b"key", b"{}"]
    assert [*reader.checked([(b"1-0", entry)])] == [None]  # where the data is is not known yet
    assert reader.decode(entry, 0, "1-0", "orders:1-0", 1_000) is not None
    assert [*reader.checked([(b"1-0", entry), (b"2-0", other)])] == [b"{}", b"{}"]
    assert reader.decode(other, 0, "2-0", "orders:2-0", 1_000, other[3]) is None  # its key was checked, not its data
    for special in (None, [b"data"], {b"key": b"a"}, [b"key", b"a", b"data", b'{"specversion": 1}']):
        assert [*reader.checked([(b"1-0", entry), (b"3-0", special)])] == [None, None]


def test_what_is_remembered_is_bounded(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(quick, "SHAPES_MAX", 2)
    monkeypatch.setattr(quick, "TEXTS_MAX", 2)
    reader = Quick(Codec(), "orders")
    for n in range(10):
        key = f"k{n}"
        found = reader.decode([b"key", key.encode(), b"data", b"1"], 0, f"{n}-0", f"orders:{n}-0", 1_000)
        assert found is not None and found.key == key
        assert reader.decode([b"x%d" % n, b"1"], 0, f"{n}-1", f"orders:{n}-1", 1_000) is None
    assert len(reader._keys) <= 2 and len(reader._shapes) <= 2
