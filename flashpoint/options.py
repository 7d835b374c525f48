"""Command-line options generated from configuration dataclasses.

A field is declared once, with its default and its help, and appears on every command that takes its
dataclass. `bool` fields become `--name / --no-name`, tuples of integers are written `1,2,4`, fractions
`1/64`, and integers whose metadata says `size` as `8GiB`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from flashpoint.errors import InvalidValue
from flashpoint.sizes import parse_size


def takes(*configs: type) -> Callable[[Callable[..., int]], Callable[..., None]]:
    """Give a command the options of `configs`.

    The decorated function receives one instance per dataclass, then its own parameters by keyword, and
    returns the exit code. Two dataclasses that share a field name are an error at import time.
    """

    def decorate(command: Callable[..., int]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[len(configs) :]
        fields = {config: _parameters(config) for config in configs}
        generated = [parameter for group in fields.values() for parameter in group]
        names = [parameter.name for parameter in [*generated, *own]]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise TypeError(f"{command.__name__}: options declared twice: {', '.join(repeated)}")

        @functools.wraps(command)
        def run(**values: Any) -> None:
            built = [
                config(**{p.name: values.pop(p.name) for p in group}) for config, group in fields.items()
            ]
            raise typer.Exit(command(*built, **values))

        # What has no default comes first, as a signature demands.
        ordered = sorted(
            [*(p.replace(kind=p.KEYWORD_ONLY) for p in own), *generated],
            key=lambda p: p.default is not inspect.Parameter.empty,
        )
        run.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in ordered}
        return run

    return decorate


def _parameters(config: type) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(config)
    parameters = []
    for field in dataclasses.fields(config):
        sized = field.metadata.get("size", False)
        kind, parser = _option_type(hints[field.name], field.name) if not sized else _size_type(field.name)
        default: Any = field.default
        if default is dataclasses.MISSING:
            default = inspect.Parameter.empty
        elif isinstance(default, tuple):
            default = ",".join(map(str, default))
        shown = "<size>" if sized else _SHOWN.get(hints[field.name]) if parser else None
        option = typer.Option(help=field.metadata["help"], parser=parser, metavar=shown)
        parameters.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[kind, option],
            )
        )
    return parameters


def _option_type(hint: Any, name: str) -> tuple[Any, Callable[[str], Any] | None]:
    if typing.get_origin(hint) is tuple:
        return object, functools.partial(_integers, name)
    if hint is Fraction:
        return object, functools.partial(_fraction, name)
    origins = (typing.Union, types.UnionType, typing.Literal)
    if typing.get_origin(hint) in origins or hint in (int, float, str, bool, Path):
        return hint, None
    raise TypeError(f"{name}: no command-line form for {hint}")


def _size_type(name: str) -> tuple[Any, Callable[[str], Any]]:
    return object, lambda text: parse_size(name, str(text))


_SHOWN = {tuple[int, ...]: "<int,…>", Fraction: "<fraction>"}


def _fraction(name: str, text: str) -> Fraction:
    try:
        return Fraction(str(text))
    except (ValueError, ZeroDivisionError):
        raise InvalidValue(name, text, "a fraction such as 1/64") from None


def _integers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidValue(name, text, "whole numbers separated by commas, such as 1,2,4") from None
