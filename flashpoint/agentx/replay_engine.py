"""`flashpoint replay-engine`: agent sessions played straight into an engine of this process."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from rich.console import Console

from flashpoint.agentx.in_process import InProcessLevel
from flashpoint.agentx.prompts.prompter import Prompter
from flashpoint.agentx.prompts.source import TokenSource, load_corpus
from flashpoint.agentx.prompts.tokenizer import PromptTokenizer
from flashpoint.agentx.replay_config import LoadConfig
from flashpoint.agentx.run_levels import EngineRun, LevelContext, PlayClock, run_levels
from flashpoint.agentx.step_rows import Floors
from flashpoint.agentx.summary import RunSummary
from flashpoint.engine.core import EngineCore


def run_replay_engine(
    make_core: Callable[[], EngineCore],
    clock: PlayClock,
    tokenizer: PromptTokenizer,
    config: LoadConfig,
    *,
    max_context: int,
    model: str,
    settings: dict[str, Any],
    floors: Floors | None = None,
    console: Console | None = None,
) -> RunSummary:
    """Replay as `config` says, each level on an engine of its own, and return the archive's figures.

    `make_core` gives a fresh engine on `clock`; `settings` are its options, for the archive.  floors: of the
    machine that computes, where it is known; then the archive says how near steps came to its limits.
    """
    source = TokenSource(load_corpus(config.prompt_text, tokenizer, config.seed), config.seed)
    run = EngineRun(
        max_context=max_context,
        model=model,
        place="in this process",
        settings=settings,
        run_id=secrets.token_hex(6),
        accelerators=config.accelerators,
        tokenizer=tokenizer.sha256,
        prompt_text=source.sha256,
    )

    def make_level(context: LevelContext) -> InProcessLevel:
        return InProcessLevel(make_core(), Prompter(source, tokenizer), context, floors)

    return run_levels(config, run, clock, make_level, console)
