"""How each kind of golden case is run and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flashpoint.models.deepseek_v41.engram_hash import build_engram_hash
from flashpoint.models.load import LoadedModel
from flashpoint.ops.indexer.reference import index_scores, mask_invisible, mask_outside
from flashpoint.verify.compare import (
    SUBLAYER_MAX,
    SUBLAYER_MEDIAN,
    SUBLAYER_P90,
    Finding,
    clear_choices,
    exact_values,
    identical,
    typical_rows,
)
from flashpoint.verify.golden import Case, image_free_rows
from flashpoint.verify.runner import Recorder, Runner

# Sizes of the chunked re-runs of a sublayer comparison; what is left after them runs token by token.
_CHUNKS = (1, 7, 16, 2, 33)
# Recorded values fed to a quantised run, so that each part is judged on recorded input alone.
_FED_ENDINGS = (".attn_in", ".ffn_in", ".attn_out", ".ffn_out", ".out", ".pre_mix_out", ".engram_out")
_JUDGED_ENDINGS = (*_FED_ENDINGS, ".window_kv", ".compress_kv", ".index_k")


def run_case(loaded: LoadedModel, case: Case) -> Iterator[Finding]:
    """Run one case and compare everything it records that this build computes."""
    yield from _RUNS[case.kind](loaded, case)


def covered(case: Case) -> bool:
    """True when `run_case` knows this kind of case and something in it can be compared."""
    return case.kind in _RUNS and ("input_ids" not in case.tensors or image_free_rows(case) > 0)


def not_covered(case: Case) -> list[str]:
    """Parts of a case that this build does not compute, in words."""
    parts = []
    if any(name.split(".")[0] in ("dspark", "main_hidden") or ".dspark." in name for name in case.tensors):
        parts.append("drafts")
    if "token_types" in case.tensors:
        rows, total = image_free_rows(case), len(case.tensors["input_ids"])
        parts.append(f"images (rows {rows}…{total - 1})")
    return parts


def _ids(tensor: Tensor) -> npt.NDArray[np.int32]:
    return tensor.numpy().astype(np.int32)


def _prefill(loaded: LoadedModel, case: Case) -> Iterator[Finding]:
    rows = image_free_rows(case)
    ids = _ids(case.tensors["input_ids"])[:rows]
    if case.recording == "exact":
        tap = Recorder()
        logits = Runner(loaded, [ids]).step({0: rows}, tap)
        yield from _exact_prefill(loaded, case, rows, {**tap.tensors(), "logits": logits})
        return
    forced = {n: t for n, t in case.tensors.items() if n.endswith(_FED_ENDINGS)}
    inputs = [n for n in forced if n.endswith((".attn_in", ".ffn_in"))]
    if len(inputs) == 2 * loaded.config.text.num_hidden_layers:
        for name, sizes in _chunkings(rows).items():
            tap = Recorder(forced)
            logits = torch.cat(Runner(loaded, [ids]).chunked(sizes, tap))
            got = {**tap.tensors(), "logits": logits}
            yield from _sublayers(f"{case.name} ({name})", loaded, case, rows, got)
        return
    tap = Recorder()
    logits = Runner(loaded, [ids]).step({0: rows}, tap)
    got = {**tap.tensors(), "logits": logits}
    for name in case.tensors:
        if name in ("final_hidden", "logits") or name.endswith(("compress_kv", "index_k")):
            yield _run_end(loaded, case, name, got[name], _expected(loaded, case, name, rows))


def _chunkings(rows: int) -> dict[str, list[int]]:
    sizes = [s for i, s in enumerate(_CHUNKS) if sum(_CHUNKS[: i + 1]) < rows]
    return {"whole": [rows], "chunks and decode": sizes + [1] * (rows - sum(sizes))}


def _exact_prefill(loaded: LoadedModel, case: Case, rows: int, got: dict[str, Tensor]) -> Iterator[Finding]:
    got = {**got, **_derived(loaded, got)}
    for name in case.tensors:
        if name in got:
            yield from _compare_exact(case, name, got, _expected(loaded, case, name, rows))


def _expected(loaded: LoadedModel, case: Case, name: str, rows: int) -> Tensor:
    """The recorded tensor as far as `rows` leading positions determine it."""
    text = loaded.config.text
    value = case.tensors[name]
    layer = int(name.split(".")[1]) if name.startswith("layers.") else None
    entries = rows if layer is None else rows // max(text.compress_ratios[layer], 1)
    if name.endswith(("compress_kv", "index_k")):
        return value[:entries]
    if name.endswith(("index_scores", "candidates")):
        return value[:rows, :entries]
    return value[:rows]


def _derived(loaded: LoadedModel, got: dict[str, Tensor]) -> dict[str, Tensor]:
    """Recorded quantities that the forward pass itself never forms: full score matrices and masks."""
    text = loaded.config.text
    derived: dict[str, Tensor] = {}
    source, blocks = (
        text.candidate_source_layer_id,
        got[f"layers.{text.candidate_source_layer_id}.candidate_blocks"],
    )
    for layer in text.index_source_layer_ids:
        keys = got[f"layers.{text.kv_source_of[layer]}.index_k"]
        scores = index_scores(got[f"layers.{layer}.index_q"], got[f"layers.{layer}.index_weights"], keys)
        visible = (torch.arange(len(scores)) + 1) // text.compress_ratios[layer]
        scores = mask_invisible(scores, visible)
        if layer > source:
            scores = mask_outside(scores, blocks, text.candidate_block_size)
        derived[f"layers.{layer}.index_scores"] = scores
        if layer == source:
            inside = mask_outside(torch.zeros_like(scores), blocks, text.candidate_block_size)
            derived[f"layers.{layer}.candidates"] = inside == 0
    return derived


def _compare_exact(case: Case, name: str, got: dict[str, Tensor], expected: Tensor) -> Iterator[Finding]:
    value = got[name]
    if name.endswith("moe_weights"):
        # The order of experts is undefined; put both in the order of their ids.
        ids = name.replace("moe_weights", "moe_ids")
        value = value.gather(1, got[ids].argsort(-1))
        expected = expected.gather(1, case.tensors[ids][: len(expected)].long().argsort(-1))
    if name.endswith(("moe_ids", "topk_idxs")):
        yield identical(case.name, name, _ordered(value), _ordered(expected))
    elif name.endswith(("engram_hash_ids", "candidates")):
        yield identical(case.name, name, value, expected)
    else:
        yield exact_values(case.name, name, value, expected)


def _ordered(ids: Tensor) -> Tensor:
    return ids.long().sort(-1).values


def _sublayers(
    label: str, loaded: LoadedModel, case: Case, rows: int, got: dict[str, Tensor]
) -> Iterator[Finding]:
    """Each sublayer on its recorded input: the error of one sublayer, not of all before it."""
    limits = (SUBLAYER_MEDIAN, SUBLAYER_P90, SUBLAYER_MAX)
    for name in case.tensors:
        if name not in got:
            continue
        expected = _expected(loaded, case, name, rows)
        if name.endswith(_JUDGED_ENDINGS) or name in ("final_hidden", "logits"):
            yield typical_rows(label, name, got[name], expected, limits, judged=True)
        elif name == "engram_hash_ids":
            yield identical(label, name, got[name], expected)
        elif name.endswith((".topk_idxs", ".moe_ids")):
            margin = case.tensors.get(
                name.replace("topk_idxs", "topk_margin").replace("moe_ids", "moe_margin")
            )
            margin = None if margin is None else margin[:rows]
            yield clear_choices(label, name, _ordered(got[name]), _ordered(expected), margin, judged=True)


def _run_end(loaded: LoadedModel, case: Case, name: str, got: Tensor, expected: Tensor) -> Finding:
    """Logits at the end of a whole run, by the rule of the case's numerics."""
    if case.recording == "exact":
        return exact_values(case.name, name, got, expected)
    # With quantised linears even the typical row of a whole run may be off by 0.1: no target.
    return typical_rows(case.name, name, got, expected, None, judged=not loaded.config.quantized)


