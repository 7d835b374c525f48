"""What a step of DeepSeek-V4.1-Flash asks of a rank: FLOPs, bytes, exchanges and kernels, per family.

Source: the project's spec, deepseek-v4.1-flash.md sections 2, 10, 13 and 15. Weights are counted from the
matrices' shapes, so that the totals are those of the checkpoint (`tests/models/deepseek_v41/test_work.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from flashpoint.models.deepseek_v41.config import TextConfig
from flashpoint.models.deepseek_v41.work_formats import WorkFormats, released_formats
from flashpoint.models.deepseek_v41.work_kernels import STANDARD, DecodePath
from flashpoint.models.deepseek_v41.work_rows import RowSums, many_row_sums, row_sums
from flashpoint.models.work import Exchange, Family, KernelWork, Precision, StepShape, StepWork
from flashpoint.parallel.layout import Layout

_SMALL_MESSAGE = 16
"""Bytes with which ranks agree on a sampled token: its logit and its id."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Layers that run on the same rows: the encoder's, or the decoder's.

    attention, moe: how many such sublayers.  picks1, picks2: attention layers that read entries of a ratio.
    scores1, scores2, scores_candidates: indexers by what they score.
    """

    attention: int
    moe: int
    picks1: int
    picks2: int
    scores1: int
    scores2: int
    scores_candidates: int
    windows: int


class _Sums:
    """The work of one family so far."""

    __slots__ = ("activations", "caches", "flops", "host", "weights")

    def __init__(self) -> None:
        self.flops: dict[Precision, float] = {}
        self.weights = self.caches = self.activations = self.host = 0.0


class _Tally:
    """Adds up kernels' work by family."""

    def __init__(self) -> None:
        self.families: dict[Family, _Sums] = {}
        self.kernels: dict[Family, int] = {}

    def add(
        self,
        family: Family,
        flops: float = 0.0,
        precision: Precision = "bf16",
        weights: float = 0.0,
        caches: float = 0.0,
        activations: float = 0.0,
        host: float = 0.0,
    ) -> None:
        """Work of one kernel, or of some alike."""
        sums = self.families.get(family)
        if sums is None:
            sums = self.families[family] = _Sums()
        if flops:
            sums.flops[precision] = sums.flops.get(precision, 0.0) + flops
        sums.weights += weights
        sums.caches += caches
        sums.activations += activations
        sums.host += host

    def launch(self, family: Family, kernels: int) -> None:
        """Kernels that wait for each other."""
        self.kernels[family] = self.kernels.get(family, 0) + kernels

    def work(self, exchanges: list[Exchange]) -> StepWork:
        """Everything added so far."""
        families = {
            family: KernelWork(
                sums.flops,
                sums.weights,
                sums.caches,
                sums.activations,
                sums.host,
                self.kernels.get(family, 0),
            )
            for family, sums in self.families.items()
        }
        return StepWork(families, tuple(e for e in exchanges if e.bytes and e.ranks > 1))


