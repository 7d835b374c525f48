"""The prefix cache through the server: what agents are told, and what survives kill -9."""

from itertools import pairwise

from tests.end_to_end.conftest import serving

TINY = ("--block-tokens", 16, "--max-running", 4, "--max-step-tokens", 256)
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "the",
    "lazy",
    "dog",
    "and",
    "runs",
    "home",
    "to",
    "sleep",
    "until",
    "the",
    "next",
    "day",
    "begins",
]


def folder(parent, name):
    made = parent / name
    made.mkdir()
    return made


def ask(server, messages):
    body = {"messages": messages, "temperature": 0, "max_tokens": 6}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return answer.json()["choices"][0]["message"]["content"], usage["prompt_tokens"], cached


def session(server, seed, turns=5):
    """(prompt tokens, cached tokens) of each turn of a growing conversation, and its answers."""
    messages, counts, answers = [], [], []
    for turn in range(turns):
        text = " ".join(WORDS[(seed * 7 + turn + i) % len(WORDS)] for i in range(60))
        messages.append({"role": "user", "content": f"{seed} {text}"})
        answer, prompt, cached = ask(server, messages)
        counts.append((prompt, cached))
        answers.append(answer)
        messages.append({"role": "assistant", "content": answer})
    return counts, answers


def test_turns_hit_what_was_said_and_metrics_agree_with_usage(nano, tmp_path):
    with serving(nano, tmp_path, *TINY) as server:
        counts, _ = session(server, 1, turns=6)
        assert counts[0][1] == 0
        for (before, _), (prompt, cached) in pairwise(counts):
            # All of the last prompt; its answer is encoded anew, perhaps in other tokens.
            assert before // 16 * 16 <= cached < prompt
        cached = sum(count for _, count in counts)
        assert server.metric("flashpoint_engine_cached_prompt_tokens_total") == cached
        assert server.metric('flashpoint_cache_hit_tokens_total{tier="device"}') == cached
        assert server.metric('flashpoint_usage_tokens_total{kind="cached"}') == cached
        prompt, computed = (
            sum(p for p, _ in counts),
            server.metric("flashpoint_engine_computed_prompt_tokens_total"),
        )
        assert computed == prompt - cached + server.metric("flashpoint_engine_replayed_tokens_total")
        assert (
            server.metric("flashpoint_cache_blocks_used") == 0 < server.metric("flashpoint_cache_blocks_kept")
        )


def test_the_cache_changes_no_answer_under_full_semantics(nano, tmp_path):
    with serving(nano, folder(tmp_path, "on"), *TINY, "--semantics", "full") as server:
        counts, with_cache = session(server, 2, turns=7)
    with serving(nano, folder(tmp_path, "off"), *TINY, "--semantics", "full", "--no-prefix-cache") as server:
        nothing, without = session(server, 2, turns=7)
    assert with_cache == without
    assert sum(cached for _, cached in counts) > 0 == sum(cached for _, cached in nothing)


def test_the_disk_tier_is_found_again_after_kill_9(nano, tmp_path):
    """More sessions than the device and the host hold: the rest is on disk when the process is killed."""
    tiers = ("--cache-tokens", 960, "--host-memory", "100KiB", "--disk-folder", tmp_path / "cache")
    options = (*TINY, *tiers, "--semantics", "full")
    with serving(nano, folder(tmp_path, "first"), *options) as server:
        first = [session(server, seed, turns=2) for seed in range(6)]
        server.process.kill()
    files = list((tmp_path / "cache").glob("*/*.run"))
    assert files, "nothing went to disk"
    files[0].write_bytes(files[0].read_bytes()[:-5])
    with serving(nano, folder(tmp_path, "second"), *options) as server:
        again = [session(server, seed, turns=2) for seed in range(6)]
        assert server.metric('flashpoint_cache_hit_tokens_total{tier="disk"}') > 0
    assert [answers for _, answers in again] == [answers for _, answers in first]
    assert str(files[0]) in (tmp_path / "second" / "server.log").read_text(), "the damage is not reported"
