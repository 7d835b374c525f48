"""Metrics as a server sends them, damaged ones included."""

from __future__ import annotations

from flashpoint.agentx.scrape import series_table


def test_samples_become_rows() -> None:
    table = series_table(3, [(1.5, b'# TYPE a gauge\na{engine="0"} 2\nb_bucket{le="1"} 4\n')])
    assert table is not None and table.to_pylist() == [
        {"level": 3, "t": 1.5, "name": "a", "labels": '{"engine":"0"}', "value": 2.0}
    ]


def test_a_damaged_text_is_a_gap() -> None:
    # The parser raises IndexError for the second text and ValueError for the third.
    texts = [b"a 1\n", b'a{b="c", ="e"} 1\n', b"a one\n", b"\xff"]
    table = series_table(0, [(float(t), text) for t, text in enumerate(texts)])
    assert table is not None and table["t"].to_pylist() == [0.0]
