"""The steps of one rank of a layout, counted: what `V41Work` knows of the model, times what a step computes.

Source: as `work.py`. What does not depend on the step is computed once, since every simulated step asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from flashpoint.models.deepseek_v41.work_rows import RowSums
from flashpoint.models.work import Exchange, Family, KernelWork, Precision, StepShape, StepWork
from flashpoint.parallel.layout import Layout

if TYPE_CHECKING:
    from flashpoint.models.deepseek_v41.work import V41Work

_SMALL_MESSAGE = 16
"""Bytes with which ranks agree on a sampled token: its logit and its id."""

ROW_COUNTS_KEPT = 1024
"""Combinations of row counts whose work is remembered, a few KB each."""


@dataclass(frozen=True, slots=True)
class Part:
    """Layers that run on the same rows: the encoder's, or the decoder's.

    layers: each has an attention and an experts' sublayer and a window.  picks1, picks2: those that read
    entries of a ratio.  scores1, scores2, scores_candidates: indexers by what they score.
    """

    layers: int
    picks1: int
    picks2: int
    scores1: int
    scores2: int
    scores_candidates: int

    @property
    def indexers(self) -> int:
        """All of them."""
        return self.scores1 + self.scores2 + self.scores_candidates


class _Sums:
    """The work of one family so far."""

    __slots__ = ("activations", "caches", "flops", "host", "weights")

    def __init__(self) -> None:
        self.flops: dict[Precision, float] = {}
        self.weights = self.caches = self.activations = self.host = 0.0

    def add(
        self,
        precision: Precision,
        flops: float,
        weights: float = 0.0,
        caches: float = 0.0,
        activations: float = 0.0,
    ) -> None:
        """Work of one kernel, or of some alike."""
        if flops:
            self.flops[precision] = self.flops.get(precision, 0.0) + flops
        self.weights += weights
        self.caches += caches
        self.activations += activations

    def work(self, kernels: int) -> KernelWork:
        """All of it, in so many launches."""
        return KernelWork(self.flops, self.weights, self.caches, self.activations, self.host, kernels)


class RankSteps:
    """Counts steps of a rank of `layout`; a `V41Work`'s own."""

    def __init__(self, model: V41Work, layout: Layout) -> None:
        c, f = model.config, model.formats
        self._model = model
        self._layout = layout
        # With DP attention each rank has a shared expert of its own; else its width is split.
        self._split = layout.tp if layout.dp == 1 else 1
        split, replicated = model.attention_shards(layout)
        self._projections = split + replicated
        heads = c.num_attention_heads / layout.tp
        self._wide = heads * c.head_dim
        self._gemm_width = 2 * c.hidden_size + 2 * c.q_lora_rank + 2 * self._wide
        self._key_flops = 4 * heads * c.head_dim
        # A mixer reads the stream of hc_mult copies and its sublayer's output; it writes stream and input.
        self._stream = (2 * c.hc_mult + 2) * c.hidden_size * f.activation
        self._score_flops = 2 * c.index_n_heads * c.index_head_dim
        self._head = model.head_parameters / layout.tp
        self._pair, self._single = model.source_parameters
        self._sources = len(c.kv_source_layer_ids)
        self._sources1 = sum(c.compress_ratios[layer] == 1 for layer in c.kv_source_layer_ids)
        self._engrams = len(c.engram_layer_ids)
        # Decoding goes on with the same numbers of rows for long, and comes back to them.
        self._of_rows = lru_cache(ROW_COUNTS_KEPT)(self._count_rows)
        self._remote = _remote_ranks(layout.ep, c.num_experts_per_tok) if layout.dp > 1 else 0.0

    def step(self, shape: StepShape[RowSums]) -> StepWork:
        """The work of the busiest rank, which computes `shape`."""
        model, encoder, decoder = self._model, shape.encoder, shape.decoder
        rows = self._of_rows(
            encoder.rows,
            encoder.new2,
            decoder.rows,
            shape.head_rows,
            shape.drafted,
            shape.group_encoder_rows,
            shape.group_decoder_rows,
            model.draft_tokens,
        )
        attention, indexer = _Sums(), _Sums()
        for part, sums in ((model.encoder, encoder), (model.decoder, decoder)):
            if sums.rows:
                self._attention(part, sums, attention)
                self._selection(part, sums, indexer)
        families: dict[Family, KernelWork] = {}
        for family, work in rows.kernels.items():
            if family == "attention":
                families[family] = attention.work(work.kernels)
            elif family == "indexer":
                families[family] = indexer.work(work.kernels)
            else:
                families[family] = work
        return StepWork(families, rows.exchanges)

    def _count_rows(
        self,
        encoder_rows: int,
        encoder_new2: int,
        decoder_rows: int,
        head_rows: int,
        drafted: int,
        group_encoder_rows: int,
        group_decoder_rows: int,
        draft_tokens: int,
    ) -> StepWork:
        """Everything that depends on numbers of rows and not on where they are; see `StepShape`.

        encoder_new2: see `RowSums.new2`. Of attention and indexer only the kernels are counted.
        """
        model, layout = self._model, self._layout
        gemm, moe, mixers, engram, head, draft = (_Sums() for _ in range(6))
        for part, own in ((model.encoder, encoder_rows), (model.decoder, decoder_rows)):
            if own:
                self._dense(part, own, gemm, moe, mixers)
        if encoder_rows:
            self._source_layer(encoder_rows, encoder_new2, decoder_rows, gemm)
            self._engram(encoder_rows, engram)
        exchanges: list[Exchange] = []
        for part, own, group in (
            (model.encoder, encoder_rows, group_encoder_rows),
            (model.decoder, decoder_rows, group_decoder_rows),
        ):
            if group:
                self._experts(part.layers, group, moe)
                self._exchange(exchanges, part.layers, own)
        if head_rows:
            self._logits(head_rows, head)
            if layout.tp > 1:
                exchanges.append(Exchange("all_gather", head_rows * _SMALL_MESSAGE, layout.tp, 1))
        drafts = drafted * draft_tokens
        if drafts:
            group = round(drafts * max(1.0, group_decoder_rows / max(decoder_rows, 1)))
            self._drafts(drafts, group, draft_tokens, decoder_rows, draft)
            self._exchange(exchanges, model.stages, drafts)
        own, group = encoder_rows or decoder_rows, group_encoder_rows or group_decoder_rows
        counted: tuple[tuple[Family, _Sums, int], ...] = (
            ("gemm", gemm, own),
            ("moe", moe, own or group),
            ("attention", _Sums(), own),
            ("hyper_connections", mixers, own),
            ("indexer", _Sums(), own),
            ("engram", engram, encoder_rows),
            ("head", head, head_rows),
            ("draft", draft, drafts),
        )
        launches = self._launches(group_encoder_rows, group_decoder_rows, draft_tokens)
        families = {name: sums.work(launches.get(name, 0)) for name, sums, rows in counted if rows}
        return StepWork(families, tuple(exchanges))

    def _dense(self, part: Part, n: int, gemm: _Sums, moe: _Sums, mixers: _Sums) -> None:
        """Projections, shared expert, router and mixers of a part's layers, for `n` rows."""
        model, f, layers = self._model, self._model.formats, part.layers
        projections = layers * self._projections
        gemm.add(
            f.dense_math,
            2 * n * projections,
            projections * f.dense,
            activations=layers * n * f.activation * self._gemm_width,
        )
        shared = layers * model.expert_parameters / self._split
        moe.add(f.dense_math, 2 * n * shared, shared * f.dense)
        router = layers * model.router_parameters
        moe.add(f.wide_math, 2 * n * router, router * f.router)
        mixer = layers * model.mixer_parameters
        mixers.add(f.wide_math, 2 * n * mixer, mixer * f.wide, activations=2 * layers * n * self._stream)

    def _attention(self, part: Part, rows: RowSums, attention: _Sums) -> None:
        """Attention of a part's layers over windows and picked entries."""
        f, n, layers = self._model.formats, rows.rows, part.layers
        picked = part.picks1 * rows.picked1 + part.picks2 * rows.picked2
        attention.add(
            f.attention_math,
            self._key_flops * (layers * rows.windowed + picked),
            caches=picked * f.entry + layers * (rows.window_span + n) * f.window,
            activations=layers * n * f.activation * 2 * self._wide,
        )

    def _selection(self, part: Part, rows: RowSums, indexer: _Sums) -> None:
        """Indexers of a part; replicated under TP (spec 13.1)."""
        f = self._model.formats
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
        indexer.add(f.index_math, self._score_flops * scored, caches=streamed * f.key)
        queries = part.indexers * self._model.indexer_parameters
        indexer.add(f.dense_math, 2 * rows.rows * queries, queries * f.dense)

    def _source_layer(self, rows: int, new2: int, decoder_rows: int, gemm: _Sums) -> None:
        """What every row writes for others: entries, index keys, the last source's window (spec 2.2)."""
        c, f, pair, single = self._model.config, self._model.formats, self._pair, self._single
        entries = self._sources1 * rows + (self._sources - self._sources1) * new2
        gemm.add(f.pair_math, 2 * rows * pair, f.pair * pair)
        gemm.add(f.single_math, 2 * rows * single, f.single * single, entries * (f.entry + f.key))
        # Rows that go no further than the last source still project and store its window.
        only = max(0, rows - decoder_rows)  # the two may be those of different ranks
        gemm.add(f.dense_math, 2 * only * c.hidden_size * c.head_dim, caches=only * f.window)

    def _engram(self, rows: int, engram: _Sums) -> None:
        c, f = self._model.config, self._model.formats
        weights = self._engrams * self._model.engram_parameters
        engram.add(
            f.dense_math,
            2 * rows * weights,
            weights * f.dense,
            activations=self._engrams * rows * f.activation * (c.hc_mult + 1) * c.hidden_size * 2,
        )
        engram.host += self._engrams * rows * c.engram_slots * c.engram_head_dim * f.table

    def _experts(self, layers: int, group: int, moe: _Sums) -> None:
        """Routed experts: those the group's rows touch, spread over its ranks or split in width."""
        c, f, expert = self._model.config, self._model.formats, self._model.expert_parameters
        chosen, ranks = c.num_experts_per_tok, self._layout.ranks
        touched = _distinct(c.n_routed_experts, chosen, group) / ranks
        mine = group * chosen / ranks * (self._model.skew if self._layout.ep > 1 else 1.0)
        moe.add(
            f.expert_math,
            2 * layers * mine * expert,
            layers * touched * expert * f.expert,
            activations=layers * mine * f.routed * (c.hidden_size + c.moe_intermediate_size),
        )

    def _logits(self, rows: int, sums: _Sums) -> None:
        f = self._model.formats
        sums.add(f.head_math, 2 * rows * self._head, self._head * f.head)

    def _drafts(self, rows: int, group: int, draft_tokens: int, decoder_rows: int, draft: _Sums) -> None:
        """One draft of every sequence (spec 8.2): a block of `draft_tokens` rows through the stages."""
        model, layout = self._model, self._layout
        c, f, stages, expert = model.config, model.formats, model.stages, model.expert_parameters
        dense = stages * (self._projections + expert / self._split)
        context = c.hidden_size * c.hidden_size * len(c.dspark_target_layer_ids or ())
        chosen = c.dspark_num_experts_per_tok or 0
        touched = _distinct(model.draft_experts, chosen, group) / layout.ranks
        keys = c.sliding_window + draft_tokens
        mixer = stages * model.mixer_parameters
        markov = c.vocab_size * (c.dspark_markov_rank or 0)
        draft.add(f.dense_math, 2 * rows * dense, dense * f.dense)
        draft.add(f.dense_math, 2 * decoder_rows * context, context * f.dense)
        draft.add(
            f.expert_math,
            2 * stages * rows * chosen * expert / self._split,
            stages * touched * expert * f.expert,
        )
        draft.add(
            f.attention_math,
            self._key_flops * keys * rows * stages,
            caches=stages * (rows // draft_tokens) * keys * f.window,
        )
        draft.add(f.wide_math, 2 * rows * mixer, mixer * f.wide)
        draft.add("bf16", 2 * rows * markov / layout.tp, 2 * markov * 2.0 / layout.tp)
        self._logits(rows, draft)

    def _exchange(self, exchanges: list[Exchange], layers: int, rows: int) -> None:
        """Two all-reduces a layer under TP; dispatch (FP8 and scales) and combine (bf16) under DP and EP."""
        hidden, layout = self._model.config.hidden_size, self._layout
        if not rows:
            return
        if layout.dp > 1 and layout.ep > 1:
            sent = rows * self._remote * hidden
            exchanges.append(Exchange("all_to_all", sent * (1 + 1 / 32), layout.ep, layers))
            exchanges.append(Exchange("all_to_all", sent * 2, layout.ep, layers))
        elif layout.dp == 1 and layout.tp > 1:
            size = rows * hidden * self._model.formats.activation
            exchanges.append(Exchange("all_reduce", size, layout.tp, 2 * layers))

    def _launches(self, encoder_rows: int, decoder_rows: int, draft_tokens: int) -> dict[Family, int]:
        """Kernels that wait for each other."""
        path, model = self._model.path, self._model
        launches: dict[Family, int] = {"indexer": 0}
        parts = [model.encoder] if encoder_rows else []
        parts += [model.decoder] if decoder_rows else []
        layers = sum([part.layers for part in parts])
        for family, count in path.layer.items():
            launches[family] = launches.get(family, 0) + layers * count
        for part in parts:
            launches["indexer"] += path.indexer * part.indexers + path.candidates * part.scores1
        if encoder_rows:
            launches["gemm"] = launches.get("gemm", 0) + path.source * self._sources
            launches["engram"] = launches.get("engram", 0) + path.engram * self._engrams
        launches["head"] = launches.get("head", 0) + path.head
        stage = sum(path.layer.values())
        launches["draft"] = model.stages * stage + path.draft_token * draft_tokens + path.head
        return launches


def _distinct(experts: int, chosen: int, rows: float) -> float:
    """Expected experts that `rows` rows touch, each choosing `chosen` at random (spec 15.3)."""
    return experts * (1 - (1 - chosen / experts) ** rows) if experts else 0.0


def _remote_ranks(ranks: int, chosen: int) -> float:
    """Expected other ranks that hold an expert of a row."""
    return (ranks - 1) * (1 - (1 - 1 / ranks) ** chosen)
