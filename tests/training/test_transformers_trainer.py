"""Hugging Face's Trainer, unchanged: ACCELERATE_TORCH_DEVICE=tpu is the switch that accelerate offers."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")
import workloads  # noqa: E402

STEPS = 5


class Sentences(torch.utils.data.Dataset):
    """Pieces of the reference text: input_ids and labels of 32 characters."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        piece = workloads.text()[index * 32 : (index + 1) * 32]
        return {"input_ids": piece, "labels": piece}


@pytest.fixture(autouse=True)
def accelerate_state():
    """accelerate remembers the first device for the life of the process."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def trainer(folder, device: str, monkeypatch, **settings):
    if device == "tpu":
        monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "tpu")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(workloads.ALPHABET), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=STEPS, per_device_train_batch_size=8, learning_rate=5e-3, logging_steps=1, seed=0,
        report_to=[], use_cpu=device == "cpu", save_strategy="no", disable_tqdm=True,
        **settings,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    return transformers.Trainer(model, arguments, train_dataset=Sentences(), eval_dataset=Sentences())


def losses(run) -> torch.Tensor:
    return torch.tensor([entry["loss"] for entry in run.state.log_history if "loss" in entry])


def test_trains_as_on_the_cpu(tmp_path, monkeypatch):
    on_cpu = trainer(tmp_path, "cpu", monkeypatch)
    on_cpu.train()
    before = torch.tpu.fallbacks()
    on_tpu = trainer(tmp_path, "tpu", monkeypatch)
    assert on_tpu.args.device.type == "tpu" and on_tpu.accelerator.device.type == "tpu"
    on_tpu.train()
    assert next(on_tpu.model.parameters()).device.type == "tpu"
    # The Trainer logs four decimals; float32 sums in another order are far below that over five steps.
    torch.testing.assert_close(losses(on_tpu), losses(on_cpu), rtol=0, atol=2e-4)
    assert losses(on_tpu)[-1] < losses(on_tpu)[0] - 0.3
    assert on_tpu.evaluate()["eval_loss"] == pytest.approx(on_cpu.evaluate()["eval_loss"], abs=1e-3)
    assert torch.tpu.fallbacks() == before


def test_saves_resumes_and_uses_the_device_features(tmp_path, monkeypatch):
    """bfloat16 autocast, fused optimizer, gradient checkpointing and a resumed run.

    transformers 5.19 refuses `bf16=True` on devices that are not in its own list; accelerate's switch does it.
    """
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    settings = dict(optim="adamw_torch_fused", gradient_checkpointing=True)
    first = trainer(tmp_path, "tpu", monkeypatch, **settings)
    first.args.save_strategy, first.args.save_steps = transformers.trainer_utils.SaveStrategy.STEPS, 3
    assert first.accelerator.mixed_precision == "bf16"
    first.train()
    resumed = trainer(tmp_path, "tpu", monkeypatch, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    for a, b in zip(first.model.parameters(), resumed.model.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
