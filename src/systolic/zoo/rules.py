"""How configs are shrunken in general: tables only; :mod:`systolic.zoo.shrink` applies them.

Sizes are the same in all families, so that small operators of one model are programs that another already compiled.
"""

from __future__ import annotations

# (pattern of a whole attribute name, largest value): the first that fits an integer above the value lowers it.
# A list is lowered element by element, except those of WIDTHS and head counts, which go with widths.  A value that the
# class derives from others (its default is None) is left to it.
CAPS: tuple[tuple[str, int], ...] = (
    (r"(.*_)?(num_)?(key_value|kv)_(heads|groups)|n_head_kv|num_query_groups", 2),
    (r"(.*_)?(qk_rope|index)_head_dim|rotary_dim", 8),
    (r"(.*_)?head_dim|d_kv|dim_head|d_head|(.*_)?dim_head|kv_channels|attention_head_size", 16),
    (r"(.*_)?(kv|q|o)_lora_rank", 32),
    (r"(.*_)?vocab_size(_.*)?|codebook_size|num_embeddings|n_words|n_codes", 128),
    (r"(.*_)?(num_experts_per_tok|moe_topk|moe_k|top_k_experts|num_selected_experts)", 2),
    (r"(.*_)?(n_routed_experts|num_experts|num_local_experts|moe_num_experts)|n_experts", 4),
    (r"(.*_)?n_groups?|topk_group|num_expert_groups?", 1),
    (r"(.*_)?(attention_)?heads|(num_|n_)?heads?|n_head|num_.*_heads|.*_n_heads", 4),
    (r"(.*_)?(num_hidden_layers|n_layers?|num_layers|depth|layers|num_.*_layers)", 2),
    (r"depths|num_block_repeats|stage_num_blocks|layers_per_stage|num_blocks", 1),
    (r"(.*_)?(moe_|expert_|shared_.*)intermediate_size|expert_ffn_hidden_size|moe_ffn_hidden_size", 32),
    (
        r"(.*_)?(intermediate_size|intermediate_dim|ffn_dim|ffn_hidden_size|inner_dim|mlp_dim|dim_feedforward)|d_ff|n_inner|d_inner",
        96,
    ),
    (
        r"(.*_)?(hidden_size|d_model|embed_dim|hidden_dim|n_embd|emb_dim|embedding_size|embed_size|embedding_dim)",
        64,
    ),
    (
        r"(.*_)?(projection_dim|proj_dim|proj_size|output_dim|out_hidden_size|output_size|feature_size|out_dim)",
        64,
    ),
    (r"output_channels|latent_channels|base_channels|conv_channels|fpn_feature_size", 64),
    (
        r"(.*_)?(max_position_embeddings|n_positions|max_seq_len|n_ctx|max_target_positions|context_length)",
        64,
    ),
    (r"(.*_)?image_size|input_size|img_size|crop_size|pretrain_image_size", 32),
    (r"(.*_)?patch_size", 8),
    (r"num_frames", 2),
    (r"num_queries|num_query_tokens|num_latents|resampler_num_latents|num_object_queries|prompt_length", 8),
    (r"sliding_window|attention_window|local_attention|window_length", 4),
    (r"state_size|mamba_d_state|ssm_state_size|mamba_chunk_size|chunk_size|chunk_length", 8),
    (r"image_seq_length|image_seq_len", 16),
    (r"num_mel_bins|num_mels|mel_bins", 16),
)

# Lists of widths: the smallest becomes this one, the others keep their ratio to it; 24 has a head count of 1 to 8.
WIDTHS = (
    r"(.*_)?(hidden_sizes|embed_dims?|dims|widths|encoder_hidden_sizes|neck_hidden_sizes|embed_dim|dim_list)"
)
SMALLEST_WIDTH = 24

# Attribute names that are set whatever their value, unless it is None.  (Dropout does nothing outside of training.)
ALWAYS: dict[str, object] = {"use_timm_backbone": False, "use_pretrained_backbone": False, "pad_token_id": 0}

# Special tokens outside the small vocabulary move here, one after the other; plain tokens are below FIRST_SPECIAL.
SPECIAL = r"(.*_)?token_(id|index)"
FIRST_SPECIAL = 100
