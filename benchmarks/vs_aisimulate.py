"""Single steps as flashpoint and AISimulate predict them, by family; where it refuses, our range.

    python benchmarks/vs_aisimulate.py [--aisimulate VENV] [--json]

1. *V4-Flash on GB300*, for which AISimulate has tables of measured modules: decode steps, and prefill chunks
   behind cached contexts. Ours is V4.1's structure with V4-Flash's sizes (benchmarks/aisimulate.py), and
   V4.1-Flash itself.
2. *V4.1-Flash on GB300*, for which it has tables of an eager runtime up to 5,120 tokens: the same.
3. *What it refuses*: its words.
4. *Our answer there*: W (benchmarks/simulator.py) on GB300 and on Rubin at the slow, middle and fast ends.

No drafts in steps; DEP8 batches are a rank's. `benchmarks/simulator.py --aisimulate` plays whole sessions.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import aisimulate
from benchmarks.simulator import play, write_sessions
from flashpoint.hardware.machine import End
from flashpoint.models.work import StepShape
from flashpoint.parallel.layout import parse_layout
from flashpoint.simulate.config import DeploymentConfig
from flashpoint.simulate.deployment import Deployment

ENDS: tuple[End, ...] = ("slow", "middle", "fast")
V41 = "deepseek-ai/DeepSeek-V4.1-Flash"
V41_TABLES = {"backend": "sglang", "backend_version": "dev-800cc9adea5b", "systems": "profiles/dsv41/full"}
PLAIN_PATH = {"fused_reductions": False, "shared_in_routed": False, "early_loads": False}
EAGER_PATH = PLAIN_PATH | {"graphs": False}
LANES = 16
SHOWN = ("virtual_seconds", "output_tokens_per_s", "ttft_p50", "ttft_p90", "per_token_p50", "per_token_p90")

FAMILIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "attention": (("attention",), ("gemm", "attention", "indexer", "engram")),
    "experts": (("moe", "shared", "router"), ("moe", "exchanges")),
    "mixers": (("mhc", "attn_norm", "ffn_norm"), ("hyper_connections",)),
    "head": (("logits",), ("head",)),
}
"""Families that both can be sorted into: starts of AISimulate's operations, ours. Its attention modules hold
the projections; its all-reduces and all-to-alls are operations beside the experts."""


@dataclass(frozen=True)
class Step:
    """A decode step of `batch` sequences of a rank, or, with `rows`, a prefill chunk of one."""

    layout: str
    batch: int
    context: int
    rows: int | None = None

    def __str__(self) -> str:
        what = f"decode {self.batch:3}" if self.rows is None else f"prefill {self.rows}"
        return f"{self.layout} {what} behind {self.context:,}"


DECODES = [Step(layout, b, c) for layout in ("TP4", "DEP8") for c in (4096, 65_536) for b in (1, 16, 64)]
PREFILLS = [Step("TP4", 1, c, rows) for c in (0, 65_536) for rows in (2048, 8192)]
V41_STEPS = [Step("TP4", b, c) for b in (1, 2, 4) for c in (1024, 4096, 65_536)]
V41_PREFILLS = [Step("TP4", 1, c, rows) for c, rows in ((0, 1024), (0, 4096), (3072, 1024), (65_536, 2048))]


def ask(python: Path, steps: Sequence[Step], **settings: str) -> list[dict[str, Any]]:
    """AISimulate's answers."""
    cases = []
    for step in steps:
        words = aisimulate.parallelism(step.layout)
        spread = {
            "tp": words["tensor"],
            "attention_dp": words["attention_data"],
            "moe_tp_size": words["moe_tensor"],
            "moe_ep_size": words["moe_expert"],
        }
        fixed = {"system": "gb300", "worker_type": "aggregated", "estimation_mode": "op_level"}
        cases.append(
            {
                "settings": {**fixed, **spread, **settings},
                "batch": step.batch,
                "context": step.context,
                "rows": step.rows,
            }
        )
    script = Path(__file__).parent / "peers/aisimulate_steps.py"
    done = subprocess.run(
        [python, script],
        input=json.dumps(cases),
        env=aisimulate.ONE_THREAD,
        capture_output=True,
        text=True,
        check=True,
    )
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def theirs(answer: Mapping[str, Any]) -> dict[str, float]:
    """Its operations by family, in ms."""
    found = dict.fromkeys(FAMILIES, 0.0)
    other = 0.0
    for name, milliseconds in answer["operations"]:
        family = next((f for f, (starts, _) in FAMILIES.items() if name.startswith(starts)), None)
        if family is None:
            other += milliseconds
        else:
            found[family] += milliseconds
    return {"total": sum(found.values()) + other, **found, "other": other}


