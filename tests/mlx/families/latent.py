"""Models that cache a latent of each token instead of keys and values (MLA), and those that keep a
second cache of index keys beside it."""

from .attention import LONG_ROPE
from .experts import DEEPSEEK_EXPERTS
from .shape import YARN, bare, small

_LATENT = {
    "num_key_value_heads": 4,
    "head_dim": None,
    "kv_lora_rank": 64,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
}
_GROUPS = {"n_group": 2, "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
_DEEPSEEK_V3 = {**_LATENT, **DEEPSEEK_EXPERTS, **_GROUPS, "moe_layer_freq": 1}
_INDEX = {"index_head_dim": 64, "index_n_heads": 4, "index_topk": 64}
_LONGCAT = {
    "num_hidden_layers": None,
    "num_layers": 2,
    "intermediate_size": None,
    "ffn_hidden_size": 256,
    "expert_ffn_hidden_size": 64,
    "n_routed_experts": 4,
    "zero_expert_num": 2,
    "zero_expert_type": "identity",
    "moe_topk": 2,
    "routed_scaling_factor": 1.0,
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
    "attention_bias": False,
    "attention_method": "MLA",
}

FAMILIES = {
    "deepseek_v2": small(
        "deepseek_v2",
        **{**_DEEPSEEK_V3, "topk_method": "group_limited_greedy", "scoring_func": "softmax"},
        rope_scaling=YARN,
    ),
    "deepseek_v3": small("deepseek_v3", **_DEEPSEEK_V3, rope_scaling=YARN),
    "deepseek_v32": small("deepseek_v32", **_DEEPSEEK_V3, **_INDEX, rope_scaling=YARN),
    "deepseek_v41": bare(
        "deepseek_v41",
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        head_dim=64,
        q_lora_rank=64,
        qk_rope_head_dim=32,
        o_groups=2,
        o_lora_rank=32,
        moe_intermediate_size=64,
        n_routed_experts=4,
        num_experts_per_tok=2,
        sliding_window=128,
        compress_ratios=[0, 4, 4, 1],
        kv_source_layer_ids=[1, 3],
        index_source_layer_ids=[1, 3],
        index_n_heads=4,
        index_head_dim=64,
        index_topk=64,
        hc_mult=2,
        hc_sinkhorn_iters=4,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        max_position_embeddings=4096,
    ),
    "glm4_moe_lite": small("glm4_moe_lite", **_DEEPSEEK_V3, num_nextn_predict_layers=0),
    "glm_moe_dsa": small(
        "glm_moe_dsa",
        **_DEEPSEEK_V3,
        **_INDEX,
        attention_bias=False,
        rope_theta=None,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    "kimi_k25": {
        "model_type": "kimi_k25",
        "text_config": small("kimi_k2", **_DEEPSEEK_V3, rope_scaling=YARN),
    },
    "kimi_vl": {
        "model_type": "kimi_vl",
        "text_config": small("deepseek_v3", **_DEEPSEEK_V3),
    },
    "longcat_flash": small("longcat_flash", **_LATENT, **_LONGCAT),
    "longcat_flash_ngram": small(
        "longcat_flash_ngram", **_LATENT, **_LONGCAT, ngram_vocab_size_ratio=4
    ),
    "minicpm3": small(
        "minicpm3",
        **_LATENT,
        dim_model_base=128,
        scale_depth=1.4,
        scale_emb=1.0,
        rope_scaling=LONG_ROPE,
    ),
    "minimax_m3_vl": {
        "model_type": "minimax_m3_vl",
        "text_config": small(
            "minimax_m3",
            num_hidden_layers=2,
            intermediate_size=64,
            dense_intermediate_size=256,
            shared_intermediate_size=64,
            num_local_experts=4,
            num_experts_per_tok=2,
            partial_rotary_factor=0.5,
            moe_layer_freq=[0, 1],
            sparse_attention_config={
                "sparse_num_index_heads": 2,
                "sparse_index_dim": 32,
                "sparse_block_size": 16,
                "sparse_topk_blocks": 4,
                "sparse_local_block": 1,
                "sparse_attention_freq": [0, 1],
            },
        ),
    },
    "mistral4": small(
        "mistral4",
        **_LATENT,
        **DEEPSEEK_EXPERTS,
        n_group=1,
        topk_group=1,
        rope_theta=None,
        rope_parameters={**YARN, "rope_theta": 10000.0, "llama_4_scaling_beta": 0.1},
    ),
    "youtu_llm": small("youtu_llm", **_LATENT, tie_word_embeddings=True),
}
