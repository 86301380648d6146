"""The zoo's parts that need no device: criterion, tables, journal, report, command line."""

from __future__ import annotations

import json

import pytest
import torch

from systolic import cli
from systolic.zoo import catalog, checks, criterion, report, rules, shrink, sweep, weights
from systolic.zoo.checks import NOT_INSTANTIATED, Record


def matching(name: str, **changes) -> Record:
    good = {"ran": True, "matched": True, "difference": 1e-6}
    checks = dict.fromkeys(("eager", "backward", "generate"), good) | {
        "compiled": good | {"graphs": 1, "breaks": 0}
    }
    return Record(name, "Class", "causal-lm", **(checks | changes))


def test_a_difference_beyond_the_bounds_is_a_mismatch():
    want = {"logits": torch.tensor([1.0, 100.0, float("-inf")])}
    assert criterion.compare({"logits": torch.tensor([1.0, 100.05, float("-inf")])}, want) > 0.04
    for wrong in ([1.002, 100.0, float("-inf")], [1.0, 100.0, 0.0], [float("nan"), 100.0, float("-inf")]):
        with pytest.raises(criterion.Mismatch):
            criterion.compare({"logits": torch.tensor(wrong)}, want)
    with pytest.raises(criterion.Mismatch, match="float64"):
        criterion.compare({"logits": want["logits"].double()}, want)


def test_a_token_may_differ_only_where_the_choice_is_open():
    want = torch.tensor([[5, 1, 2]])
    clear, open_ = torch.tensor([[0.0, 3.0, 1.0]]), torch.tensor([[0.0, 1.0, 1.0 + 1e-6]])
    assert criterion.same_tokens(want.clone(), want, (clear, open_)) is None
    assert criterion.same_tokens(torch.tensor([[5, 1, 1]]), want, (clear, open_)) < criterion.TOP2_GAP
    with pytest.raises(criterion.Mismatch, match="top-2 gap is 2"):
        criterion.same_tokens(torch.tensor([[5, 2, 2]]), want, (clear, open_))


def test_a_wrong_or_missing_gradient_is_a_mismatch():
    want = {"w": torch.tensor([1.0, -2.0])}

    def unused():
        raise AssertionError("float64 is for gradients that differ")

    assert criterion.compare_gradients({"w": torch.tensor([1.0005, -2.0])}, want, unused)["difference"] < 1e-3
    with pytest.raises(criterion.Mismatch, match="gradient of w"):
        criterion.compare_gradients({"w": torch.tensor([1.01, -2.0])}, want, lambda: want)
    with pytest.raises(criterion.Mismatch, match="other parameters"):
        criterion.compare_gradients({}, want, unused)


def test_float64_settles_gradients_that_differ():
    want, got = {"w": torch.tensor([1.0, -2.0])}, {"w": torch.tensor([1.01, -2.0])}
    entry = criterion.compare_gradients(got, want, lambda: {"w": torch.tensor([1.0101, -2.0]).double()})
    assert entry["settled_in_float64"] == ["w"] and entry["difference"] < 1e-3
    with pytest.raises(criterion.Mismatch, match="gradient of w"):
        criterion.compare_gradients(got, want, lambda: RuntimeError("the model has no float64"))


def test_a_compiled_result_may_differ_from_eager_only_as_the_trace_does():
    eager, traced = {"x": torch.tensor([1.0])}, {"x": torch.tensor([2.0])}
    assert "reference" in checks._against_trace(traced, eager, traced, "x differs")
    wrong = {"matched": False, "cause": "x differs"}
    assert checks._against_trace({"x": torch.tensor([3.0])}, eager, traced, "x differs") == wrong
    assert checks._against_trace(traced, eager, eager, "x differs") == wrong
    assert checks._against_trace(traced, eager, RuntimeError("no trace"), "x differs") == wrong


def test_reasons_of_graph_breaks_name_no_folder_of_this_machine():
    reason = "skipped: `f` in file `/some/where/.venv/lib/python3.11/site-packages/torch/fx.py`\n  Hint: none"
    assert checks._without_folders(reason) == "skipped: `f` in file `torch/fx.py` Hint: none"