def ours(
    step: Step, model: str, end: End = "middle", *, whole: bool = False, **path: Any
) -> dict[str, float]:
    """Our step by family, in ms; and what a rank must read and multiply for it.

    whole: prefilled rows run every layer, as V4-Flash's do; V4.1's stop at the last KV source.
    """
    config = DeploymentConfig(
        model=model, layout=step.layout, end=end, drafts=0, step_tokens=aisimulate.STEP_TOKENS, **path
    )
    deployment, layout = Deployment(config), parse_layout(step.layout)
    work = deployment.work
    if step.rows is None:
        encoder = decoder = work.sums_of(np.full(step.batch, step.context, dtype=np.int64), 1)
    else:
        encoder = work.sums(step.context, step.rows)
        decoder = encoder if whole else work.sums(0, 0)
    head = step.batch if step.rows is None else 0
    group = layout.dp
    shape = StepShape(encoder, decoder, head, 0, encoder.rows * group, decoder.rows * group)
    asked, time = deployment.step_work(shape, layout), deployment.step_time(shape, layout)
    parts: dict[str, float] = {str(family): s * 1e3 for family, s in time.families.items()}
    overhead = deployment.machine.step_overhead * 1e3
    parts["exchanges"] = time.seconds * 1e3 - sum(parts.values()) - overhead
    found = {f: sum(parts.get(mine, 0.0) for mine in names) for f, (_, names) in FAMILIES.items()}
    return {
        "total": time.seconds * 1e3,
        **found,
        "other": overhead,
        "gigabytes": sum(k.device_bytes for k in asked.kernels.values()) / 1e9,
        "gigaflop": sum(n for k in asked.kernels.values() for n in k.flops.values()) / 1e9,
    }


def v4_flash(python: Path, sized: str) -> Iterator[dict[str, Any]]:
    """Steps of V4-Flash, ours of its sizes, and ours of V4.1-Flash."""
    model = "deepseek-ai/DeepSeek-V4-Flash"
    steps = DECODES + PREFILLS
    tables = {backend: ask(python, steps, model=model, backend=backend) for backend in ("vllm", "sglang")}
    for number, step in enumerate(steps):
        yield {
            "step": str(step),
            **{f"aisimulate {b}": answer_of(answers[number]) for b, answers in tables.items()},
            "sized": ours(step, sized, whole=True),
            "sized, plain path": ours(step, sized, whole=True, **PLAIN_PATH),
            "v4.1": ours(step, "deepseek-v4.1-flash"),
            "range": [ours(step, sized, end, whole=True)["total"] for end in ENDS],
        }


def v41_flash(python: Path) -> Iterator[dict[str, Any]]:
    """Steps of V4.1-Flash in its eager tables, and ours with and without graphs."""
    steps = V41_STEPS + V41_PREFILLS
    answers = ask(python, steps, model=V41, enable_shared_layer=False, strict_provenance=True, **V41_TABLES)
    for step, answer in zip(steps, answers, strict=True):
        made = "deepseek-v4.1-flash"
        yield {
            "step": str(step),
            "aisimulate": answer_of(answer),
            "its own floor": sum(f or 0.0 for f in answer.get("floors", ())) or None,
            "eager": ours(step, made, **EAGER_PATH),
            "graphs": ours(step, made),
            "range": [ours(step, made, end)["total"] for end in ENDS],
        }


def answer_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """By family, or the refusal."""
    return dict(answer) if "refused" in answer else theirs(answer)


