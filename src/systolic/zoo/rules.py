"""How configs are shrunken: tables only; :mod:`systolic.zoo.shrink` applies them.

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
    (r"(.*_)?(intermediate_size|intermediate_dim|ffn_dim|ffn_hidden_size|inner_dim|mlp_dim|dim_feedforward)|d_ff|n_inner|d_inner", 96),
    (r"(.*_)?(hidden_size|d_model|embed_dim|hidden_dim|n_embd|emb_dim|embedding_size|embed_size|embedding_dim)", 64),
    (r"(.*_)?(projection_dim|proj_dim|proj_size|output_dim|out_hidden_size|output_size|feature_size|out_dim)", 64),
    (r"output_channels|latent_channels|base_channels|conv_channels|fpn_feature_size", 64),
    (r"(.*_)?(max_position_embeddings|n_positions|max_seq_len|n_ctx|max_target_positions|context_length)", 64),
    (r"(.*_)?image_size|input_size|img_size|crop_size|pretrain_image_size", 32),
    (r"(.*_)?patch_size", 8),
    (r"num_frames", 2),
    (r"num_queries|num_query_tokens|num_latents|resampler_num_latents|num_object_queries|prompt_length", 8),
    (r"sliding_window|attention_window|local_attention|window_length", 4),
    (r"state_size|mamba_d_state|ssm_state_size|mamba_chunk_size|chunk_size|chunk_length", 8),
    (r"image_seq_length|image_seq_len", 16),
    (r"num_mel_bins|num_mels|mel_bins", 16),
)  # fmt: skip

# Lists of widths: the smallest becomes this one, the others keep their ratio to it; 24 has a head count of 1 to 8.
WIDTHS = r"(.*_)?(hidden_sizes|embed_dims?|dims|widths|encoder_hidden_sizes|neck_hidden_sizes|embed_dim|dim_list)"
SMALLEST_WIDTH = 24

# Attribute names that are set whatever their value, unless it is None.  (Dropout does nothing outside of training.)
ALWAYS: dict[str, object] = {"use_timm_backbone": False, "use_pretrained_backbone": False, "pad_token_id": 0}

# Special tokens outside the small vocabulary move here, one after the other; plain tokens are below FIRST_SPECIAL.
SPECIAL = r"(.*_)?token_(id|index)"
FIRST_SPECIAL = 100

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_ROPE_8 = {"rope_parameters": _ROPE | {"mrope_section": [4, 2, 2]}}
_ROPE_PARTIAL = {"rope_parameters": _ROPE | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}}
_ROPE_QUARTER = {"rope_parameters": _ROPE | {"mrope_section": [2, 0, 0], "partial_rotary_factor": 0.25}}
_SWIN = {"embed_dim": 24, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 4, 8], "window_size": 4}
_SWIN_128 = _SWIN | {"image_size": 128}  # then the last of four stages has 4x4 places, one window
_EFFICIENTNET = {"width_coefficient": 0.25, "depth_coefficient": 0.2, "hidden_dim": 320}
_SERIES = {"prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 1}
_RESNET = {"model_type": "resnet", "out_features": ["stage4"]}
_RESNET_3 = {"model_type": "resnet", "out_features": ["stage2", "stage3", "stage4"]}
_HGNET_DETR = {"encoder_in_channels": [48, 64, 96], "decoder_in_channels": [64, 64, 64], "encoder_hidden_dim": 64, "d_model": 64}
_EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
            "first_k_dense_replace": 1}  # fmt: skip
_FOUR_LAYERS = {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4], "out_features": None}
_WAV2VEC = {"conv_dim": [32] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
_BERT = {"model_type": "bert"}
_DECODER = {"model_type": "bert", "is_decoder": True, "add_cross_attention": True}
_PINPOINTS = {"image_grid_pinpoints": [[32, 64], [64, 32], [64, 64]]}
_MIMI = {"num_filters": 8, "upsampling_ratios": [4, 2], "upsample_groups": 4, "codebook_dim": 16, "hidden_size": 64,
         "vector_quantization_hidden_dimension": 16}  # fmt: skip

# Model type -> attributes of its config (also as a part of another), instead of the rules above.
FAMILIES: dict[str, dict[str, object]] = {
    "align": {"projection_dim": 320}, "align_vision_model": _EFFICIENTNET | {"hidden_dim": 1280}, "efficientnet": _EFFICIENTNET,
    "aria": {"projector_patch_to_query_dict": {16: 8}},
    "audioflamingo3_encoder": {"max_source_positions": 16}, "autoformer": _SERIES | {"label_length": 2},
    "blip-2": {"image_token_id": 120}, "instructblip": {"image_token_id": 120},
    "instructblipvideo": {"video_token_id": 120, "image_token_id": 120},
    "chameleon": {"vocabulary_map": {"<image>": 120}}, "emu3": {"vocabulary_map": {"<image>": 120}},
    "clap_audio_model": {"spec_size": 64, "num_mel_bins": 64, "window_size": 4, "depths": [1, 1], "num_attention_heads": [1, 2],
                         "patch_embeds_hidden_size": 24, "hidden_size": 48},
    "cohere_compass_text": {"rope_parameters": {
        "full_attention": _ROPE_8["rope_parameters"], "sliding_attention": _ROPE_8["rope_parameters"]}},
    "conditional_detr": {"backbone_config": _RESNET}, "dab-detr": {"backbone_config": _RESNET},
    "detr": {"backbone_config": _RESNET}, "table-transformer": {"backbone_config": _RESNET},
    "deformable_detr": {"backbone_config": _RESNET_3, "num_feature_levels": 4},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0}, "n_heads": 4},
    "d_fine": _HGNET_DETR, "deimv2": _HGNET_DETR, "pp_doclayout_v2": _HGNET_DETR, "pp_doclayout_v3": _HGNET_DETR,
    "hgnet_v2": {"stem_channels": [3, 8, 16], "stage_in_channels": [16, 32, 48, 64], "stage_mid_channels": [8, 8, 16, 16],
                 "stage_out_channels": [32, 48, 64, 96], "hidden_sizes": [32, 48, 64, 96], "stage_num_blocks": [1, 1, 1, 1]},
    "deepseek_v2": _EXPERTS, "deepseek_ocr2_text": _EXPERTS, "dots1": _EXPERTS,
    "efficientloftr": {"hidden_size": 256}, "esm": {"vocab_size": 64, "mask_token_id": 2, "pad_token_id": 1},
    "granite4_vision": {"text_config": {"model_type": "granite"}},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16},
    "beit": {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]},
    "bit": {"hidden_sizes": [32, 32, 64, 64], "embedding_size": 32, "num_groups": 8},
    "blip_2_qformer": {"encoder_hidden_size": 64},
    "chmv2": {"backbone_config": _FOUR_LAYERS},
    "cosmos3_edge_text": _ROPE_8, "cosmos3_omni_text": _ROPE_8,
    "csm": {"codec_config": _MIMI, "num_codebooks": 4},
    "cvt": {"embed_dim": [24, 48, 96], "num_heads": [1, 2, 4], "depth": [1, 2, 3]},
    "dac": {"encoder_hidden_size": 16, "decoder_hidden_size": 32, "downsampling_ratios": [2, 2], "upsampling_ratios": [2, 2]},
    "depth_anything": {"backbone_config": _FOUR_LAYERS, "neck_hidden_sizes": [16, 24, 32, 32], "reassemble_hidden_size": 64},
    "prompt_depth_anything": {
        "backbone_config": _FOUR_LAYERS, "neck_hidden_sizes": [16, 24, 32, 32], "reassemble_hidden_size": 64,
    },
    "donut-swin": _SWIN_128, "maskformer-swin": _SWIN_128, "swin": _SWIN_128, "swinv2": _SWIN_128, "swin2sr": _SWIN | {"depths": [1, 1], "num_heads": [1, 2]},
    "dpt": {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [16, 24, 32, 32]},
    "encoder-decoder": {"encoder": _BERT, "decoder": _DECODER},
    "ernie4_5_vl_moe_text": {"rope_parameters": _ROPE | {"mrope_section": [3, 3, 2]}},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 16}},
    "gemma3n_text": {"intermediate_size": [96, 96], "num_hidden_layers": 2, "num_kv_shared_layers": 0,
                     "layer_types": ["sliding_attention", "full_attention"], "activation_sparsity_pattern": [0.0, 0.0]},
    "gemma3": {"mm_tokens_per_image": 4}, "glm46v_text": _ROPE_PARTIAL, "glm4v_text": _ROPE_PARTIAL,
    "glm4v_moe_text": {"rope_parameters": _ROPE | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}},
    "glm_ocr_text": {"rope_parameters": _ROPE | {"mrope_section": [4, 2, 2], "partial_rotary_factor": 1.0}},
    "glm_image_text": _ROPE_PARTIAL,
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 4},
    "glmasr_encoder": {"intermediate_size": 256}, "llava_next": _PINPOINTS, "llava_next_video": _PINPOINTS,
    "llava_onevision": _PINPOINTS,
    "granite_speech5_encoder": {"context_size": 16}, "granite_speech_encoder": {"context_size": 16, "max_pos_emb": 16},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 16},
    "hubert": _WAV2VEC, "wav2vec2": _WAV2VEC, "wavlm": _WAV2VEC, "unispeech": _WAV2VEC, "unispeech-sat": _WAV2VEC,
    "data2vec-audio": _WAV2VEC, "wav2vec2-conformer": _WAV2VEC, "speecht5": _WAV2VEC,
    "sew": {"conv_dim": [16] * 13, "num_conv_pos_embedding_groups": 4},
    "sew-d": {"conv_dim": [16] * 13, "num_conv_pos_embedding_groups": 4},
    "hunyuan_v1_dense": {"head_dim": 16}, "hunyuan_v1_moe": {"head_dim": 16}, "ministral": {"head_dim": 16},
    "hunyuan_vl_text": {"head_dim": 16}, "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
    "informer": _SERIES, "time_series_transformer": _SERIES,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
              "mamba_dt_rank": 8},
    "kimi_linear": {"num_experts": 4, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "layoutlmv3": {"coordinate_size": 11, "shape_size": 10, "visual_embed": False},
    "levit": {"hidden_sizes": [32, 48, 64], "num_attention_heads": [2, 3, 4], "depths": [1, 1, 1], "key_dim": [8, 8, 8],
              "image_size": 64},
    "lilt": {"hidden_size": 48, "num_attention_heads": 4}, "lw_detr_vit": {"image_size": 64, "window_block_indices": [0]},
    "mamba2": {"num_heads": 8, "head_dim": 16}, "mimi": _MIMI, "kyutai_speech_to_text": {"codec_config": _MIMI},
    "mobilebert": {"embedding_size": 32, "true_hidden_size": 32, "intra_bottleneck_size": 32},
    "musicgen": {"text_encoder": {"model_type": "t5"}, "audio_encoder": {"model_type": "encodec"},
                 "decoder": {"model_type": "musicgen_decoder"}},
    "musicgen_melody": {"text_encoder": {"model_type": "t5"}, "audio_encoder": {"model_type": "encodec"},
                        "decoder": {"model_type": "musicgen_melody_decoder"}},
    "perceiver": {"d_latents": 64, "d_model": 64, "num_self_attends_per_block": 2, "max_position_embeddings": 64},
    "poolformer": {"hidden_sizes": [24, 48, 48, 96], "depths": [1, 1, 1, 1]},
    "qwen2_vl_text": _ROPE_8, "qwen2_5_vl_text": _ROPE_8, "qwen2_5_omni_text": _ROPE_8, "qwen2_5_omni_talker": _ROPE_8,
    "qwen3_vl_text": _ROPE_8, "qwen3_vl_moe_text": _ROPE_8 | {"num_experts": 4}, "qwen3_omni_moe_text": _ROPE_8,
    "paddleocr_vl_text": _ROPE_8, "hyperclovax_vision_v2_text": _ROPE_8,
    "qwen3_moe": {"num_experts": 4}, "longcat_flash": {"zero_expert_num": 2, "n_routed_experts": 4},
    "radio": {"max_img_size": 64}, "mobilevitv2": {"image_size": 64}, "mobilevit": {"image_size": 64},
    "vits": {"upsample_initial_channel": 32, "upsample_rates": [4, 4], "upsample_kernel_sizes": [8, 8], "noise_scale": 0.0,
             "noise_scale_duration": 0.0, "flow_size": 16, "spectrogram_bins": 17},
    "reformer": {"is_decoder": True, "attn_layers": ["local", "local"], "axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 48],
                 "local_attn_chunk_length": 4},
    "sam2_hiera_det_model": {
        "hidden_size": 24, "embed_dim_per_stage": [24, 48, 96, 192], "blocks_per_stage": [1, 1, 1, 1],
        "num_attention_heads_per_stage": [1, 2, 4, 8], "global_attention_blocks": [2], "window_size_per_stage": [4, 2, 2, 2],
    },
    "sam2_vision_model": {"backbone_channel_list": [192, 96, 48, 24]},
    "t5gemma2_encoder": {"mm_tokens_per_image": 4}, "tvp": {"visual_prompt_size": 8, "max_img_size": 32},
    "univnet": {"model_in_channels": 16, "model_hidden_channels": 8, "kernel_predictor_hidden_channels": 8},
    "vision-encoder-decoder": {"encoder": {"model_type": "vit"}, "decoder": _DECODER},
    "speech-encoder-decoder": {"encoder": {"model_type": "wav2vec2"}, "decoder": _DECODER},
    "vision-text-dual-encoder": {"vision_config": {"model_type": "clip_vision_model"}, "text_config": _BERT},
}  # fmt: skip
