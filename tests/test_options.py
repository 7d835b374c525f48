"""Options generated from dataclasses: a field is declared once and behaves as its type says."""

import dataclasses
import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
from typer.testing import CliRunner

from flashpoint.errors import InvalidValue
from flashpoint.options import takes


@dataclass(frozen=True)
class Pump:
    source: Path = field(metadata={"help": "where the water comes from"})
    speed: float = field(default=1.5, metadata={"help": "litres a second"})
    stages: tuple[int, ...] = field(default=(1, 2, 4), metadata={"help": "sizes of the stages"})
    fluid: Literal["water", "oil"] = field(default="water", metadata={"help": "what flows"})
    limit: int | None = field(default=None, metadata={"help": "most litres; default: no limit"})
    primed: bool = field(default=True, metadata={"help": "start wet"})

    def __post_init__(self):
        if self.speed <= 0:
            raise InvalidValue("speed", self.speed, "a number above 0")


@dataclass(frozen=True)
class Tank:
    litres: int = field(default=10, metadata={"help": "size of the tank"})


def run(*arguments):
    """(what the command received, the runner's result)."""
    received = []
    app = typer.Typer()

    @app.command()
    @takes(Pump, Tank)
    def start(pump: Pump, tank: Tank, name: Annotated[str, typer.Argument()], loud: bool = False) -> int:
        received.append((pump, tank, name, loud))
        return 7

    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments))
    return (received[0] if received else None), result


def pump(*arguments):
    received, result = run("well", "--source", "lake", *arguments)
    assert received is not None, result.output
    return received[0]


def test_defaults_are_those_of_the_dataclass():
    received, result = run("well", "--source", "lake")
    assert received == (Pump(Path("lake")), Tank(), "well", False)
    assert result.exit_code == 7  # what the command returned


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        (["--speed", "2"], {"speed": 2.0}),
        (["--stages", "8"], {"stages": (8,)}),
        (["--stages", "3, 5,7"], {"stages": (3, 5, 7)}),
        (["--fluid", "oil"], {"fluid": "oil"}),
        (["--limit", "9"], {"limit": 9}),
        (["--no-primed"], {"primed": False}),
        (["--primed"], {"primed": True}),
    ],
)
def test_every_kind_of_field_is_read(arguments, changes):
    got = pump(*arguments)
    assert got == dataclasses.replace(Pump(Path("lake")), **changes)
    assert all(type(getattr(got, name)) is type(value) for name, value in changes.items())


def test_each_dataclass_and_the_commands_own_parameters_get_their_values():
    received, _ = run("well", "--source", "lake", "--litres", "3", "--loud", "--limit", "2")
    assert received == (Pump(Path("lake"), limit=2), Tank(3), "well", True)


def test_help_shows_every_field_with_its_text_and_default():
    _, result = run("--help")
    shown = " ".join(result.output.split())
    for config in (Pump, Tank):
        for one in dataclasses.fields(config):
            assert f"--{one.name}" in shown
            assert one.metadata["help"] in shown
    for text in ("[default: 1.5]", "[default: 1,2,4]", "<water|oil>", "[default: 10]", "<int,…>"):
        assert text in shown
    assert "--no-primed" in shown
    assert "[default: None]" not in shown
    assert "<object>" not in shown  # a type of Python's, which tells a user nothing


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--speed", "fast"], "--speed"),
        (["--fluid", "sand"], "--fluid"),
        (["--limit", "x"], "--limit"),
        (["--colour", "red"], "--colour"),
    ],
)
def test_what_typer_refuses_is_a_usage_error_that_names_the_option(arguments, named):
    received, result = run("well", "--source", "lake", *arguments)
    assert received is None
    assert result.exit_code == 2
    assert named in result.output


def test_a_field_without_default_is_required():
    received, result = run("well")
    assert (received, result.exit_code) == (None, 2)
    assert "--source" in result.output


@pytest.mark.parametrize("text", ["", "1,", "a", "1;2", "1.5"])
def test_what_is_no_list_of_integers_names_its_field(text):
    _, result = run("well", "--source", "lake", "--stages", text)
    assert isinstance(result.exception, InvalidValue)
    assert (result.exception.field, result.exception.value) == ("stages", text)


def test_the_dataclass_checks_what_it_holds():
    _, result = run("well", "--source", "lake", "--speed", "-1")
    assert isinstance(result.exception, InvalidValue)
    assert str(result.exception) == "speed: got -1.0; expected a number above 0"


def test_a_name_declared_twice_is_refused_when_the_command_is_made():
    @dataclass(frozen=True)
    class Barrel:
        litres: int = field(default=1, metadata={"help": "size of the barrel"})

    def two(tank: Tank, barrel: Barrel) -> int:
        return 0

    def own(tank: Tank, litres: int = 1) -> int:
        return 0

    with pytest.raises(TypeError, match="two: options declared twice: litres"):
        takes(Tank, Barrel)(two)
    with pytest.raises(TypeError, match="own: options declared twice: litres"):
        takes(Tank)(own)


def test_a_type_without_a_command_line_form_is_refused_when_the_command_is_made():
    @dataclass(frozen=True)
    class Bag:
        things: dict[str, int] = field(default_factory=dict, metadata={"help": "anything"})

    def carry(bag: Bag) -> int:
        return 0

    with pytest.raises(TypeError, match="things: no command-line form for"):
        takes(Bag)(carry)


def test_required_parameters_come_first():
    def start(pump: Pump, where: Annotated[str, typer.Argument()], loud: bool = False) -> int:
        return 0

    defaults = [p.default for p in inspect.signature(takes(Pump)(start)).parameters.values()]
    missing = [default is inspect.Parameter.empty for default in defaults]
    assert missing == sorted(missing, reverse=True)