def refusals(folder: Path, w: Path, work: Path) -> Iterator[dict[str, str]]:
    """Whole predictions that it declines, in its words."""
    long = aisimulate.replay(w, LANES)

    def short(at_once: int) -> dict[str, Any]:
        return {
            "source": {"type": "synthetic", "input_tokens": 4096, "output_tokens": 256},
            "load": {"type": "concurrency", "concurrency": at_once},
            "stop": {"requests": 16},
        }

    plain = {"model": V41, "backend": "sglang"}
    timing = {"estimation_mode": "op_level", "systems_paths": [tables_of(folder)]}
    spread = {"parallelism": aisimulate.parallelism("TP4"), "timing": timing}
    with_tables = plain | {
        "backend_version": V41_TABLES["backend_version"],
        "workers": {"aggregated": spread},
    }
    asked = {
        "V4.1-Flash, GB300 TP4, W": (long, plain),
        "the same with its V4.1 tables": (long, with_tables),
        "the same, prompts of 4,096, one at a time": (short(1), with_tables),
        "the same, prompts of 4,096, 4 at once": (short(4), with_tables),
        "V4-Flash, Rubin (vr200) TP4, W": (long, {"hardware": "vr200"}),
    }
    for name, (traffic, engine) in asked.items():
        answer, _ = aisimulate.predict(folder, work, traffic, "TP4", engine)
        said = (
            answer
            if isinstance(answer, str)
            else f"answers: TTFT {answer['mean_ttft_ms']:,.0f} ms, {answer['mean_tpot_ms']:.1f} ms a token"
        )
        yield {"question": name, "answer": said}


def ranges(w: Path) -> Iterator[dict[str, Any]]:
    """W on V4.1-Flash as we answer it: at every end of the machine's uncertain numbers, with drafts."""
    for hardware in ("gb300-nvl72", "vr200-nvl72", "vr200-nvl72-implied"):
        for end in ENDS:
            config = DeploymentConfig(
                hardware=hardware, layout="TP4", end=end, step_tokens=aisimulate.STEP_TOKENS
            )
            found = play(config, w, LANES)
            yield {"hardware": hardware, "end": end} | {name: found[name] for name in SHOWN}


def tables_of(folder: Path) -> str:
    """Where its V4.1 tables are in the environment."""
    found = next(folder.glob("lib/*/site-packages/aisimulate_core/systems"))
    return str((found / V41_TABLES["systems"]).resolve())


def main() -> None:
    """Ask both, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--aisimulate", type=Path, default=aisimulate.ENVIRONMENT, metavar="VENV")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    python = aisimulate.environment(options.aisimulate)
    with tempfile.TemporaryDirectory(prefix="vs-aisimulate-") as folder:
        work = Path(folder)
        w = write_sessions(work)
        result = {
            "v4_flash": list(v4_flash(python, str(aisimulate.v4_flash_sized(work)))),
            "v41_flash": list(v41_flash(python)),
            "refusals": list(refusals(options.aisimulate, w, work)),
            "ranges": list(ranges(w)),
        }
    print(json.dumps(result) if options.json else text(result))


def text(result: Mapping[str, Any]) -> str:
    """The tables, in ms."""
    lines = []
    for part in ("v4_flash", "v41_flash"):
        names = ["total", *FAMILIES, "other"]
        lines += [part, f"{'':46}" + "".join(f"{name:>11}" for name in names)]
        for row in result[part]:
            slow, _, fast = row["range"]
            lines.append(f"{row['step']}   our range {fast:.2f} to {slow:.2f}")
            for who, found in row.items():
                if isinstance(found, dict) and "refused" in found:
                    lines.append(f"    {who}: {found['refused']}")
                elif isinstance(found, dict):
                    size = f"  {found['gigabytes']:.2f} GB" if "gigabytes" in found else ""
                    cells = "".join(f"{found[name]:11.3f}" for name in names)
                    lines.append(f"    {who:42}{cells}{size}")
                elif isinstance(found, float):
                    lines.append(f"    {who:42}{found:11.3f}")
        lines.append("")
    lines += [f"{row['question']}: {row['answer']}" for row in result["refusals"]]
    lines += ["", f"{'':30}" + "".join(f"{name:>21}" for name in SHOWN)]
    for row in result["ranges"]:
        cells = "".join(f"{row[name]:21,.4g}" for name in SHOWN)
        lines.append(f"{row['hardware']:22}{row['end']:8}{cells}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
