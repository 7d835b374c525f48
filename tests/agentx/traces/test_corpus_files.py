"""Corpora on disk: what opens, what is refused with which words, and what the commands do with it."""

import json
import shutil
from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flashpoint.agentx.traces.check import check_corpus
from flashpoint.agentx.traces.corpus import open_corpus, recipe_json, within_context, write_recipe
from flashpoint.agentx.traces.format import trace_json
from flashpoint.agentx.traces.recipe import Recipe, generate_session
from flashpoint.cli import app
from flashpoint.errors import InvalidValue

SMOKE = Path(__file__).parent.parent / "data" / "smoke"
RECIPE = Recipe(sessions=8, seed=5, scale=Fraction(1, 64), max_turns=30)


@pytest.fixture
def folder(tmp_path):
    """A copy of the four smoke traces."""
    return Path(shutil.copytree(SMOKE, tmp_path / "traces"))


@pytest.fixture
def recipe_file(tmp_path):
    path = tmp_path / "corpus.json"
    write_recipe(RECIPE, path)
    return path


def sessions(*arguments):
    return CliRunner().invoke(app, ["sessions", *map(str, arguments)])


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_folder_is_read_in_the_order_of_names(folder):
    (folder / "zz.txt").write_text("not a trace")
    (folder / "folder.json").mkdir()
    (folder / "smoke-000.json").rename(folder / "smoke-9.json")
    assert [trace.id for trace in open_corpus(folder)] == [f"smoke-00{i}" for i in (1, 2, 3, 0)]


def test_the_digest_is_of_names_and_contents(folder):
    first = open_corpus(folder).sha256
    assert open_corpus(folder).sha256 == first == open_corpus(SMOKE).sha256
    (folder / "smoke-003.json").rename(folder / "smoke-004.json")
    renamed = open_corpus(folder).sha256
    edit(folder / "smoke-000.json", tool_tokens=1)
    assert len({first, renamed, open_corpus(folder).sha256}) == 3


def test_a_recipe_file_makes_its_sessions_when_asked(recipe_file):
    corpus = open_corpus(recipe_file)
    assert len(corpus) == RECIPE.sessions
    for number in (7, 0):
        assert trace_json(corpus.trace(number)) == trace_json(generate_session(RECIPE, number))
    assert recipe_file.stat().st_size < 1000


def test_the_digest_of_a_recipe_is_of_its_parameters(recipe_file):
    corpus = open_corpus(recipe_file)
    recipe_file.write_text(json.dumps(json.loads(recipe_json(RECIPE)), indent=7))
    assert open_corpus(recipe_file).sha256 == corpus.sha256
    write_recipe(Recipe(sessions=8, seed=6, scale=Fraction(1, 64), max_turns=30), recipe_file)
    assert open_corpus(recipe_file).sha256 != corpus.sha256


def test_an_id_twice_names_both_files(folder):
    edit(folder / "smoke-002.json", id="smoke-001")
    with pytest.raises(InvalidValue) as refused:
        open_corpus(folder)
    assert "smoke-002.json, id" in refused.value.field
    assert "smoke-001.json has the same" in refused.value.expected


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"format_version": 2}, "format_version (1)"),
        ({"extra": 1}, "nothing else"),
        ({"recipe": {"sessions": 1}}, "the keys sessions, seed, scale, max_turns"),
    ],
)
def test_a_corpus_file_is_read_strictly(recipe_file, change, named):
    edit(recipe_file, **change)
    with pytest.raises(InvalidValue) as refused:
        open_corpus(recipe_file)
    assert str(recipe_file) in refused.value.field
    assert named in refused.value.expected


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("sessions", 0, "sessions"),
        ("sessions", True, "recipe.sessions"),
        ("seed", -1, "seed"),
        ("seed", 2**63, "seed"),
        ("scale", "1/0", "recipe.scale"),
        ("scale", "3/2", "scale"),
        ("max_turns", "5", "recipe.max_turns"),
    ],
)
def test_a_parameter_out_of_range_is_named(recipe_file, key, value, field):
    content = json.loads(recipe_file.read_text())
    content["recipe"][key] = value
    recipe_file.write_text(json.dumps(content))
    with pytest.raises(InvalidValue) as refused:
        open_corpus(recipe_file)
    assert refused.value.field.endswith(field)


def test_what_is_no_corpus_is_refused(tmp_path):
    (tmp_path / "text.json").write_text("{")
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "nowhere", tmp_path / "text.json", tmp_path / "empty"):
        with pytest.raises(InvalidValue, match=path.name):
            open_corpus(path)


def test_a_file_that_went_away_is_said(folder):
    corpus = open_corpus(folder)
    (folder / "smoke-001.json").unlink()
    assert corpus.trace(0).id == "smoke-000"
    with pytest.raises(InvalidValue, match="smoke-001"):
        corpus.trace(1)


