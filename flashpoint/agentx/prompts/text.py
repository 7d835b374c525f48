"""The text that prompts are cut from: what fills a coding agent's context, invented.

Test output, file listings, source code, searches and requests, so that tokenizers meet realistic characters.
Its content means nothing. The same seed gives the same text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence


def agent_text(seed: int, chars: int) -> str:
    """`chars` characters of a coding agent's context."""
    return _text(random.Random(f"{seed}/text"), chars, _PARTS)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_NOUNS = _words(
    "cache block token request session router shard expert layer batch queue stream page index parser "
    "client worker schema buffer config reader writer lock timer codec header"
)
_VERBS = _words("load merge split evict publish resolve decode flush match retry validate append rotate")
_FOLDERS = _words("src tests core api storage engine scripts docs internal tools")
_ENDINGS = _words("py ts rs go md toml yaml cpp")

_Writer = Callable[[random.Random], str]


def _text(rng: random.Random, chars: int, parts: Sequence[_Writer]) -> str:
    pieces: list[str] = []
    length = 0
    while length < chars:
        piece = rng.choice(parts)(rng)
        pieces.append(piece)
        length += len(piece)
    return "".join(pieces)[:chars]


def _name(rng: random.Random) -> str:
    return f"{rng.choice(_VERBS)}_{rng.choice(_NOUNS)}"


def _path(rng: random.Random) -> str:
    folders = "/".join(rng.choice(_FOLDERS) for _ in range(rng.randint(1, 3)))
    return f"{folders}/{rng.choice(_NOUNS)}_{rng.choice(_NOUNS)}.{rng.choice(_ENDINGS)}"


def _guideline(rng: random.Random) -> str:
    verb, noun = rng.choice(_VERBS), rng.choice(_NOUNS)
    return f"- Before you {verb} a {noun}, read {_path(rng)} and run the tests of the {rng.choice(_NOUNS)}.\n"


def _request(rng: random.Random) -> str:
    return (
        f"`{_name(rng)}()` in {_path(rng)} drops the last {rng.choice(_NOUNS)} when the "
        f"{rng.choice(_NOUNS)} is full. Find out why, fix it, and add a test for it.\n"
    )


def _listing(rng: random.Random) -> str:
    lines = [
        f"-rw-r--r-- 1 dev dev {rng.randint(80, 90_000):6d} {rng.randint(1, 28):2d} Nov {_path(rng)}"
        for _ in range(rng.randint(4, 9))
    ]
    return "$ ls -l\n" + "\n".join(lines) + "\n"


def _code(rng: random.Random) -> str:
    first = rng.randint(1, 400)
    noun, other = rng.choice(_NOUNS), rng.choice(_NOUNS)
    body = [
        f"def {_name(rng)}({noun}, limit={rng.randint(1, 512)}):",
        f'    """Return the {other} of {noun}, or None."""',
        f"    for {other} in {noun}.{_name(rng)}():",
        f"        if {other}.{rng.choice(_NOUNS)} > limit or not {other}.ready:",
        f'            log.debug("skip %s after %d", {other}.name, {rng.randint(2, 99)})',
        "            continue",
        f"        return {_name(rng)}({other}[{rng.randint(0, 7)}:])",
        "    return None",
    ]
    numbered = "\n".join(f"{first + i:5d}  {line}" for i, line in enumerate(body))
    return f"$ cat {_path(rng)}\n{numbered}\n"


def _tests(rng: random.Random) -> str:
    path = _path(rng)
    passed, failed = rng.randint(3, 240), rng.randint(0, 3)
    lines = [f"$ pytest {path}"]
    for _ in range(failed):
        lines += [
            f"FAILED {path}::test_{_name(rng)} - AssertionError: assert {rng.randint(0, 99)} == "
            f"{rng.randint(100, 999)}",
            f"    at {_path(rng)}:{rng.randint(1, 900)}",
        ]
    lines.append(f"{failed} failed, {passed} passed in {rng.uniform(0.1, 60):.2f}s")
    return "\n".join(lines) + "\n"


def _search(rng: random.Random) -> str:
    name = _name(rng)
    hits = [f"{_path(rng)}:{rng.randint(1, 900)}:    {name}({rng.choice(_NOUNS)})" for _ in range(5)]
    return f"$ grep -rn {name} .\n" + "\n".join(hits) + "\n"


_PARTS: tuple[_Writer, ...] = (_guideline, _request, _listing, _code, _tests, _search)
