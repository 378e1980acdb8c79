"""Models whose every layer attends on all tokens, with experts as feed-forward layers."""

from .attention import LONG_ROPE, MULTIPLIERS
from .shape import HEAD_DIM, YARN, bare, small

ROUTED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
DEEPSEEK_EXPERTS = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
}
_GROUPS = {"n_group": 2, "topk_group": 1}

FAMILIES = {
    "Klear": small(
        "Klear",
        **ROUTED,
        n_shared_experts=1,
        attention_bias=False,
        decoder_sparse_step=1,
        mlp_only_layers=[0],
        norm_topk_prob=True,
    ),
    "bailing_moe": small(
        "bailing_moe",
        **ROUTED,
        num_shared_experts=1,
        norm_topk_prob=True,
        first_k_dense_replace=1,
        topk_group=1,
    ),
    "dbrx": bare(
        "dbrx",
        d_model=128,
        n_layers=2,
        n_heads=4,
        ffn_config={"ffn_hidden_size": 128, "moe_num_experts": 4, "moe_top_k": 2},
        attn_config={"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 500000},
    ),
    "deepseek": small("deepseek", **DEEPSEEK_EXPERTS, moe_layer_freq=1),
    "dots1": small("dots1", **DEEPSEEK_EXPERTS, scoring_func="noaux_tc"),
    "ernie4_5_moe": small(
        "ernie4_5_moe",
        use_bias=False,
        moe_num_experts=4,
        moe_k=2,
        moe_intermediate_size=64,
        moe_layer_start_index=1,
        moe_num_shared_experts=1,
    ),
    "glm4_moe": small(
        "glm4_moe",
        **DEEPSEEK_EXPERTS,
        **_GROUPS,
        use_qk_norm=True,
        attention_bias=True,
        partial_rotary_factor=0.5,
        rope_scaling=YARN,
    ),
    "granitemoe": small("granitemoe", **_LOCAL, **MULTIPLIERS, attention_bias=False),
    "hunyuan": small(
        "hunyuan",
        attention_bias=False,
        num_hidden_layers=4,
        num_experts=4,
        moe_topk=2,
        num_shared_expert=1,
        use_mixed_mlp_moe=True,
        use_qk_norm=True,
        use_cla=True,
        cla_share_factor=2,
        rope_scaling={"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
    ),
    "llama4_text": small(
        "llama4_text",
        num_hidden_layers=4,
        intermediate_size_mlp=256,
        no_rope_layers=[1, 1, 1, 0],
        use_qk_norm=True,
    ),
    "minimax": small(
        "minimax", **_LOCAL, shared_intermediate_size=0, rotary_dim=16, use_qk_norm=True
    ),
    "mixtral": small("mixtral", **_LOCAL),
    "olmoe": small("olmoe", num_experts=4, num_experts_per_tok=2),
    "phimoe": small(
        "phimoe",
        **_LOCAL,
        rope_scaling={**LONG_ROPE, "short_mscale": 1.24, "long_mscale": 1.24},
        original_max_position_embeddings=4096,
    ),
    "phixtral": {
        **bare("phixtral", num_vocab=256, model_dim=128, num_heads=4, num_layers=2, rotary_dim=16),
        **_LOCAL,
    },
    "qwen2_moe": small("qwen2_moe", **ROUTED, shared_expert_intermediate_size=64),
    "qwen3_moe": small(
        "qwen3_moe", **ROUTED, decoder_sparse_step=1, mlp_only_layers=[], norm_topk_prob=True
    ),
    "solar_open": small(
        "solar_open", **DEEPSEEK_EXPERTS, head_dim=HEAD_DIM, partial_rotary_factor=1.0
    ),
}