def _decode(loaded: LoadedModel, case: Case) -> Iterator[Finding]:
    prompt, fed = _ids(case.tensors["prompt_ids"]), _ids(case.tensors["decode_ids"])
    runner = Runner(loaded, [np.concatenate((prompt, fed))])
    runner.step({0: len(prompt)})
    tap = Recorder()
    logits = torch.cat(runner.chunked([1] * len(fed), tap))
    yield _run_end(loaded, case, "logits_last", logits, case.tensors["logits_last"])
    if case.recording != "exact":
        return
    got = tap.tensors()
    for name, expected in case.tensors.items():
        if name in got:
            yield from _compare_exact(case, name, got, expected)


def _chunked(loaded: LoadedModel, case: Case) -> Iterator[Finding]:
    ids = _ids(case.tensors["input_ids"])
    for name in (n for n in case.tensors if n.endswith(".chunk_sizes")):
        plan = name.removesuffix(".chunk_sizes")
        rows = Runner(loaded, [ids]).chunked(case.tensors[name].tolist())
        ends = torch.stack([part[-1] for part in rows])
        yield _run_end(loaded, case, f"{plan}.logits", ends, case.tensors[f"{plan}.logits_at_chunk_end"])


def _short(loaded: LoadedModel, case: Case) -> Iterator[Finding]:
    ids = _ids(case.tensors["input_ids"])
    last = [Runner(loaded, [ids[:n]]).step({0: n})[-1] for n in case.tensors["lengths"].tolist()]
    yield _run_end(loaded, case, "logits", torch.stack(last), case.tensors["logits"])