def test_the_window_leaves_out_whole_sessions(folder):
    corpus = open_corpus(folder)
    peaks = [trace.peak_context for trace in corpus]
    window = sorted(peaks)[1]
    kept, warning = within_context(corpus, window)
    assert [trace.id for trace in kept] == [f"smoke-00{i}" for i in range(4) if peaks[i] <= window]
    assert len(kept) == 2 == kept.dropped
    assert warning.startswith(f"2 of 4 sessions need more than {window} tokens")
    before = sum(sum(1 for _ in trace.calls()) for trace in corpus)
    after = sum(sum(1 for _ in trace.calls()) for trace in kept)
    assert f"requests {before} -> {after}" in warning
    assert within_context(corpus, max(peaks)) == (corpus, None)
    with pytest.raises(InvalidValue, match="context_window"):
        within_context(corpus, min(peaks) - 1)


def test_the_first_sessions(folder):
    corpus = open_corpus(folder)
    assert [trace.id for trace in corpus.first(2)] == ["smoke-000", "smoke-001"]
    assert len(corpus.first(9)) == len(corpus.first(None)) == 4
    for count in (0, -1):
        with pytest.raises(InvalidValue, match="max_sessions"):
            corpus.first(count)


def test_validate_goes_on_after_a_broken_file_and_exits_1(folder):
    (folder / "smoke-000.json").write_text("{")
    edit(folder / "smoke-001.json", surprise=1)
    edit(folder / "smoke-003.json", id="smoke-002")
    result = sessions("validate", folder)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == [
        "smoke-000.json",
        "smoke-001.json",
        "smoke-003.json",
    ]
    assert "surprise" in lines[1]
    assert "smoke-002.json has the same" in lines[2]
    assert lines[-1] == "1 sessions can be played, 3 cannot"


def test_validate_of_one_broken_file_exits_1(folder):
    assert sessions("validate", folder / "smoke-000.json").exit_code == 0
    (folder / "smoke-000.json").write_text('{"id": "x"}')
    assert sessions("validate", folder / "smoke-000.json").exit_code == 1
    with pytest.raises(InvalidValue):
        list(check_corpus(folder / "nowhere"))


def test_validate_names_what_is_odd(folder):
    trace = json.loads((folder / "smoke-000.json").read_text())
    agent = next(entry for entry in trace["requests"] if entry["type"] == "subagent")
    trace["requests"].remove(agent)
    first = trace["requests"][0]
    later = [entry for entry in trace["requests"] if entry["type"] != "subagent"][-1]
    later["hash_ids"] = later["hash_ids"][:-2]
    later["out"] = 0
    shift = agent["t"] + 100
    for entry in trace["requests"]:
        entry["t"] += shift
        for inner in entry.get("requests", ()):
            inner["t"] += shift
    trace["requests"] = [agent, *trace["requests"]]
    assert agent["t"] < first["t"]
    (folder / "smoke-000.json").write_text(json.dumps(trace))
    found = {name: texts for name, texts, _ in check_corpus(folder)}
    assert [text.split(";")[0].split(" are left out")[0] for text in found["smoke-000.json"]] == [
        "1 sub-agents begin before the session does and",
        "1 calls have fewer hashes than blocks",
        "1 calls have an empty answer",
    ]
    assert found["smoke-001.json"] == []


def test_convert_writes_what_the_corpus_holds(recipe_file, tmp_path):
    out = tmp_path / "out"
    assert sessions("convert", recipe_file, "--out", out, "--max-sessions", 3).exit_code == 0
    assert [trace_json(trace) for trace in open_corpus(out)] == [
        trace_json(generate_session(RECIPE, number)) for number in range(3)
    ]
    assert isinstance(sessions("convert", recipe_file, "--out", out).exception, InvalidValue)


def test_convert_stays_in_its_folder(folder, tmp_path):
    edit(folder / "smoke-000.json", id="../../escaped")
    assert sessions("convert", folder, "--out", tmp_path / "deep" / "out").exit_code == 0
    assert not list(tmp_path.glob("*escaped*"))
    assert len(list((tmp_path / "deep" / "out").glob("*escaped*"))) == 1


def test_convert_into_what_is_no_folder(recipe_file, tmp_path):
    (tmp_path / "file").write_text("")
    result = sessions("convert", recipe_file, "--out", tmp_path / "file" / "out")
    assert isinstance(result.exception, InvalidValue)
    assert result.exception.field == "out"


def test_stats_counts_what_is_left(folder):
    result = sessions("stats", folder, "--json", "--max-sessions", 2)
    found = json.loads(result.stdout)
    assert found["sessions"] == 2
    assert found["distributions"]["turns per session"]["count"] == 2


def test_generate_writes_its_options(tmp_path):
    options = ["--sessions", 8, "--seed", 5, "--scale", "1/64", "--max-turns", 30]
    assert sessions("generate", "--out", tmp_path / "made" / "c.json", *options).exit_code == 0
    assert (tmp_path / "made" / "c.json").read_bytes() == recipe_json(RECIPE) + b"\n"
