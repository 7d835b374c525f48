"""Single operators against the golden vectors of the authors' code."""

import torch

from flashpoint.ops.attention import cpu as attention_cpu
from flashpoint.ops.attention import reference as attention_reference
from flashpoint.ops.compressor.reference import pool_pair
from flashpoint.ops.gemm.reference import linear
from flashpoint.ops.hyper_connections import reference as hyper
from flashpoint.ops.indexer.reference import candidate_blocks, mask_invisible, mask_outside
from flashpoint.ops.moe.reference import route, swiglu
from flashpoint.ops.quantization.reference import fp8_qdq
from flashpoint.ops.rope.reference import plain_frequencies, rope_table, rotate, yarn_frequencies
from tests.golden_data import units


def close(got, expected, tolerance=2e-6):
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


def test_rope_tables_of_the_released_model():
    u = units()
    positions = u["rope.positions"].long()
    window = rope_table(positions, plain_frequencies(64, 10000.0))
    compressed = rope_table(positions, yarn_frequencies(64, 160000.0, 16, 32, 1, 65536))
    for table, name in ((window, "window"), (compressed, "compressed")):
        close(table.real, u[f"rope.{name}.cos"])
        close(table.imag, u[f"rope.{name}.sin"])


def test_yarn_frequencies_equal_the_check_values_of_the_spec():
    plain = plain_frequencies(64, 160000.0)
    yarn = yarn_frequencies(64, 160000.0, 16, 32, 1, 65536)
    for index, before, after in [
        (14, 5.286856e-3, 5.286856e-3),
        (15, 3.635539e-3, 3.635539e-3),
        (16, 2.5e-3, 2.265625e-3),
        (20, 5.59017e-4, 2.96978e-4),
        (24, 1.25e-4, 1.9531e-5),
        (25, 8.5957e-5, 5.372e-6),
        (31, 9.089e-6, 5.68e-7),
    ]:
        assert abs(float(plain[index]) / before - 1) < 1e-4
        assert abs(float(yarn[index]) / after - 1) < 2e-4


def test_rotation_and_its_inverse():
    u = units()
    table = rope_table(u["rope.positions"].long(), yarn_frequencies(64, 160000.0, 16, 32, 1, 65536))
    plain = rope_table(u["rope.positions"].long(), plain_frequencies(64, 10000.0))
    rotated = [rotate(u["rope.x"][0], t) for t in (table, plain)]
    matches = [torch.allclose(r, u["rope.rotated"][0], atol=2e-5) for r in rotated]
    assert any(matches)
    used = (table, plain)[matches.index(True)]
    close(rotate(u["rope.x"][0], used, inverse=True), u["rope.inverse"][0], 2e-5)
    close(rotate(rotate(u["rope.x"][0], used), used, inverse=True), u["rope.x"][0], 2e-5)


def test_hyper_connection_split_collapse_expand():
    u = units()
    pre, post, logits = hyper.split(u["hc.mixes"][0], u["hc.base"], u["hc.scale"], 1e-6)
    comb = hyper.sinkhorn(logits, 20, 1e-6)
    close(pre, u["hc.pre"][0])
    close(post, u["hc.post"][0])
    close(comb, u["hc.comb"][0])
    close(hyper.collapse(u["hc.stream"][0], pre), u["hc.collapsed"][0], 1e-5)
    close(hyper.expand(u["hc.stream"][0], u["hc.branch"][0], post, comb), u["hc.expanded"][0], 1e-5)


def test_sinkhorn_example_of_the_spec():
    logits = torch.tensor([[[0.0, 1, 2, 3], [1, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0, 1]]])
    expected = torch.tensor(
        [
            [0.049248, 0.081723, 0.378481, 0.490547],
            [0.558763, 0.125489, 0.213804, 0.101943],
            [0.141907, 0.640117, 0.147599, 0.070376],
            [0.250082, 0.152670, 0.260114, 0.337132],
        ]
    )
    close(hyper.sinkhorn(logits, 20, 1e-6)[0], expected, 2e-6)


def test_sparse_attention_with_sink_and_missing_keys():
    u = units()
    q, index = u["attn.q"][0], u["attn.idx"][0].long()
    nothing = index[:, :0]
    for op in (attention_reference.sparse_attention, attention_cpu.sparse_attention):
        out = op(q, u["attn.kv"][0], index, q[:0, 0], nothing, u["attn.sink"], float(u["attn.scale"]))
        close(out, u["attn.o"][0], 1e-5)
        half = op(
            q.bfloat16(),
            u["attn.kv"][0].bfloat16(),
            index,
            q[:0, 0].bfloat16(),
            nothing,
            u["attn.sink"],
            float(u["attn.scale"]),
        )
        close(half.float(), u["attn.o_bf16"][0], 2e-2)


def test_candidate_blocks_for_both_block_sizes():
    u = units()
    visible = u["cand.lens"].long()
    scores = mask_invisible(u["cand.logits"][0], visible)
    for size, count in ((2, 5), (4, 3)):
        blocks = candidate_blocks(scores, visible, size, count)
        inside = mask_outside(torch.zeros_like(scores), blocks, size) == 0
        assert torch.equal(inside, u[f"cand.mask_b{size}_k{count}"][0].bool())


def test_router_chooses_with_the_bias_and_weighs_without_it():
    u = units()
    ids, weights = route(u["gate.x"], u["gate.weight"], u["gate.bias"], 3, 1.5)
    order, golden = ids.argsort(-1), u["gate.ids"].long().argsort(-1)
    assert torch.equal(ids.gather(1, order), u["gate.ids"].long().gather(1, golden))
    close(weights.gather(1, order), u["gate.weights"].gather(1, golden))


def test_swiglu_clamps_the_gate_from_above_only():
    u = units()
    close(swiglu(torch.cat((u["swiglu.gate"], u["swiglu.up"]), -1), 2.0), u["swiglu.out_limit2"])


def test_pair_pooling():
    u = units()
    kv, score = u["pool.kv"][0], u["pool.score"][0]
    close(pool_pair(kv[:, 0], score[:, 0], kv[:, 1], score[:, 1]), u["pool.out"][0])


def test_linear_with_quantised_activations_against_both_stored_weight_forms():
    u = units()
    close(linear(u["linear.x"], u["fp8_weight.dq"], fp8_qdq), u["linear.fp8_y"], 1e-4)
    close(linear(u["linear.x"], u["fp4_weight.dq"], fp8_qdq), u["linear.fp4_y"], 1e-4)
