"""Tables of inputs: tables only; :mod:`systolic.zoo.inputs` applies them.

A rule is a kind and sizes; a size may name an attribute of the config or of one of its parts.  Kinds: ``normal``
and ``uniform`` floats, ``ids`` (plain tokens), ``ones`` and ``zeros`` (integers), ``mask`` (true), ``boxes``,
``values`` (the numbers themselves).
"""

from __future__ import annotations

BATCH = 2
TEXT = 7
IMAGE = 32
SIDE = f"image_size|input_size={IMAGE}"
GRID = 4
FRAMES = 2
SAMPLES = 1600
MEL_FRAMES = 32
MEL = (
    "num_mel_bins|num_mels|input_feat_per_channel|feature_projection_input_dim|input_feat_size|input_dim|n_mels"
    "|feature_size"
)

# Parts of a config in which a size is looked for.
PARTS = (
    "decoder_config",
    "text_config",
    "vision_config",
    "audio_config",
    "encoder",
    "backbone_config",
    "encoder_config",
)

# Given whenever ``forward`` takes an argument of this name.
DEFAULTS: dict[str, tuple] = {
    "input_ids": ("ids", BATCH, TEXT),
    "attention_mask": ("ones", BATCH, TEXT),
    "bbox": ("boxes", BATCH, TEXT),
    "pixel_values": ("normal", BATCH, "num_channels|in_channels=3", SIDE, SIDE),
    "pixel_values_videos": ("normal", BATCH, FRAMES, 3, IMAGE, IMAGE),
    "input_values": ("normal", BATCH, SAMPLES),
    "input_features": ("normal", BATCH, MEL, MEL_FRAMES),
}
# Images as flattened patches: (argument with their grids, argument with the patches), the first that a model takes.
GRIDS = (("image_grid_thw", "pixel_values"), ("grid_thw", "hidden_states"), ("grid_thw", "pixel_values"))
# Also given to encoder-decoder models.
DECODER: dict[str, tuple] = {"decoder_input_ids": ("ids", BATCH, 5)}

# (method that makes features, inputs it needs one of, names of the token that stands for a feature)
MEDIA: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("get_image_features", ("pixel_values",), ("image_token_id", "image_token_index")),
    ("get_audio_features", ("input_features", "input_values"), ("audio_token_id", "audio_token_index")),
)

_FRAMES_FIRST = {"input_features": ("normal", BATCH, MEL_FRAMES, MEL)}
_MASKED_FRAMES = _FRAMES_FIRST | {"attention_mask": ("ones", BATCH, MEL_FRAMES)}
_FEATURE_MASK = {"input_features_mask": ("ones", BATCH, MEL_FRAMES)}
_IMAGE_SIZES = {"image_sizes": ("values", [[IMAGE, IMAGE]] * BATCH)}
_TILES = {"pixel_values": ("normal", BATCH, 1, 3, IMAGE, IMAGE)}
_SERIES = {
    "past_values": ("normal", BATCH, 10),
    "past_time_features": ("normal", BATCH, 10, 1),
    "past_observed_mask": ("mask", BATCH, 10),
    "future_values": ("normal", BATCH, 4),
    "future_time_features": ("normal", BATCH, 4, 1),
}
_TEXT_ONLY = {"input_features": None, "input_values": None, "pixel_values": None, "image_grid_thw": None}
_NO_AUDIO = {"input_features": None}
_SIGLIP2 = {
    "pixel_values": ("normal", BATCH, 16, 192),
    "pixel_attention_mask": ("ones", BATCH, 16),
    "spatial_shapes": ("values", [[4, 4]] * BATCH),
}
_PATCHES = {"pixel_values": ("normal", BATCH * GRID * GRID, 3, 8, 8)}
_GRID_OF_PATCHES = {"image_grid_thw": ("values", [[1, GRID, GRID]] * BATCH)}
_IMAGE_128 = {"pixel_values": ("normal", BATCH, 3, 128, 128)}
_VIDEO = {"pixel_values": ("normal", BATCH, FRAMES, 3, IMAGE, IMAGE)}

