"""Inputs of a shrunken model: what its ``forward`` takes, by the table of :mod:`systolic.zoo.input_rules`."""

from __future__ import annotations

import inspect

import torch

from . import input_rules, rules
from .catalog import Architecture


def build(model: torch.nn.Module, architecture: Architecture) -> dict[str, torch.Tensor]:
    """Inputs on the CPU for a CPU model, the same ones in every call."""
    generator = torch.Generator().manual_seed(architecture.seed)
    family = input_rules.FAMILIES.get(architecture.model_type, {})
    accepted = inspect.signature(model.forward).parameters
    chosen = {n: r for n, r in input_rules.DEFAULTS.items() if n in accepted and n not in family}
    if "pixel_values" in accepted:
        chosen.pop("pixel_values_videos", None)
    if "input_ids" not in chosen and "input_ids" not in family:
        chosen.pop("attention_mask", None)  # it is one of tokens
    if getattr(model.config, "is_encoder_decoder", False):
        chosen |= {n: r for n, r in input_rules.DECODER.items() if n in accepted and n not in family}
    for grid, patches in input_rules.GRIDS:
        if grid in accepted and grid not in family and (patches in accepted):
            chosen |= _patches(model, grid, patches)
            break
    chosen |= {n: r for n, r in family.items() if r is not None}
    made = {name: _make(rule, model.config, generator) for name, rule in chosen.items()}
    return _with_media_tokens(model, made) if "input_ids" in made else made


def _make(rule, config, generator) -> torch.Tensor:
    kind, *sizes = rule
    if kind == "values":
        return torch.tensor(sizes[0])
    shape = [_size(config, s) for s in sizes]
    if kind == "normal":
        return torch.randn(shape, generator=generator)
    if kind == "ids":
        vocabulary = getattr(config.get_text_config(), "vocab_size", None) or rules.FIRST_SPECIAL
        return torch.randint(3, min(vocabulary, rules.FIRST_SPECIAL), shape, generator=generator)
    if kind == "uniform":
        return torch.rand(shape, generator=generator)
    if kind == "boxes":  # integers from 0 to 1000: left, top, right, bottom
        low = torch.randint(0, 500, [*shape, 2], generator=generator)
        return torch.cat([low, low + torch.randint(1, 500, [*shape, 2], generator=generator)], -1)
    if kind == "mask":
        return torch.ones(shape, dtype=torch.bool)
    return {"ones": torch.ones, "zeros": torch.zeros}[kind](shape, dtype=torch.long)


def _size(config, size) -> int:
    """An integer, or an attribute ("this|or|that=8", 8 without any) of the config or of one of its parts."""
    if isinstance(size, int):
        return size
    size, _, otherwise = size.partition("=")
    for part in (config, *(getattr(config, n, None) for n in input_rules.PARTS)):
        for name in size.split("|"):
            value = getattr(part, name, None)
            if value is not None:
                return value[0] if isinstance(value, (list, tuple)) else value
    if otherwise:
        return int(otherwise)
    raise ValueError(f"the config {type(config).__name__} has no {size!r} to size an input by")


def _patches(model, grid: str, patches: str) -> dict[str, tuple]:
    """Flattened patches of one grid a row, for models that take images as patches with their grids."""
    config = model.config
    for name in ("thinker_config", "vlm_config"):
        config = getattr(config, name, config)
    vision = getattr(config, "vision_config", config)
    patch = vision.patch_size if isinstance(vision.patch_size, int) else vision.patch_size[-1]
    channels = getattr(vision, "in_channels", None) or getattr(vision, "num_channels", None) or 3
    width = channels * (getattr(vision, "temporal_patch_size", None) or 1) * patch * patch
    rows, side = input_rules.BATCH, input_rules.GRID
    return {patches: ("normal", rows * side * side, width), grid: ("values", [[1, side, side]] * rows)}


def _with_media_tokens(model, made: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Put as many image or audio tokens in front of the text as the model makes features of them."""
    for method, inputs, names in input_rules.MEDIA:
        config = next(
            (c for c in (getattr(model.config, p, None) for p in ("thinker_config", "vlm_config")) if c),
            model.config,
        )
        token = next((getattr(config, n) for n in names if isinstance(getattr(config, n, None), int)), None)
        function = _found(model, method)
        if token is None or function is None or not any(n in made for n in inputs):
            continue
        accepted = inspect.signature(function).parameters
        with torch.no_grad():
            given = {n: made[n] for n in made if n in accepted and n != "input_ids" and n != "attention_mask"}
            features = function(**given)
        count = _rows(features) // made["input_ids"].shape[0]
        ids = made["input_ids"]
        media = torch.full((ids.shape[0], count), token, dtype=ids.dtype)
        made["input_ids"] = torch.cat([media, ids], 1)
        for name in ("attention_mask", "token_type_ids"):
            if name in made and made[name].shape == ids.shape:
                made[name] = torch.cat([torch.ones_like(media), made[name]], 1)
        if "mm_token_type_ids" in inspect.signature(model.forward).parameters:
            made["mm_token_type_ids"] = (made["input_ids"] == token).long()  # 0 is text, 1 an image
    return made


def _found(model, method: str):
    """A method of the model, or of the model inside it."""
    inner = (getattr(model, name, None) for name in ("model", "vlm", "thinker"))
    return next((getattr(m, method) for m in (model, *inner) if hasattr(m, method)), None)


def _rows(features) -> int:
    """Number of feature vectors in what a model's ``get_image_features`` returns."""
    features = getattr(features, "pooler_output", features)
    if isinstance(features, torch.Tensor):
        return features.shape[:-1].numel()
    return sum(_rows(f) for f in features if f is not None)
