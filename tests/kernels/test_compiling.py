"""Compiling without a TPU: the child process, the compiler's dumps, advice, estimates, and the report."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from systolic import cli
from systolic.kernels import aot, registry, report
from systolic.kernels.estimate import estimate
from systolic.kernels.generations import GENERATIONS
from systolic.kernels.names import GENERATION_NAMES, NAMES
from systolic.kernels.registry import Work
from systolic.kernels.schedule_dump import read_schedule

EVERY = [(name, entry) for name in NAMES for entry in registry.proof(name).entries]


def stand_in(tmp_path, monkeypatch, text):
    """Python of the child: it answers as ``text`` does, and needs no compiler."""
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\nimport sys, time, json\n{text}")
    script.chmod(0o755)
    monkeypatch.setattr(aot.sys, "executable", str(script))


def test_answers_come_back(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, "for line in sys.stdin: print(json.dumps({'task': json.loads(line)}), flush=True)")
    with aot.Compiler(tmp_path / "libtpu.so", timeout=60) as compiler:
        for number in range(2):
            answer = compiler.compile("paged_attention", number, "v6e", {"pages": 1})
            assert answer["task"]["entry"] == number and answer["task"]["tuning"] == {"pages": 1}


def test_a_time_out_is_an_answer_and_the_next_task_gets_a_new_process(tmp_path, monkeypatch):
    marker = tmp_path / "started"
    stand_in(tmp_path, monkeypatch, f"""
import pathlib
first = not pathlib.Path({str(marker)!r}).exists()
pathlib.Path({str(marker)!r}).touch()
for line in sys.stdin:
    time.sleep(600 if first else 0)
    print('{{}}', flush=True)