# Model type -> inputs that differ; None leaves one out.
FAMILIES: dict[str, dict[str, tuple | None]] = {
    "audio-spectrogram-transformer": {"input_values": ("normal", BATCH, 1024, "num_mel_bins")},
    "audioflamingo3": _FEATURE_MASK,
    "audioflamingo3_encoder": _FEATURE_MASK,
    "glmasr": _FEATURE_MASK,
    "fun_asr_nano_encoder": _FEATURE_MASK,
    "autoformer": _SERIES,
    "informer": _SERIES,
    "time_series_transformer": _SERIES,
    "blip_2_qformer": {
        "query_embeds": ("normal", BATCH, 4, "hidden_size"),
        "encoder_hidden_states": ("normal", BATCH, 5, "encoder_hidden_size"),
    },
    "canary": _MASKED_FRAMES,
    "cohere_asr": _MASKED_FRAMES,
    "parakeet_ctc": _MASKED_FRAMES,
    "parakeet_encoder": _MASKED_FRAMES,
    "parakeet_rnnt": _MASKED_FRAMES,
    "parakeet_tdt": _MASKED_FRAMES,
    "nemotron_asr_streaming_encoder": _MASKED_FRAMES,
    "lasr_encoder": _MASKED_FRAMES,
    "lasr_ctc": _MASKED_FRAMES,
    "speech_to_text": _MASKED_FRAMES,
    "wav2vec2-bert": _MASKED_FRAMES,
    "seamless_m4t": {"input_features": None},
    "seamless_m4t_v2": {"input_features": None},
    "chameleon": {"pixel_values": None},
    "emu3": {"pixel_values": None},
    "clap": {"input_features": ("normal", BATCH, 1, 64, 64), "is_longer": ("values", [[False]] * BATCH)},
    "colqwen2": {"pixel_values": ("normal", BATCH, 16, 384)},
    "csm": {"input_ids": ("ids", BATCH, TEXT, "num_codebooks")},
    "deepseek_vl_hybrid": {"high_res_pixel_values": ("normal", BATCH, 3, 64, 64)},
    "dia": {"decoder_input_ids": ("ids", BATCH, 5, 9)},
    "granite_speech": _NO_AUDIO,
    "granite_speech_plus": _NO_AUDIO,
    "fun_asr_nano": _NO_AUDIO,
    "granite_speech5_encoder": {"input_features": ("normal", BATCH, MEL_FRAMES, 64)},
    "granite_speech5_ctc": {"input_features": ("normal", BATCH, MEL_FRAMES, 64)},
    "qwen2_5_omni_thinker": _NO_AUDIO,
    "qwen3_omni_moe_thinker": _NO_AUDIO,
    "neucodec": _NO_AUDIO,
    "glm_image": _TEXT_ONLY,
    "musicflamingo": _NO_AUDIO,
    "nemotron_h_omni": _TEXT_ONLY,
    "efficientloftr": {"pixel_values": ("normal", BATCH, 2, 3, 64, 64)},
    "grounding-dino": _IMAGE_128,
    "mm-grounding-dino": _IMAGE_128,
    "kimi_k25": _PATCHES | _GRID_OF_PATCHES,
    "kimi_k25_vision": _PATCHES | {"grid_thw": ("values", [[1, GRID, GRID]] * BATCH)},
    "paddleocr_vl": _PATCHES | _GRID_OF_PATCHES,
    "pe_audio": {"input_values": ("normal", BATCH, 1, SAMPLES)},
    "pe_audio_encoder": {"input_values": ("normal", BATCH, 1, SAMPLES)},
    "pop2piano": {"input_features": ("normal", BATCH, TEXT, "d_model"), "input_ids": None},
    "qwen3_asr_encoder": {
        "input_features": ("normal", BATCH, MEL, 200),
        "input_features_mask": ("ones", BATCH, 200),
    },
    "qwen3_asr": {"input_features": ("normal", BATCH, MEL, 200), "input_features_mask": ("ones", BATCH, 200)},
    "siglip2": _SIGLIP2,
    "siglip2_vision_model": _SIGLIP2,
    "granite_speech_encoder": _FRAMES_FIRST,
    "gemma4_audio": {
        "input_features": ("normal", BATCH, MEL_FRAMES, 128),
        "attention_mask": ("mask", BATCH, MEL_FRAMES),
    },
    "gemma4": _TEXT_ONLY,
    "gemma4_unified": _TEXT_ONLY,
    "embedding_gemma2": _TEXT_ONLY,
    "dac": {"input_values": ("normal", BATCH, 1, SAMPLES)},
    "encodec": {"input_values": ("normal", BATCH, 1, SAMPLES)},
    "mimi": {"input_values": ("normal", BATCH, 1, SAMPLES)},
    "decision_transformer": {
        "states": ("normal", BATCH, 4, "state_dim"),
        "actions": ("normal", BATCH, 4, "act_dim"),
        "rewards": ("normal", BATCH, 4, 1),
        "returns_to_go": ("normal", BATCH, 4, 1),
        "timesteps": ("values", [[0, 1, 2, 3]] * BATCH),
        "attention_mask": ("ones", BATCH, 4),
    },
    "gemma3n_audio": {
        "audio_mel": ("normal", BATCH, MEL_FRAMES, "input_feat_size"),
        "audio_mel_mask": ("mask", BATCH, MEL_FRAMES),
    },
    "idefics2": _TILES,
    "idefics3": _TILES,
    "smolvlm": _TILES,
    "idefics": _TILES,
    "modernvbert": _TILES,
    "colmodernvbert": _TILES,
    "instructblip": {"qformer_input_ids": ("ids", BATCH, TEXT)},
    "instructblipvideo": {"qformer_input_ids": ("ids", BATCH, TEXT)} | _VIDEO,
    "lightglue": {"pixel_values": ("normal", BATCH, 2, 3, IMAGE, IMAGE)},
    "superglue": {"pixel_values": ("normal", BATCH, 2, 3, 64, 64)},
    "lighton_ocr": _IMAGE_SIZES,
    "mistral3": _IMAGE_SIZES,
    "pixtral": _IMAGE_SIZES,
    "llava_next": _IMAGE_SIZES | {"pixel_values": ("normal", BATCH, 3, 3, IMAGE, IMAGE)},
    "llava_next_video": _IMAGE_SIZES | {"pixel_values": ("normal", BATCH, 3, 3, IMAGE, IMAGE)},
    "llava_onevision": _IMAGE_SIZES | {"pixel_values": ("normal", BATCH, 3, 3, IMAGE, IMAGE)},
    "lxmert": {
        "visual_feats": ("normal", BATCH, 3, "visual_feat_dim"),
        "visual_pos": ("uniform", BATCH, 3, 4),
    },
    "mobilevit": {"pixel_values": ("normal", BATCH, 3, 64, 64)},
    "mobilevitv2": {"pixel_values": ("normal", BATCH, 3, 64, 64)},
    "levit": {"pixel_values": ("normal", BATCH, 3, 64, 64)},
    "layoutlmv3": {"pixel_values": None},
    "lw_detr_vit": {"pixel_values": ("normal", BATCH, 3, 64, 64)},
    "oneformer": {"task_inputs": ("ids", BATCH, TEXT)},
    "patchtst": {"past_values": ("normal", BATCH, "context_length", "num_input_channels")},
    "patchtsmixer": {"past_values": ("normal", BATCH, "context_length", "num_input_channels")},
    "timesfm": {"past_values": ("normal", BATCH, 64), "freq": ("zeros", BATCH)},
    "timesfm2_5": {"past_values": ("normal", BATCH, 64)},
    "pix2struct": {"flattened_patches": ("normal", BATCH, 6, 66)},
    "qwen2_audio": _NO_AUDIO,
    "xcodec2": _NO_AUDIO,
    "xcodec": {"input_values": ("normal", BATCH, 1, SAMPLES)},
    "qwen2_audio_encoder": {
        "input_features": ("normal", BATCH, "num_mel_bins", 3000),
        "attention_mask": None,
    },
    "tapas": {"token_type_ids": ("zeros", BATCH, TEXT, 7)},
    "timesformer": _VIDEO,
    "vivit": _VIDEO,
    "videomae": _VIDEO,
    "xclip": _VIDEO,
    "splinter": {"input_ids": ("values", [[5, 9, 104, 17, 30, 8, 41], [7, 104, 22, 6, 19, 55, 3]])},
    "speech-encoder-decoder": {"input_features": None, "attention_mask": None},
    "vibevoice_acoustic_tokenizer": {"input_values": ("normal", BATCH, 1, SAMPLES)},
    "vibevoice_acoustic_tokenizer_encoder": {"hidden_states": ("normal", BATCH, 1, SAMPLES)},
    "vibevoice_acoustic_tokenizer_decoder": {"hidden_states": ("normal", BATCH, 32, 4)},
    "video_llama_3": {"image_merge_sizes": ("values", [1] * BATCH)},
    "video_llama_3_vision": {"merge_sizes": ("values", [1] * BATCH)},
    "video_llava": {"pixel_values_videos": None},
    "vit_mae": {"noise": ("uniform", BATCH, 16)},
    "voxtral": {"input_features": None},
    "voxtral_encoder": {"input_features": ("normal", BATCH, "num_mel_bins", 3000)},
    "step3p7": {"pixel_values": None},
    "whisper": {"input_features": ("normal", BATCH, "num_mel_bins", 3000), "attention_mask": None},
}
