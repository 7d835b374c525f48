"""Sessions and prompts against what the official harness made of the same traces (recorded, version 1.0.12).

`data/official_sessions.json.gz` is the output of `benchmarks/peers/agentx_harness_dump.py` for the traces
that `write_inputs` writes: the four of `data/smoke` and sixty random ones full of forks, seams and short hash
lists. To record it anew, run this file with a folder, then the script on what lies there.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashpoint.agentx.prompts.conversation import Conversation
from flashpoint.agentx.prompts.source import TokenSource
from flashpoint.agentx.prompts.tokenizer import PromptTokenizer
from flashpoint.agentx.traces.corpus import open_corpus
from flashpoint.agentx.traces.streams import build_session
from flashpoint.models.deepseek_v41.preset_tokenizers import small_tokenizer
from tests.agentx.messy_traces import messy_trace

DATA = Path(__file__).parent / "data"
SEED = 42
MESSY = range(60)


def tokenizer_json() -> bytes:
    return small_tokenizer(1024).encode()


def token_array() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 1024, 50_000).astype(np.int32)


def write_inputs(folder: Path) -> Path:
    """What the harness was given: traces, tokenizer and token array."""
    traces = folder / "traces"
    traces.mkdir()
    for path in (DATA / "smoke").iterdir():
        (traces / path.name).write_bytes(path.read_bytes())
    for seed in MESSY:
        (traces / f"messy-{seed:03d}.json").write_text(json.dumps(messy_trace(seed)))
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    np.save(folder / "tokens.npy", token_array())
    return traces


@pytest.fixture(scope="module")
def official() -> dict[str, Any]:
    with gzip.open(DATA / "official_sessions.json.gz") as file:
        return {conversation["id"]: conversation for conversation in json.load(file)}


def test_every_stream_turn_and_message_is_the_harness_s(official: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = PromptTokenizer(tokenizer_json())
    source = TokenSource(token_array(), SEED)
    seen: set[str] = set()
    turns = 0
    for trace in open_corpus(write_inputs(tmp_path)):
        session = build_session(trace)
        names = [stream.id for stream in session.streams]
        tokens = source.session(session.id, trace.block_size)
        for stream in session.streams:
            seen.add(stream.id)
            theirs = official[stream.id]["turns"]
            conversation = Conversation(stream, tokens)
            assert len(theirs) == len(stream.turns)
            for turn, expected in zip(stream.turns, theirs, strict=True):
                turns += 1
                messages = [[m.role, tokenizer.decode(m.tokens)] for m in conversation.advance()]
                text = json.dumps(messages, ensure_ascii=False)
                assert [role for role, _ in messages] == expected["roles"]
                assert hashlib.sha256(text.encode()).hexdigest() == expected["messages"]
                assert (turn.entry, turn.inner) == (expected["entry"], expected["inner"])
                assert turn.call.t == pytest.approx(expected["t"])
                assert (turn.delay is None) == (expected["delay"] is None)
                assert turn.delay is None or turn.delay == pytest.approx(expected["delay"], abs=1e-6)
                assert turn.call.forced_output == expected["max_tokens"]
                assert (turn.hit_blocks, len(turn.call.hash_ids)) == (expected["hit"], expected["blocks"])
                assert sorted([names[s], k] for s, k in turn.after) == sorted(expected["after"])
    assert turns > 1500
    assert {name for name, conversation in official.items() if conversation["turns"]} == seen


def test_branches_are_the_harness_s(official: dict[str, Any], tmp_path: Path) -> None:
    silent = {name for name, conversation in official.items() if not conversation["turns"]}
    branches = 0
    for trace in open_corpus(write_inputs(tmp_path)):
        session = build_session(trace)
        names = [stream.id for stream in session.streams]
        root = official[session.id]
        expected = {}
        for branch in root["branches"]:
            # Sub-agents that called nothing are conversations for the harness and nothing for us.
            if children := tuple(sorted(set(branch["children"]) - silent)):
                spawn = next(i for i, turn in enumerate(root["turns"]) if branch["id"] in turn["spawns"])
                join = next(
                    (i for i, turn in enumerate(root["turns"]) if branch["id"] in turn["joins"]), None
                )
                expected[children] = (spawn, join, pytest.approx(branch["start"]))
        found = {
            tuple(sorted(names[s] for s in b.streams)): (b.spawned_by, b.joined_by, b.start)
            for b in session.branches
        }
        assert found == expected
        branches += len(found)
    assert branches > 60


if __name__ == "__main__":
    print(write_inputs(Path(sys.argv[1])))
