import pytest

from flashpoint.errors import InvalidValue
from flashpoint.sizes import format_size, parse_size


@pytest.mark.parametrize(
    "text, size",
    [
        ("0", 0),
        ("123", 123),
        ("1k", 1024),
        ("1KiB", 1024),
        ("1 kB", 1000),
        ("1.5G", 3 * 2**29),
        ("8GiB", 2**33),
        ("900MB", 900_000_000),
        ("2tib", 2**41),
        ("12B", 12),
    ],
)
def test_sizes_people_write(text, size):
    assert parse_size("limit", text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "8 GiBs", "nan", "1.GiB", "٣"])
def test_nonsense_names_the_field(text):
    with pytest.raises(InvalidValue, match=r"^limit: got"):
        parse_size("limit", text)


def test_sizes_shown():
    assert [format_size(n) for n in (0, 1023, 1024, 3 * 2**29, 2**33, 5 * 2**41)] == [
        "0 B", "1023 B", "1 KiB", "1.5 GiB", "8 GiB", "10 TiB",
    ]  # fmt: skip
