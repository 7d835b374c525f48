"""What the official harness makes of a folder of traces, as JSON; runs in the harness's own environment.

    HARNESS/bin/python agentx_harness_dump.py TRACES TOKENIZER SEED CORPUS.npy OUT.json

Writes the token array its prompts are cut from (or cuts them from CORPUS.npy, where that exists), and every
conversation: streams, turns, waits, theoretical hits, branches, and the SHA-256 of each turn's messages.
`benchmarks/vs_agentx_harness.py` and `tests/agentx/test_official_sessions.py` compare flashpoint with it.
"""

import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from aiperf.common import random_generator
from aiperf.common.tokenizer import Tokenizer
from aiperf.config.dataset.content import PromptConfig
from aiperf.dataset.generator.coding_content import CodingContentGenerator
from aiperf.dataset.loader.weka_trace import WekaTraceLoader


def stub_run(tokenizer, seed):
    """The few settings the loader reads from a whole run configuration."""
    dataset = SimpleNamespace(model_fields_set=set())
    config = SimpleNamespace(
        get_default_dataset=lambda: dataset,
        tokenizer=SimpleNamespace(name=tokenizer, trust_remote_code=False, revision=None),
        get_model_names=lambda: ["model"],
        phases=[],
    )
    return SimpleNamespace(cfg=config, random_seed=seed)


def messages_of(conversation):
    """Per turn, the messages on the wire: deltas added up, from the last reset on."""
    messages = []
    for turn in conversation.turns:
        if turn.reset_context and turn.raw_messages:
            messages = []
        messages = messages + list(turn.raw_messages or [])
        yield messages


def digest(messages):
    """A SHA-256 over roles and contents."""
    text = json.dumps([[m["role"], m["content"]] for m in messages], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def describe(conversation):
    """One conversation as plain data."""
    return {
        "id": conversation.session_id,
        "turns": [
            {
                "entry": turn.source_outer_idx,
                "inner": turn.source_inner_idx,
                "t": turn.timestamp / 1000,
                "delay": None if turn.delay is None else turn.delay / 1000,
                "max_tokens": turn.max_tokens,
                "hit": turn.theoretical_prefix_cache_hit_blocks,
                "blocks": turn.theoretical_prefix_cache_total_blocks,
                "after": [[p.conversation_id, p.turn_index] for p in turn.replay_predecessors or []],
                "joins": [p.branch_id for p in turn.prerequisites],
                "spawns": list(turn.branch_ids),
                "roles": [message["role"] for message in messages],
                "messages": digest(messages),
            }
            for turn, messages in zip(conversation.turns, messages_of(conversation), strict=True)
        ],
        "branches": [
            {
                "id": branch.branch_id,
                "children": list(branch.child_conversation_ids),
                "background": branch.is_background,
                "start": branch.start_timestamp_ms / 1000,
            }
            for branch in conversation.branches
        ],
    }


def main():
    traces, tokenizer_path, seed, corpus_path, out = sys.argv[1:]
    random_generator.init(int(seed))
    tokenizer = Tokenizer.from_pretrained(tokenizer_path)
    generator = CodingContentGenerator(config=PromptConfig(), tokenizer=tokenizer, prefix_prompts=None)
    if Path(corpus_path).exists():  # cut prompts from this array instead
        generator._tokenized_corpus = np.load(corpus_path).tolist()
        generator._corpus_size = len(generator._tokenized_corpus)
    else:
        np.save(corpus_path, np.array(generator._tokenized_corpus, dtype=np.int32))
    loader = WekaTraceLoader(
        filename=traces, run=stub_run(tokenizer_path, int(seed)), prompt_generator=generator
    )
    conversations = loader.convert_to_conversations(loader.load_dataset())
    with open(out, "w") as file:
        json.dump([describe(conversation) for conversation in conversations], file)


if __name__ == "__main__":
    main()
