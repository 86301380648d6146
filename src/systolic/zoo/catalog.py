"""The architectures of the installed transformers: one for each model type, with its most telling head."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

# Auto mappings of transformers in order of preference, with the task that the report names.
TASKS: tuple[tuple[str, str], ...] = (
    ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "image-text"),
    ("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", "speech-seq2seq"),
    ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "causal-lm"),
    ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "seq2seq"),
    ("MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES", "multimodal-lm"),
    ("MODEL_FOR_MASKED_LM_MAPPING_NAMES", "masked-lm"),
    ("MODEL_FOR_CTC_MAPPING_NAMES", "ctc"),
    ("MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES", "audio-classification"),
    ("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", "image-classification"),
    ("MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES", "video-classification"),
    ("MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES", "object-detection"),
    ("MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING_NAMES", "object-detection"),
    ("MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES", "segmentation"),
    ("MODEL_FOR_INSTANCE_SEGMENTATION_MAPPING_NAMES", "segmentation"),
    ("MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES", "segmentation"),
    ("MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES", "depth-estimation"),
    ("MODEL_FOR_MASK_GENERATION_MAPPING_NAMES", "mask-generation"),
    ("MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING_NAMES", "text-to-speech"),
    ("MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES", "text-to-speech"),
    ("MODEL_FOR_TIME_SERIES_PREDICTION_MAPPING_NAMES", "time-series"),
    ("MODEL_FOR_RETRIEVAL_MAPPING_NAMES", "retrieval"),
    ("MODEL_FOR_PRETRAINING_MAPPING_NAMES", "pretraining"),
    ("MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES", "token-classification"),
    ("MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES", "sequence-classification"),
    ("MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES", "question-answering"),
    ("MODEL_FOR_RNNT_MAPPING_NAMES", "ctc"),
    ("MODEL_FOR_TDT_MAPPING_NAMES", "ctc"),
    ("MODEL_FOR_KEYPOINT_DETECTION_MAPPING_NAMES", "keypoints"),
    ("MODEL_FOR_KEYPOINT_MATCHING_MAPPING_NAMES", "keypoints"),
    ("MODEL_FOR_POSE_ESTIMATION_MAPPING_NAMES", "keypoints"),
    ("MODEL_FOR_IMAGE_MATTING_MAPPING_NAMES", "image-to-image"),
    ("MODEL_FOR_IMAGE_TO_IMAGE_MAPPING_NAMES", "image-to-image"),
    ("MODEL_FOR_NORMAL_ESTIMATION_MAPPING_NAMES", "image-to-image"),
    ("MODEL_FOR_POINTMAP_ESTIMATION_MAPPING_NAMES", "image-to-image"),
    ("MODEL_FOR_TABLE_RECOGNITION_MAPPING_NAMES", "text-recognition"),
    ("MODEL_FOR_TEXT_RECOGNITION_MAPPING_NAMES", "text-recognition"),
    ("MODEL_FOR_BACKBONE_MAPPING_NAMES", "backbone"),
    ("MODEL_MAPPING_NAMES", "base"),
)


@dataclass(frozen=True, order=True)
class Architecture:
    """A model type of transformers and the class that stands for it."""

    model_type: str
    class_name: str
    task: str

    def __str__(self) -> str:
        return self.model_type

    @property
    def seed(self) -> int:
        """A fixed number that looks random, for weights and inputs."""
        return int.from_bytes(hashlib.sha256(self.model_type.encode()).digest()[:4], "big")

    def config_class(self):
        """The config class; raises what its import raises."""
        from transformers import CONFIG_MAPPING

        return CONFIG_MAPPING[self.model_type]

    def model_class(self):
        """The model class; raises what its import raises."""
        import transformers

        return getattr(transformers, self.class_name)


@functools.cache
def architectures() -> tuple[Architecture, ...]:
    """One architecture for each model type that an auto mapping gives a class, by model type.

    Model types that share a class (``gpt-sw3`` is GPT-2) are one architecture, named after the plainest of them.
    """
    from transformers.models.auto import modeling_auto

    chosen: dict[str, tuple[str, str]] = {}
    for mapping, task in TASKS:
        for model_type, classes in getattr(modeling_auto, mapping).items():
            name = classes if isinstance(classes, str) else classes[0]
            chosen.setdefault(model_type, (name, task))
    first: dict[str, Architecture] = {}
    for model_type, (name, task) in sorted(chosen.items(), key=lambda item: _plainness(*item)):
        first.setdefault(name, Architecture(model_type, name, task))
    return tuple(sorted(first.values()))


def _plainness(model_type: str, chosen: tuple[str, str]) -> tuple:
    """Sorts the model type after which a class is named before others that share it."""
    return model_type.replace("_", "").replace("-", "") not in chosen[0].lower(), model_type


def named(patterns: list[str]) -> list[Architecture]:
    """The architectures whose model type, class or task matches a shell pattern; all without patterns.

    Raises:
        ValueError: for a pattern that matches none.
    """
    from fnmatch import fnmatchcase

    found: set[Architecture] = set()
    for pattern in patterns:
        matching = {
            a
            for a in architectures()
            if any(fnmatchcase(n, pattern) for n in (a.model_type, a.class_name, a.task))
        }
        if not matching:
            tasks = ", ".join(sorted({task for _, task in TASKS}))
            raise ValueError(
                f"{pattern!r} is no architecture of this transformers; "
                f"give a model type such as 'llama', a pattern such as 'qwen*', or a task: {tasks}"
            )
        found |= matching
    return sorted(found) if patterns else list(architectures())