def test_the_catalog_has_one_architecture_for_each_class():
    found = catalog.architectures()
    assert len(found) > 500
    assert len({a.class_name for a in found}) == len(found)
    assert {a.model_type for a in catalog.named(["llama", "GPT2*"])} >= {"llama", "gpt2"}
    with pytest.raises(ValueError, match="'lama' is no architecture"):
        catalog.named(["lama"])


def test_shrunken_configs_keep_each_kind_of_layer_and_kind_of_attention():
    architectures = {a.model_type: a for a in catalog.architectures()}
    hybrid = shrink.small_config(architectures["qwen3_next"].config_class())
    assert set(hybrid.layer_types) == {"linear_attention", "full_attention"}
    assert hybrid.num_hidden_layers == len(hybrid.layer_types)
    grouped = shrink.small_config(architectures["mistral"].config_class())
    assert (grouped.hidden_size, grouped.num_attention_heads, grouped.num_key_value_heads) == (64, 4, 2)
    full = shrink.small_config(architectures["deepseek_v3"].config_class())
    assert full.num_key_value_heads == full.num_attention_heads
    pair = shrink.small_config(architectures["llava"].config_class())
    assert (
        pair.text_config.hidden_size == 64
        and rules.FIRST_SPECIAL <= pair.image_token_id < pair.text_config.vocab_size
    )


def test_weights_keep_the_scale_of_what_goes_through():
    model = torch.nn.Sequential(torch.nn.Linear(400, 300, bias=False), torch.nn.Linear(300, 200, bias=False))
    weights.randomize(model, 1)
    first = [p.clone() for p in model.parameters()]
    assert 0.8 < float(model(torch.randn(64, 400)).detach().std()) < 1.25
    weights.randomize(model, 1)
    assert all(torch.equal(a, b) for a, b in zip(first, model.parameters()))


def test_summary_and_report_come_from_the_records(tmp_path):
    failing = {"ran": False, "matched": False, "cause": "RuntimeError: no"}
    records = [
        matching("good"),
        matching("bad", compiled=failing, cause="compiled: RuntimeError: no"),
        matching("apart", backward={"not_applicable": "on the CPU: no gradient"}, fallbacks={"aten::x": 2}),
        Record("absent", "Class", "base", NOT_INSTANTIATED, "ImportError: needs timm"),
    ]
    counts = report.summary(records)
    assert (counts["attempted"], counts["ran"], counts["matched"], counts["not_instantiated"]) == (3, 2, 2, 1)
    assert (
        counts["backward"]["attempted"] == 2
        and counts["with_cpu_fallbacks"] == 1
        and counts["compiled_whole"] == 2
    )
    written = json.loads(report.write(records, tmp_path)[0].read_text())
    assert written["summary"] == counts | {"not_run": len(written["not_run"])}
    assert written["not_run"] and len(written["architectures"]) == 4
    text = (tmp_path / "architectures.md").read_text()
    assert "| bad | Class | compiled: RuntimeError: no |" in text and "needs timm" in text


def test_a_record_without_one_of_its_checks_did_not_run():
    assert matching("good").matched
    assert not matching("stopped", compiled={}).ran


def test_a_damaged_journal_is_named(tmp_path):
    path = tmp_path / "zoo.jsonl"
    assert sweep.read(path) == {}
    path.write_text("{}\n")
    with pytest.raises(ValueError, match="line 1"):
        sweep.read(path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--jobs", "0"], "'0' is no positive whole number"),
        (["--timeout", "soon"], "'soon' is no positive number"),
        (["--resume", "--retry"], "not allowed with"),
        (["lama"], "'lama' is no architecture"),
        (["llama", "--out", __file__], "is a file; give a folder"),
    ],
)
def test_bad_input_is_refused(arguments, said, capsys):
    try:
        code = cli.main(["zoo", *arguments])
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    assert said in capsys.readouterr().err
