"""A corpus of traces: a folder of trace files, one trace file, or a recipe; sessions are read when needed."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from flashpoint.agentx.files import whole_file
from flashpoint.agentx.traces.format import Trace, parse_trace
from flashpoint.agentx.traces.recipe import Recipe, generate_session
from flashpoint.errors import InvalidValue

FORMAT = "flashpoint-corpus"


@dataclass(frozen=True, slots=True)
class Corpus:
    """Sessions in a fixed order; `read` gives the one at a position of it."""

    path: Path
    sha256: str
    """Of the recipe, or of names and contents of the trace files."""
    read: Callable[[int], Trace]
    positions: Sequence[int]
    """Which of the sessions `read` knows belong to it."""
    dropped: int = 0
    """Sessions left out because they exceed a context window."""

    def __len__(self) -> int:
        return len(self.positions)

    def trace(self, number: int) -> Trace:
        """Session `number`, from 0."""
        return self.read(self.positions[number])

    def __iter__(self) -> Iterator[Trace]:
        return (self.trace(number) for number in range(len(self)))

    def first(self, count: int | None) -> Corpus:
        """The first `count` sessions; all of them for None. Raises `InvalidValue` naming `max_sessions`."""
        if count is not None and count < 1:
            raise InvalidValue("max_sessions", count, "a whole number of at least 1")
        return dataclasses.replace(self, positions=self.positions[:count])


def open_corpus(path: str | Path) -> Corpus:
    """Open a corpus. Raises `InvalidValue` naming file and field, for a folder only when a trace is read."""
    path = Path(path)
    files = trace_files(path)
    if path.is_dir():
        return _folder(path, files)
    data = _read(path)
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidValue(str(path), data[:80].decode("utf-8", "replace"), f"JSON ({error})") from error
    if isinstance(content, dict) and content.get("format") == FORMAT:
        return recipe_corpus(_parse_recipe(content, str(path)), path)
    return _folder(path, files)


def recipe_corpus(recipe: Recipe, path: Path = Path("recipe")) -> Corpus:
    """The sessions of a recipe; `path` says where it was read from."""
    digest = hashlib.sha256(recipe_json(recipe)).hexdigest()
    return Corpus(path, digest, lambda number: generate_session(recipe, number), range(recipe.sessions))


def trace_files(path: Path) -> list[Path]:
    """The files of a folder that are traces by name, in the order of the sessions, or the file `path`."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.glob("*.json") if not file.is_dir())
    if not files:
        raise InvalidValue("corpus", str(path), "a folder with at least one .json trace")
    return files


def read_trace(file: Path) -> Trace:
    """The trace in one file, read strictly."""
    return parse_trace(_read(file), str(file))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidValue(
            "corpus", str(path), f"a corpus file, a trace file or a folder of traces ({error.strerror})"
        ) from error


def _folder(path: Path, files: Sequence[Path]) -> Corpus:
    digest = hashlib.sha256()
    ids: dict[str, Path] = {}
    for file in files:
        data = _read(file)
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(data).digest())
        id = parse_trace(data, str(file)).id
        if id in ids:
            raise InvalidValue(f"{file}, id", id, f"an id of its own ({ids[id].name} has the same)")
        ids[id] = file
    return Corpus(path, digest.hexdigest(), lambda n: read_trace(files[n]), range(len(files)))


def recipe_json(recipe: Recipe) -> bytes:
    """A recipe as the content of a corpus file."""
    values = dataclasses.asdict(recipe) | {"scale": str(recipe.scale)}
    return orjson.dumps({"format": FORMAT, "format_version": 1, "recipe": values}, option=orjson.OPT_INDENT_2)


def write_recipe(recipe: Recipe, path: Path) -> None:
    """Write a corpus file, whole or not at all. Raises `InvalidValue` naming `out`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(recipe_json(recipe) + b"\n")
    except OSError as error:
        raise InvalidValue("out", str(path), f"a file that can be written ({error.strerror})") from error


def _parse_recipe(content: dict[str, Any], where: str) -> Recipe:
    if content.get("format_version") != 1 or set(content) != {"format", "format_version", "recipe"}:
        raise InvalidValue(
            where, sorted(map(str, content)), "format, format_version (1) and recipe, and nothing else"
        )
    values = content["recipe"]
    kinds: dict[str, type] = {"sessions": int, "seed": int, "scale": str, "max_turns": int}
    if not isinstance(values, dict) or set(values) != set(kinds):
        raise InvalidValue(f"{where}, recipe", values, f"an object with the keys {', '.join(kinds)}")
    for key, kind in kinds.items():
        if not isinstance(values[key], kind) or isinstance(values[key], bool):
            raise InvalidValue(f"{where}, recipe.{key}", values[key], f"a value of type {kind.__name__}")
    return Recipe(**(values | {"scale": parse_fraction(f"{where}, recipe.scale", values["scale"])}))


def parse_fraction(field: str, text: str) -> Fraction:
    """`1/64` or `0.25` as a fraction. Raises `InvalidValue` naming `field`."""
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise InvalidValue(field, text, "a fraction such as 1/64") from None


def within_context(corpus: Corpus, window: int) -> tuple[Corpus, str | None]:
    """Only the sessions whose longest prompt plus answer fits `window` tokens, and what that changes.

    Whole sessions are left out, never parts (spec section 3.5). The text is None where all fit; else it says
    how many go and how the prompt lengths move: a small window quietly keeps only short sessions. Raises
    `InvalidValue` naming `context_window` where none fits.
    """
    if window < 1:
        raise InvalidValue("context_window", window, "a number of tokens of at least 1")
    kept: list[int] = []
    before: list[int] = []
    after: list[int] = []
    for position in corpus.positions:
        trace = corpus.read(position)
        lengths = [call.input_tokens for call in trace.calls()]
        before += lengths
        if trace.peak_context <= window:
            kept.append(position)
            after += lengths
    if not kept:
        raise InvalidValue("context_window", window, "a window that at least one session fits into")
    dropped = len(corpus) - len(kept)
    if not dropped:
        return corpus, None
    moved = ", ".join(
        f"P{p} {np.percentile(before, p):,.0f} -> {np.percentile(after, p):,.0f}" for p in (50, 90)
    )
    text = (
        f"{dropped} of {len(corpus)} sessions need more than {window} tokens and are left out: prompt length "
        f"{moved}; requests {len(before)} -> {len(after)}"
    )
    return dataclasses.replace(corpus, positions=kept, dropped=corpus.dropped + dropped), text
