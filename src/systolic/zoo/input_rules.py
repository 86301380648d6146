"""Tables of inputs: tables only; :mod:`systolic.zoo.inputs` applies them.

A rule is a kind and sizes; a size may name an attribute of the config or of one of its parts.  Kinds: ``normal`` and
``uniform`` floats, ``ids`` (plain tokens), ``ones`` and ``zeros`` (integers), ``mask`` (true), ``boxes``, ``values``.
"""

from __future__ import annotations

BATCH = 2
TEXT = 7
IMAGE = 32
GRID = 4
FRAMES = 2
SAMPLES = 1600
MEL_FRAMES = 32

# Parts of a config in which a size is looked for.
PARTS = ("text_config", "vision_config", "audio_config", "encoder", "backbone_config", "encoder_config")

# Given whenever ``forward`` takes an argument of this name.
DEFAULTS: dict[str, tuple] = {
    "input_ids": ("ids", BATCH, TEXT),
    "attention_mask": ("ones", BATCH, TEXT),
    "bbox": ("boxes", BATCH, TEXT),
    "pixel_values": ("normal", BATCH, 3, IMAGE, IMAGE),
    "pixel_values_videos": ("normal", BATCH, FRAMES, 3, IMAGE, IMAGE),
    "input_values": ("normal", BATCH, SAMPLES),
    "input_features": ("normal", BATCH, "num_mel_bins", MEL_FRAMES),
}
# Also given to encoder-decoder models.
DECODER: dict[str, tuple] = {"decoder_input_ids": ("ids", BATCH, 5)}

# (method that makes features, inputs it needs one of, names of the token that stands for a feature)
MEDIA: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("get_image_features", ("pixel_values",), ("image_token_id", "image_token_index")),
    ("get_audio_features", ("input_features", "input_values"), ("audio_token_id", "audio_token_index")),
)

# Model type -> inputs that differ; None leaves one out.
FAMILIES: dict[str, dict[str, tuple | None]] = {}
