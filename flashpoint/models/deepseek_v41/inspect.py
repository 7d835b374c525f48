"""What a checkpoint holds and what it needs (`flashpoint checkpoint inspect`).

Works on a whole folder, and on `config.json` with the index alone: the sizes then follow from the config, and
the index's names and total are checked against them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from rich.console import Group
from rich.table import Table
from rich.text import Text

from flashpoint.checkpoint.folder import INDEX_NAME, CheckpointIndex, open_checkpoint, read_index
from flashpoint.models.deepseek_v41.cache_spec import cache_spec
from flashpoint.models.deepseek_v41.config import ModelConfig, TextConfig, load_config
from flashpoint.models.deepseek_v41.manifest import Part, TensorSpec, manifest_problems, tensor_manifest

_BACKBONE_EXCLUDES = ("engram tables", "engram projections", "drafts", "vision")


@dataclass(frozen=True, slots=True)
class PartSize:
    """Share of one part: tensors, parameters (quantisation scales not counted) and stored bytes (counted)."""

    part: str
    tensors: int
    parameters: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers of one kind: `window`, `full`, `reindex` or `reuse` (spec 1.3), and their compression ratio."""

    kind: str
    ratio: int
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InspectReport:
    """Everything `inspect` prints, as plain data.

    headers_read: False when only the index was there, so shapes and sizes are the config's word.
    cache_bytes_per_token, cache_bytes_per_sequence: in the official packed codes (spec 10.1).
    active_parameters: weights one token passes through; active_parameters_encoder: when only the layers
    before the last KV source run in full (spec 15.1).
    problems: every difference between the config's tensors and what was found.
    """

    path: str
    headers_read: bool
    stored_form: str
    shards: int
    tensors: int
    parameters: int
    backbone_parameters: int
    nbytes: int
    parts: tuple[PartSize, ...]
    layers: tuple[LayerKind, ...]
    engram_layers: tuple[int, ...]
    draft_stages: int
    context: int
    cache_bytes_per_token: float
    cache_bytes_per_sequence: int
    active_parameters: int
    active_parameters_encoder: int
    problems: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The report as JSON-able values."""
        return asdict(self)


def inspect_checkpoint(path: Path) -> InspectReport:
    """Look at a checkpoint folder, or at an index file; no weight is read.

    Raises CheckpointError when config or index cannot be used, or a shard that is there is damaged. Tensors
    that do not fit the config are listed in the report instead.
    """
    folder = path.parent if path.is_file() and path.name == INDEX_NAME else path
    config = load_config(folder)
    manifest = tensor_manifest(config)
    index = read_index(folder) if (folder / INDEX_NAME).is_file() else None
    if index is not None and not any((folder / shard).exists() for shard in index.shards):
        headers_read, shards = False, len(index.shards)
        problems = _index_problems(index, manifest)
    else:
        checkpoint = open_checkpoint(folder)
        headers_read, shards = True, len({entry.shard for entry in checkpoint.entries.values()})
        problems = manifest_problems(checkpoint, manifest)
        if index is not None:
            problems += _total_problems(index, checkpoint.total_bytes)
    return _report(folder, config, manifest, headers_read, shards, problems)


def _index_problems(index: CheckpointIndex, manifest: dict[str, TensorSpec]) -> list[str]:
    problems = [f"{name}: missing from the index" for name in manifest if name not in index.weight_map]
    problems += [
        f"{name}: surplus; the config asks for no such tensor"
        for name in index.weight_map
        if name not in manifest
    ]
    return problems + _total_problems(index, sum(spec.nbytes for spec in manifest.values()))


def _total_problems(index: CheckpointIndex, expected: int) -> list[str]:
    if index.total_size in (None, expected):
        return []
    return [f"{INDEX_NAME}: total_size is {index.total_size}; expected {expected}"]


def _report(
    folder: Path,
    config: ModelConfig,
    manifest: dict[str, TensorSpec],
    headers_read: bool,
    shards: int,
    problems: list[str],
) -> InspectReport:
    text = config.text
    parts = tuple(size for part in get_args(Part) if (size := _part_size(part, manifest)).tensors)
    caches = cache_spec(text, "codes")
    return InspectReport(
        path=str(folder),
        headers_read=headers_read,
        stored_form="FP8 and MXFP4" if config.quantized else "BF16",
        shards=shards,
        tensors=sum(size.tensors for size in parts),
        parameters=sum(size.parameters for size in parts),
        backbone_parameters=sum(s.parameters for s in parts if s.part not in _BACKBONE_EXCLUDES),
        nbytes=sum(size.nbytes for size in parts),
        parts=parts,
        layers=layer_kinds(text),
        engram_layers=text.engram_layer_ids,
        draft_stages=text.num_nextn_predict_layers,
        context=text.max_position_embeddings,
        cache_bytes_per_token=caches.bytes_per_token,
        cache_bytes_per_sequence=caches.bytes_per_sequence,
        active_parameters=active_parameters(config, manifest),
        active_parameters_encoder=active_parameters(config, manifest, encoder_only=True),
        problems=tuple(problems),
    )


def _part_size(part: str, manifest: dict[str, TensorSpec]) -> PartSize:
    specs = [spec for spec in manifest.values() if spec.part == part]
    parameters, nbytes = sum(s.parameters for s in specs), sum(s.nbytes for s in specs)
    return PartSize(part, len(specs), parameters, nbytes)


def layer_kinds(text: TextConfig) -> tuple[LayerKind, ...]:
    """The schedule, one entry per kind and ratio, in order of first appearance."""
    found: dict[tuple[str, int], tuple[int, ...]] = {}
    for layer in range(text.num_hidden_layers):
        key = text.layer_kind(layer), text.compress_ratios[layer]
        found[key] = (*found.get(key, ()), layer)
    return tuple(LayerKind(kind, ratio, layers) for (kind, ratio), layers in found.items())


def active_parameters(
    config: ModelConfig, manifest: dict[str, TensorSpec], encoder_only: bool = False
) -> int:
    """Weights one token passes through (spec 15.1): of the experts only the chosen ones, of embedding and
    Engram tables nothing, no drafts, no vision.

    encoder_only: of a prompt token whose decoder part is skipped (spec 2): the layers before the last KV
    source, and of that source only what makes its entries and index keys.
    """
    text = config.text
    last_source = text.kv_source_layer_ids[-1]
    total = 0.0
    for name, spec in manifest.items():
        if spec.part in ("engram tables", "drafts", "vision") or name == "embed.weight":
            continue
        if encoder_only and not _runs_in_encoder(name, last_source):
            continue
        share = text.num_experts_per_tok / text.n_routed_experts if spec.part == "routed experts" else 1.0
        total += spec.parameters * share
    return round(total)


def _runs_in_encoder(name: str, last_source: int) -> bool:
    if not name.startswith("layers."):
        return False
    layer, rest = name.removeprefix("layers.").split(".", 1)
    if int(layer) == last_source:
        return rest.startswith(("attn.compressor.", "attn.indexer.wk.", "attn.indexer.k_norm."))
    return int(layer) < last_source


def render(report: InspectReport) -> Group:
    """The report for a terminal: sizes by part, schedule, caches, problems."""
    sizes = Table(title=Text(report.path), title_justify="left", box=None, pad_edge=False)
    sizes.add_column("part")
    for column in ("tensors", "parameters", "bytes"):
        sizes.add_column(column, justify="right")
    for size in report.parts:
        sizes.add_row(size.part, f"{size.tensors:,}", f"{size.parameters:,}", f"{size.nbytes:,}")
    sizes.add_row(
        "total", f"{report.tensors:,}", f"{report.parameters:,}", f"{report.nbytes:,}", style="bold"
    )

    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(style="dim")
    facts.add_column()
    source = "headers read" if report.headers_read else "index only: no headers, sizes follow from the config"
    facts.add_row("stored form", f"{report.stored_form}, {report.shards} shard(s), {source}")
    for kind in report.layers:
        ratio = f", ratio {kind.ratio}" if kind.ratio else ""
        facts.add_row(f"{kind.kind}{ratio}", f"{len(kind.layers)} layer(s): {ranges(kind.layers)}")
    facts.add_row("engram", f"layers {ranges(report.engram_layers) or 'none'}")
    facts.add_row("drafts", f"{report.draft_stages} stage(s)")
    facts.add_row("context", f"{report.context:,} tokens")
    facts.add_row("cache per token", f"{report.cache_bytes_per_token:,g} bytes")
    facts.add_row("cache per sequence", f"{report.cache_bytes_per_sequence:,} bytes")
    facts.add_row(
        "active parameters",
        f"{report.active_parameters:,} per token; {report.active_parameters_encoder:,} with the encoder only",
    )
    for problem in report.problems:
        facts.add_row(Text("problem", "red"), Text(problem))
    return Group(sizes, "", facts)


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers in short: 0-1, 4, 6-9."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
