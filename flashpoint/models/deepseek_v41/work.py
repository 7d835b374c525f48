"""What a step of DeepSeek-V4.1-Flash asks of a rank: FLOPs, bytes, exchanges and kernels, per family.

Source: the project's spec, deepseek-v4.1-flash.md sections 2, 10, 13 and 15. Weights are counted from the
matrices' shapes, so that the totals are those of the checkpoint (`tests/models/deepseek_v41/test_work.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from flashpoint.models.deepseek_v41.config import TextConfig
from flashpoint.models.deepseek_v41.work_formats import WorkFormats, released_formats
from flashpoint.models.deepseek_v41.work_kernels import STANDARD, DecodePath
from flashpoint.models.deepseek_v41.work_rows import RowSums, many_row_sums, row_sums
from flashpoint.models.deepseek_v41.work_step import Part, RankSteps
from flashpoint.models.work import StepShape, StepWork
from flashpoint.parallel.layout import Layout


class V41Work:
    """Counts steps of one configuration.

    skew: rows of the busiest rank's experts over the mean (performance-model 10: 1.2 to 1.5 at high EP).
    drafts: whether DSpark drafts are made.  path: how many kernels a layer is.
    encoder, decoder: the layers up to the last KV source, and those behind it.
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
        self.encoder = self._part(range(source), kinds)
        self.decoder = self._part(range(source, config.num_hidden_layers), kinds)
        self._ranks: dict[Layout, RankSteps] = {}
        self._full = sum(kind == "full" for kind in kinds[:source])

    # ModelWork

    def sums(self, first: int, rows: int) -> RowSums:
        """See ModelWork."""
        return row_sums(self.config, first, rows)

    def sums_of(self, firsts: Sequence[int], rows: int) -> RowSums:
        """See ModelWork."""
        return many_row_sums(self.config, firsts, rows)

    def load(self, rows: RowSums) -> float:
        """FLOPs of rows that run every layer, nearly: what grows with rows and with contexts (spec 15.2)."""
        c = self.config
        core = 4 * c.num_attention_heads * c.head_dim
        score = 2 * c.index_n_heads * c.index_head_dim
        first, behind = self.encoder, self.decoder
        return (
            2 * rows.rows * c.num_hidden_layers * self.layer_active
            + core * (first.picks2 * rows.picked2 + behind.picks1 * rows.picked1)
            + score * (first.scores2 * rows.entries2 + behind.scores1 * rows.entries1)
        )

    def step(self, shape: StepShape[RowSums], layout: Layout) -> StepWork:
        """See ModelWork. Raises nothing: an empty shape is no work."""
        rank = self._ranks.get(layout)
        if rank is None:
            rank = self._ranks[layout] = RankSteps(self, layout)
        return rank.step(shape)

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
        attention, replicated = self.attention_shards(layout)
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
                self.stages * (attention + replicated + self.expert_parameters / shared) * f.dense
                + self.stages * self.draft_experts * self.expert_parameters * f.expert / layout.ranks
                + c.hidden_size * width * f.dense
                + 2 * c.vocab_size * (c.dspark_markov_rank or 0) * 2.0
            )
        return experts + dense + wide + sources + indexers + engram + ends + draft

    # What a step is made of

    @property
    def stages(self) -> int:
        """Draft stages."""
        return self.config.num_nextn_predict_layers

    @property
    def draft_experts(self) -> int:
        """Routed experts of a draft stage."""
        return self.config.dspark_n_routed_experts or 0

    def _part(self, layers: range, kinds: list[str]) -> Part:
        ratios = self.config.compress_ratios
        indexed = [layer for layer in layers if kinds[layer] in ("full", "reindex")]
        return Part(
            layers=len(layers),
            picks1=sum(ratios[layer] == 1 for layer in layers),
            picks2=sum(ratios[layer] == 2 for layer in layers),
            scores1=sum(ratios[layer] == 1 and kinds[layer] == "full" for layer in indexed),
            scores2=sum(ratios[layer] == 2 for layer in indexed),
            scores_candidates=sum(kinds[layer] == "reindex" and ratios[layer] == 1 for layer in indexed),
        )

    def attention_shards(self, layout: Layout) -> tuple[float, int]:
        """A rank's weights of one attention sublayer: of the split matrices, of the replicated ones."""
        replicated = self.config.hidden_size * (self.config.q_lora_rank + self.config.head_dim)
        return (self.attention_parameters - replicated) / layout.tp, replicated