class V41Work:
    """Counts steps of one configuration.

    skew: rows of the busiest rank's experts over the mean (performance-model 10: 1.2 to 1.5 at high EP).
    drafts: whether DSpark drafts are made.  path: how many kernels a layer is.
    """

    def __init__(
        self,
        config: TextConfig,
        formats: WorkFormats | None = None,
        *,
        drafts: bool = True,
        skew: float = 1.0,
        path: DecodePath = STANDARD,
    ) -> None:
        self.config = config
        self.formats = formats or released_formats(config)
        self.skew = skew
        self.path = path
        self.draft_tokens = (config.dspark_block_size or 0) if drafts else 0
        source = config.kv_source_layer_ids[-1]
        self._source = source
        kinds = [config.layer_kind(layer) for layer in range(config.num_hidden_layers)]
        self._encoder = self._part(range(source), kinds)
        self._decoder = self._part(range(source, config.num_hidden_layers), kinds)
        self._full = sum(kind == "full" for kind in kinds[:source])

    # ModelWork

    def sums(self, first: int, rows: int) -> RowSums:
        """See ModelWork."""
        return row_sums(self.config, first, rows)

    def sums_of(self, firsts: Sequence[int], rows: int) -> RowSums:
        """See ModelWork."""
        return many_row_sums(self.config, firsts, rows)

    def load(self, encoder: RowSums, decoder: RowSums) -> float:
        """FLOPs of the rows, nearly: what grows with rows and what grows with contexts (spec 15.2)."""
        c = self.config
        core = 4 * c.num_attention_heads * c.head_dim
        score = 2 * c.index_n_heads * c.index_head_dim
        first, behind = self._encoder, self._decoder
        return (
            2 * encoder.rows * self._source * self.layer_active
            + 2 * decoder.rows * (c.num_hidden_layers - self._source) * self.layer_active
            + core * (first.picks2 * encoder.picked2 + behind.picks1 * decoder.picked1)
            + score * (first.scores2 * encoder.entries2 + behind.scores1 * decoder.entries1)
        )

    def step(self, shape: StepShape[RowSums], layout: Layout) -> StepWork:
        """See ModelWork. Raises nothing: an empty shape is no work."""
        tally, exchanges = _Tally(), list[Exchange]()
        encoder, decoder = shape.encoder, shape.decoder
        if encoder.rows:
            self._dense(tally, self._encoder, encoder, layout)
            self._selection(tally, self._encoder, encoder)
            self._source_layer(tally, encoder, shape)
            self._engram(tally, encoder)
        if decoder.rows:
            self._dense(tally, self._decoder, decoder, layout)
            self._selection(tally, self._decoder, decoder)
        for part, rows, group in (
            (self._encoder, encoder.rows, shape.group_encoder_rows),
            (self._decoder, decoder.rows, shape.group_decoder_rows),
        ):
            if group:
                self._experts(tally, part.moe, rows, group, layout)
                exchanges += self._exchanges(part.moe, rows, layout)
        if shape.head_rows:
            self._head(tally, "head", shape.head_rows, layout)
            exchanges.append(Exchange("all_gather", shape.head_rows * _SMALL_MESSAGE, layout.tp, 1))
        if shape.drafted and self.draft_tokens:
            self._drafts(tally, shape, layout)
            exchanges += self._exchanges(self._stages, shape.drafted * self.draft_tokens, layout)
        self._kernels(tally, shape)
        return tally.work(exchanges)

    # Parameters

    @cached_property
    def attention_parameters(self) -> int:
        """Weights of one attention sublayer's matrices."""
        c = self.config
        wide = c.num_attention_heads * c.head_dim
        return (
            c.hidden_size * (c.q_lora_rank + c.head_dim)
            + c.q_lora_rank * wide
            + c.o_lora_rank * wide
            + c.o_groups * c.o_lora_rank * c.hidden_size
        )

    @cached_property
    def expert_parameters(self) -> int:
        """Weights of one expert, routed or shared."""
        return 3 * self.config.hidden_size * self.config.moe_intermediate_size

    @cached_property
    def mixer_parameters(self) -> int:
        """Weights of a layer's two hyper-connection mixers."""
        return (
            2
            * (2 + self.config.hc_mult)
            * self.config.hc_mult
            * self.config.hc_mult
            * self.config.hidden_size
        )

    @cached_property
    def router_parameters(self) -> int:
        """Weights of one router."""
        return self.config.hidden_size * self.config.n_routed_experts

    @cached_property
    def indexer_parameters(self) -> int:
        """Weights of one indexer's query side."""
        c = self.config
        return c.index_n_heads * (c.q_lora_rank * c.index_head_dim + c.hidden_size)

    @cached_property
    def engram_parameters(self) -> int:
        """Weights of one Engram projection."""
        c = self.config
        return c.engram_slots * c.engram_head_dim * (c.hc_mult + 1) * c.hidden_size

    @cached_property
    def head_parameters(self) -> int:
        """Weights of the head."""
        return self.config.vocab_size * self.config.hidden_size

    def compressor_parameters(self, layer: int) -> int:
        """Weights of one source's compressor and index-key projection."""
        c = self.config
        matrices = 2 if c.compress_ratios[layer] > 1 else 1
        return matrices * c.hidden_size * c.head_dim + c.head_dim * c.index_head_dim

    @cached_property
    def source_parameters(self) -> tuple[int, int]:
        """Weights of all sources: of matrices whose entries are pairs of tokens, and of the others."""
        c = self.config
        pair = sum(2 * c.hidden_size * c.head_dim for i in c.kv_source_layer_ids if c.compress_ratios[i] > 1)
        return pair, sum(map(self.compressor_parameters, c.kv_source_layer_ids)) - pair

    @cached_property
    def layer_active(self) -> int:
        """Weights that one token uses in one layer: attention, experts, router, mixers."""
        chosen = self.config.num_experts_per_tok + 1
        return (
            self.attention_parameters
            + chosen * self.expert_parameters
            + self.router_parameters
            + self.mixer_parameters
        )

    @property
    def active_encoder(self) -> int:
        """Weights that a prompt token uses that runs the encoder only (spec 15.1: 7.90 B)."""
        c = self.config
        sources = sum(self.compressor_parameters(layer) for layer in c.kv_source_layer_ids)
        return (
            self._source * self.layer_active
            + self._full * self.indexer_parameters
            + sources
            + len(c.engram_layer_ids) * self.engram_parameters
            + c.hidden_size * c.head_dim
        )

    @property
    def active_full(self) -> int:
        """Weights that a decoded token uses, head included (spec 15.1: 16.13 B)."""
        c = self.config
        behind = c.num_hidden_layers - self._source
        indexers = len(c.index_source_layer_ids) - self._full
        return (
            self.active_encoder
            - c.hidden_size * c.head_dim
            + behind * self.layer_active
            + indexers * self.indexer_parameters
            + self.head_parameters
        )

    def weight_bytes(self, layout: Layout) -> float:
        """Bytes of the weights that one rank of `layout` holds in device memory, drafts included."""
        c, f = self.config, self.formats
        layers = c.num_hidden_layers
        shared = layout.tp if layout.dp == 1 else 1
        experts = layers * c.n_routed_experts * self.expert_parameters * f.expert / layout.ranks
        attention, replicated = self._attention_shards(layout)
        dense = layers * (attention + replicated + self.expert_parameters / shared) * f.dense
        wide = layers * (self.router_parameters * f.router + self.mixer_parameters * f.wide)
        pair, single = self.source_parameters
        sources = pair * f.pair + single * f.single
        indexers = len(c.index_source_layer_ids) * self.indexer_parameters * f.dense
        engram = len(c.engram_layer_ids) * self.engram_parameters * f.dense
        ends = 2 * self.head_parameters * f.head / layout.tp
        draft = 0.0
        if self.draft_tokens:
            width = c.hidden_size * len(c.dspark_target_layer_ids or ())
            draft = (
                self._stages * (attention + replicated + self.expert_parameters / shared) * f.dense
                + self._stages * self._draft_experts * self.expert_parameters * f.expert / layout.ranks
                + c.hidden_size * width * f.dense
                + 2 * c.vocab_size * (c.dspark_markov_rank or 0) * 2.0
            )
        return experts + dense + wide + sources + indexers + engram + ends + draft

    # Parts of a step

    @property
    def _stages(self) -> int:
        return self.config.num_nextn_predict_layers

    @property
    def _draft_experts(self) -> int:
        return self.config.dspark_n_routed_experts or 0

    def _part(self, layers: range, kinds: list[str]) -> _Part:
        ratios = self.config.compress_ratios
        indexed = [layer for layer in layers if kinds[layer] in ("full", "reindex")]
        return _Part(
            attention=len(layers),
            moe=len(layers),
            picks1=sum(ratios[layer] == 1 for layer in layers),
            picks2=sum(ratios[layer] == 2 for layer in layers),
            scores1=sum(ratios[layer] == 1 and kinds[layer] == "full" for layer in indexed),
            scores2=sum(ratios[layer] == 2 for layer in indexed),
            scores_candidates=sum(kinds[layer] == "reindex" and ratios[layer] == 1 for layer in indexed),
            windows=len(layers),
        )

    def _attention_shards(self, layout: Layout) -> tuple[float, int]:
        """A rank's weights of one attention sublayer: of the split matrices, of the replicated ones."""
        replicated = self.config.hidden_size * (self.config.q_lora_rank + self.config.head_dim)
        return (self.attention_parameters - replicated) / layout.tp, replicated

    def _dense(self, tally: _Tally, part: _Part, rows: RowSums, layout: Layout) -> None:
        """Projections, attention, shared expert, router and mixers of a part's layers."""
        c, f, n = self.config, self.formats, rows.rows
        split, replicated = self._attention_shards(layout)
        projections = part.attention * (split + replicated)
        heads = c.num_attention_heads / layout.tp
        wide = heads * c.head_dim
        tally.add(
            "gemm",
            2 * n * projections,
            f.dense_math,
            weights=projections * f.dense,
            activations=part.attention
            * n
            * f.activation
            * (2 * c.hidden_size + 2 * c.q_lora_rank + 2 * wide),
        )
        shared = part.moe * self.expert_parameters / (layout.tp if layout.dp == 1 else 1)
        tally.add("moe", 2 * n * shared, f.dense_math, weights=shared * f.dense)
        tally.add(
            "moe",
            2 * n * part.moe * self.router_parameters,
            f.wide_math,
            weights=part.moe * self.router_parameters * f.router,
        )
        keys = part.windows * rows.windowed + part.picks1 * rows.picked1 + part.picks2 * rows.picked2
        picked = part.picks1 * rows.picked1 + part.picks2 * rows.picked2
        tally.add(
            "attention",
            4 * heads * c.head_dim * keys,
            f.attention_math,
            caches=picked * f.entry + part.windows * (rows.window_span + n) * f.window,
            activations=part.attention * n * f.activation * 2 * wide,
        )
        # A mixer reads the stream of hc_mult copies and its sublayer's output; it writes stream and input.
        stream = (2 * c.hc_mult + 2) * c.hidden_size * f.activation
        tally.add(
            "hyper_connections",
            2 * n * part.attention * self.mixer_parameters,
            f.wide_math,
            weights=part.attention * self.mixer_parameters * f.wide,
            activations=2 * part.attention * n * stream,
        )

    def _selection(self, tally: _Tally, part: _Part, rows: RowSums) -> None:
        """Indexers of a part; replicated under TP (spec 13.1)."""
        c, f = self.config, self.formats
        indexers = part.scores1 + part.scores2 + part.scores_candidates
        scored = (
            part.scores1 * rows.entries1
            + part.scores2 * rows.entries2
            + part.scores_candidates * rows.candidates
        )
        streamed = (
            part.scores1 * rows.streamed1
            + part.scores2 * rows.streamed2
            + part.scores_candidates * rows.streamed_candidates
        )
        tally.add(
            "indexer", 2 * c.index_n_heads * c.index_head_dim * scored, f.index_math, caches=streamed * f.key
        )
        tally.add(
            "indexer",
            2 * rows.rows * indexers * self.indexer_parameters,
            f.dense_math,
            weights=indexers * self.indexer_parameters * f.dense,
        )

    def _source_layer(self, tally: _Tally, rows: RowSums, shape: StepShape[RowSums]) -> None:
        """What every row writes for others: entries, index keys, the last source's window (spec 2.2)."""
        c, f = self.config, self.formats
        pair, single = self.source_parameters
        ratio1 = sum(c.compress_ratios[layer] == 1 for layer in c.kv_source_layer_ids)
        entries = ratio1 * rows.rows + (len(c.kv_source_layer_ids) - ratio1) * rows.new2
        tally.add("gemm", 2 * rows.rows * pair, f.pair_math, weights=f.pair * pair)
        tally.add(
            "gemm",
            2 * rows.rows * single,
            f.single_math,
            weights=f.single * single,
            caches=entries * (f.entry + f.key),
        )
        # Rows that go no further than the last source still project and store its window.
        only = rows.rows - shape.decoder.rows
        tally.add("gemm", 2 * only * c.hidden_size * c.head_dim, f.dense_math, caches=only * f.window)

    def _engram(self, tally: _Tally, rows: RowSums) -> None:
        c, f = self.config, self.formats
        layers = len(c.engram_layer_ids)
        row_bytes = c.engram_slots * c.engram_head_dim * f.table
        tally.add(
            "engram",
            2 * rows.rows * layers * self.engram_parameters,
            f.dense_math,
            weights=layers * self.engram_parameters * f.dense,
            activations=layers * rows.rows * f.activation * (c.hc_mult + 1) * c.hidden_size * 2,
            host=layers * rows.rows * row_bytes,
        )

    def _experts(self, tally: _Tally, layers: int, rows: int, group: int, layout: Layout) -> None:
        """Routed experts: those the group's rows touch, spread over its ranks or split in width."""
        c, f = self.config, self.formats
        chosen = c.num_experts_per_tok
        touched = _distinct(c.n_routed_experts, chosen, group) / layout.ranks
        mine = group * chosen / layout.ranks * (self.skew if layout.ep > 1 else 1.0)
        tally.add(
            "moe",
            2 * layers * mine * self.expert_parameters,
            f.expert_math,
            weights=layers * touched * self.expert_parameters * f.expert,
            activations=layers * mine * f.routed * (c.hidden_size + c.moe_intermediate_size),
        )

    def _head(self, tally: _Tally, family: Family, rows: int, layout: Layout) -> None:
        part, f = self.head_parameters / layout.tp, self.formats
        tally.add(family, 2 * rows * part, f.head_math, weights=part * f.head)

    def _drafts(self, tally: _Tally, shape: StepShape[RowSums], layout: Layout) -> None:
        """One draft of every sequence (spec 8.2): a block of `draft_tokens` rows through the stages."""
        c, f = self.config, self.formats
        rows = shape.drafted * self.draft_tokens
        group = round(rows * max(1.0, shape.group_decoder_rows / max(shape.decoder.rows, 1)))
        split, replicated = self._attention_shards(layout)
        shared = self.expert_parameters / (layout.tp if layout.dp == 1 else 1)
        context = c.hidden_size * c.hidden_size * len(c.dspark_target_layer_ids or ())
        dense = self._stages * (split + replicated + shared)
        chosen = c.dspark_num_experts_per_tok or 0
        touched = _distinct(self._draft_experts, chosen, group) / layout.ranks
        keys = c.sliding_window + self.draft_tokens
        markov = c.vocab_size * (c.dspark_markov_rank or 0)
        tally.add("draft", 2 * rows * dense, f.dense_math, weights=dense * f.dense)
        tally.add("draft", 2 * shape.decoder.rows * context, f.dense_math, weights=context * f.dense)
        tally.add(
            "draft",
            2 * self._stages * rows * chosen * self.expert_parameters / (layout.tp if layout.dp == 1 else 1),
            f.expert_math,
            weights=self._stages * touched * self.expert_parameters * f.expert,
        )
        tally.add(
            "draft",
            4 * c.num_attention_heads / layout.tp * c.head_dim * keys * rows * self._stages,
            f.attention_math,
            caches=self._stages * shape.drafted * keys * f.window,
        )
        tally.add(
            "draft",
            2 * rows * self._stages * self.mixer_parameters,
            f.wide_math,
            weights=self._stages * self.mixer_parameters * f.wide,
        )
        tally.add("draft", 2 * rows * markov / layout.tp, "bf16", weights=2 * markov * 2.0 / layout.tp)
        self._head(tally, "draft", rows, layout)

    def _exchanges(self, layers: int, rows: int, layout: Layout) -> list[Exchange]:
        """Two all-reduces a layer under TP; dispatch (FP8 and scales) and combine (bf16) under DP and EP."""
        hidden, f = self.config.hidden_size, self.formats
        if layout.dp > 1:
            remote = _remote_ranks(layout.ep, self.config.num_experts_per_tok)
            return [
                Exchange("all_to_all", rows * remote * hidden * (1 + 1 / 32), layout.ep, layers),
                Exchange("all_to_all", rows * remote * hidden * 2, layout.ep, layers),
            ]
        return [Exchange("all_reduce", rows * hidden * f.activation, layout.tp, 2 * layers)]

    def _kernels(self, tally: _Tally, shape: StepShape[RowSums]) -> None:
        """Launches that wait for each other."""
        path, c = self.path, self.config
        parts = [self._encoder] if shape.group_encoder_rows else []
        parts += [self._decoder] if shape.group_decoder_rows else []
        for part in parts:
            for family, count in path.layer.items():
                tally.launch(family, part.attention * count)
            tally.launch("indexer", path.indexer * (part.scores1 + part.scores2 + part.scores_candidates))
            tally.launch("indexer", path.candidates * part.scores1)
        if shape.group_encoder_rows:
            tally.launch("gemm", path.source * len(c.kv_source_layer_ids))
            tally.launch("engram", path.engram * len(c.engram_layer_ids))
        if shape.head_rows:
            tally.launch("head", path.head)
        if shape.drafted and self.draft_tokens:
            stage = sum(path.layer.values())
            tally.launch("draft", self._stages * stage + path.draft_token * self.draft_tokens + path.head)


def _distinct(experts: int, chosen: int, rows: float) -> float:
    """Expected experts that `rows` rows touch, each choosing `chosen` at random (spec 15.3)."""
    return experts * (1 - (1 - chosen / experts) ** rows) if experts else 0.0


def _remote_ranks(ranks: int, chosen: int) -> float:
    """Expected other ranks that hold an expert of a row."""
    return (ranks - 1) * (1 - (1 - 1 / ranks) ** chosen)