""")
    with aot.Compiler(tmp_path / "libtpu.so", timeout=5) as compiler:
        answer = compiler.compile("paged_attention", 0, "v6e", {})
        assert "timed out after 5 s" in answer["error"] and "smaller blocks" in answer["advice"]
        compiler.timeout = 60
        assert compiler.compile("paged_attention", 0, "v6e", {}) == {}


def test_a_crash_is_an_answer_with_the_last_words(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, "sys.stdin.readline(); sys.stderr.write('mosaic fell over'); sys.exit(3)")
    with aot.Compiler(tmp_path / "libtpu.so", timeout=60) as compiler:
        error = compiler.compile("paged_attention", 0, "v6e", {})["error"]
    assert "exit code 3" in error and "mosaic fell over" in error


@pytest.mark.parametrize("error, words", [
    ("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 130M of 127M", "fit in VMEM"),
    ("ValueError: the last two dimensions of your block shape are divisible by 8 and 128", "multiples of 8 and 128"),
    ("Mosaic failed: Not implemented: cast to f8", "no form of an operation"),
    ("something else", ""),
])
def test_advice(error, words):
    assert words in aot.advice(error) and bool(words) == bool(aot.advice(error))


def test_libtpu_is_found_where_pip_puts_it_and_its_absence_has_a_remedy(tmp_path):
    with pytest.raises(aot.LibtpuMissing, match="no libtpu.so at"):
        aot.find_libtpu(tmp_path)
    (tmp_path / "libtpu").mkdir()
    (tmp_path / "libtpu" / "libtpu.so").touch()
    (tmp_path / "libtpu-0.0.42.dist-info").mkdir()
    library = aot.find_libtpu(tmp_path)
    assert library == tmp_path / "libtpu" / "libtpu.so" and aot.version_of(library) == "0.0.42"
    pin = (Path(__file__).parents[2] / "requirements" / "aot.txt").read_text()
    assert f"libtpu=={aot.LIBTPU_VERSION}" in pin


def test_the_compilers_dump_is_read(tmp_path):
    (tmp_path / "12-systolic_x.1-02-original.txt").write_text(
        "  #allocation2 [shape = 'f32[8,128]', space=vmem, size = 0x1000, scoped, tag = 'scratch operand']\n"
        "  #allocation3 [shape = 's32[4]', space=smem, size = 0x200, scoped, tag = 'scratch operand']\n")
    (tmp_path / "12-systolic_x.1-72-final_bundles.txt").write_text(
        "LB: loop body\n     0   :  { %s1 = sst }\n   0x1 LB: > { %v = vld }\n   0x2   : >> { %v = vadd }\n"
        "   0x3 LE:  {}\n")
    (tmp_path / "12-systolic_x.1-71-schedule-analysis_final_bundles.txt").write_text("   0x1   : { }\n")
    (tmp_path / "12-systolic_x.1-70-final_hlo-static-per-bundle-utilization.txt").write_text(
        "== CAPACTIY:\nMXU, VALU, VLOAD:FILL, VSTORE:SPILL\n    2     4     3     2\n== UTILIZATION:\n"
        "0 0 1 0\n1 0 0 1\n0 4 2 0\n0 0 0 0\n")
    assert read_schedule(tmp_path) == {
        "vmem_bytes": 4096, "smem_bytes": 512, "bundles": 4, "loop_bundles": 2, "spills": 4, "loop_spills": 3,
        "slots": {"MXU": 1, "VALU": 4, "VLOAD:FILL": 2, "VSTORE:SPILL": 1},
    }  # fmt: skip


@pytest.mark.parametrize("name, entry", EVERY, ids=lambda value: getattr(value, "label", value))
def test_estimates_of_every_shape_are_possible(name, entry):
    """No block sizes beat the roofline, and some reach a good part of the time that the bytes alone take."""
    for generation in GENERATION_NAMES:
        for tuning in entry.candidates(generation):
            result = estimate(entry.work(generation, tuning), GENERATIONS[generation])
            assert 0 < result.roofline <= 1 and result.seconds >= max(result.parts.values())
            assert result.bound in result.parts


def test_a_schedule_takes_the_place_of_the_parts_that_it_has():
    work = Work(hbm_bytes=1e6, matmul_flops={"bfloat16": 1e9}, vector_ops=1e6, copies=10, least_bytes=1e6,
                least_flops={"bfloat16": 1e9}, grid_steps=10)  # fmt: skip
    generation = GENERATIONS["v6e"]
    plain = estimate(work, generation)
    assert plain.bound == "MXU" and "schedule" not in plain.parts
    scheduled = estimate(work, generation, {"loop_bundles": 10_000})
    assert scheduled.parts["schedule"] == pytest.approx(1e5 / generation.clock)
    assert scheduled.seconds == pytest.approx(1e5 / generation.clock + generation.copy_seconds)
    assert estimate(dataclasses.replace(work, hbm_bytes=1e12), generation, {"loop_bundles": 1}).bound == "HBM"


def test_a_report_counts_only_results_of_the_present_sources(tmp_path, monkeypatch):
    proof = registry.proof(NAMES[0])
    entry, generation = proof.entries[0], GENERATION_NAMES[0]
    tuning = entry.chosen(generation)
    library = tmp_path / "libtpu" / "libtpu.so"
    report.record_compile(tmp_path, proof, entry, generation, tuning, {"seconds": 1.0}, library)
    report.record_compile(tmp_path, proof, entry, "v6e", tuning, {"seconds": 1.0, "error": "bad | tile"}, library)
    counts = json.loads((tmp_path / "kernels.json").read_text())["summary"]
    assert counts["compiled"] == 1 and counts["failed"] == 1
    assert counts["entries"] == len(EVERY) * len(GENERATION_NAMES)
    text = (tmp_path / "kernels.md").read_text()
    assert f"| {entry.label} | {generation} | ✓ |" in text and "bad \\| tile" in text
    assert report.known_compile(tmp_path, proof, entry, generation, tuning) == {"seconds": 1.0}
    assert report.known_compile(tmp_path, proof, entry, "v6e", tuning) is None  # an error is tried again
    other = dataclasses.replace(tuning, **{dataclasses.fields(tuning)[0].name: 999})
    assert report.known_compile(tmp_path, proof, entry, generation, other) is None
    monkeypatch.setattr(report, "sources", lambda kernel: "changed")
    assert report.known_compile(tmp_path, proof, entry, generation, tuning) is None
    assert report.summary(json.loads((tmp_path / "kernels.json").read_text()))["compiled"] == 0


def test_results_depend_on_the_sources_of_the_kernels_that_one_uses():
    folders = {path.parent.name for path in report.files("mla_attention")}
    assert folders == {"kernels", "mla_attention", "paged_attention"}
    names = [path.name for path in report.files("sampling")]
    assert "kernel.py" in names and "torch_op.py" not in names and len(names) == len(set(names))


def test_the_command_says_how_to_get_the_compiler(capsys, tmp_path):
    assert cli.main(["kernels", "compile", "--libtpu", str(tmp_path), "--report", str(tmp_path)]) == 1
    assert "systolic kernels: there is no libtpu.so at" in capsys.readouterr().err


def test_the_command_estimates(capsys):
    assert cli.main(["kernels", "estimate", "--kernel", NAMES[0], "--generation", "v6e"]) == 0
    out = capsys.readouterr().out
    assert "not measurements" in out and out.count("% of the roofline") == len(registry.proof(NAMES[0]).entries)


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    code = (
        "import sys, pathlib\n"
        "from systolic.kernels import checking, report\n"
        "outcome = checking.Outcome('0', 0.0, '')\n"
        "for _ in range(5): report.record_check(pathlib.Path(sys.argv[1]), sys.argv[2], 0, [outcome])\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name]) for name in NAMES[:2]]
    assert [child.wait(timeout=200) for child in children] == [0, 0]
    assert set(json.loads((tmp_path / "kernels.json").read_text())["checks"]) == set(NAMES[:2])