def _replay(loaded: LoadedModel, case: Case) -> Iterator[Finding]:
    """The decoder on the last R rows alone, after an encoder pass over all rows at once and in two chunks."""
    ids = _ids(case.tensors["input_ids"])
    for name in (n for n in case.tensors if n.endswith(".logits")):
        rows = int(name.removeprefix("R").removesuffix(".logits"))
        for label, first in (("whole", 0), ("chunked", (len(ids) - rows) // 2)):
            runner = Runner(loaded, [ids])
            if first:
                runner.step({0: first}, decoder_rows=0)
            logits = runner.step({0: len(ids) - first}, decoder_rows=rows)
            yield _run_end(loaded, case, f"R{rows}.{label}.logits", logits, case.tensors[name])


def _batch(loaded: LoadedModel, case: Case) -> Iterator[Finding]:
    prompts = [
        _ids(row)[:length]
        for row, length in zip(case.tensors["input_ids"], case.tensors["lengths"].tolist(), strict=True)
    ]
    expected = case.tensors["gen_ids"]
    ids, logits = Runner(loaded, prompts, room=expected.shape[1]).greedy(expected.shape[1])
    if case.recording == "exact":
        yield identical(case.name, "gen_ids", ids, expected)
    yield _run_end(loaded, case, "gen_logits", logits.flatten(0, 1), case.tensors["gen_logits"].flatten(0, 1))


def _greedy(loaded: LoadedModel, case: Case) -> Iterator[Finding]:
    for name in ("short", "long"):
        prompt, expected = _ids(case.tensors[f"{name}.prompt_ids"]), case.tensors[f"{name}.gen_ids"]
        if case.recording == "exact":
            ids, logits = Runner(loaded, [prompt], room=len(expected)).greedy(len(expected))
            yield identical(case.name, f"{name}.gen_ids", ids[0], expected)
            yield _run_end(loaded, case, f"{name}.gen_logits", logits[0], case.tensors[f"{name}.gen_logits"])
            continue
        # One flipped token would change all later ones: feed the recorded tokens.
        runner = Runner(loaded, [np.concatenate((prompt, _ids(expected)))])
        first = runner.step({0: len(prompt)})[-1:]
        rest = runner.chunked([1] * (len(expected) - 1))
        logits = torch.cat([first, *rest])
        yield _run_end(loaded, case, f"{name}.gen_logits", logits, case.tensors[f"{name}.gen_logits"])


def _engram(loaded: LoadedModel, case: Case) -> Iterator[Finding]:
    constants = build_engram_hash(loaded.config, loaded.folder / "tokenizer.json")
    layers = len(loaded.config.text.engram_layer_ids)
    got = {
        "token_map": torch.from_numpy(constants.token_map),
        "multipliers": torch.from_numpy(constants.multipliers),
        "primes": torch.from_numpy(constants.primes).view(layers, -1, loaded.config.text.engram_n_heads),
        "offsets": torch.from_numpy(constants.offsets),
        "pad_id": torch.tensor(constants.pad),
    }
    ids = _ids(case.tensors["input_ids"])
    tap = Recorder()
    Runner(loaded, [ids]).step({0: len(ids)}, tap)
    got["hash_ids"] = tap.tensors()["engram_hash_ids"]
    for name, value in got.items():
        yield identical(case.name, name, value, case.tensors[name])


_RUNS: dict[str, Callable[[LoadedModel, Case], Iterator[Finding]]] = {
    "prefill": _prefill,
    "decode": _decode,
    "chunked": _chunked,
    "short": _short,
    "replay": _replay,
    "batch": _batch,
    "greedy": _greedy,
    "engram": _engram,
}
