"""The parts that the benchmarks share, on planted data; the benchmarks themselves are run by `make bench`."""

import gc
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from isthmus.files import read_json, write_json

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    return _module("_bench")


@pytest.fixture(scope="module")
def run_all():
    return _module("run_all")


def _module(name):
    # Benchmarks are scripts, not a package: they find each other by their folder.
    sys.path.insert(0, str(FOLDER))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(FOLDER))


def planted(ratio, pairs=40, noise=0.05, seed=0):
    """Rounds with a load common to both sides, and ``ratio`` = peer/ours."""
    rng = np.random.default_rng(seed)
    load = rng.lognormal(0.0, 0.5, pairs)
    own = rng.lognormal(0.0, noise, (2, pairs))
    return {"ours": list(load * own[0]), "peer": list(ratio * load * own[1])}


def test_a_planted_ratio_is_recovered_under_a_load_much_larger_than_it(bench):
    found = bench.compare(planted(1.3), "ours", "peer")
    assert found.low < 1.3 < found.high
    assert found.ratio == pytest.approx(1.3, rel=0.04)
    assert found.p < 1e-6
    assert found.pairs == 40
    # The medians of each side alone would not tell: the load hides it.
    other = bench.compare(planted(1 / 1.3), "ours", "peer")
    assert other.high < 1.0
    assert other.p > 0.999


def test_equal_candidates_are_not_told_apart_and_p_is_uniform(bench):
    ps = [bench.compare(planted(1.0, pairs=12, seed=seed), "ours", "peer").p for seed in range(60)]
    assert 0.3 < np.mean(ps) < 0.7
    assert sum(p < 0.05 for p in ps) <= 8
    same = {"ours": [1.0] * 6, "peer": [1.0] * 6}
    assert bench.compare(same, "ours", "peer").p == 1.0


def test_the_interval_covers_the_truth_as_often_as_it_says(bench):
    covered = 0
    for seed in range(60):
        found = bench.compare(planted(2.0, pairs=25, seed=seed), "ours", "peer")
        covered += found.low <= 2.0 <= found.high
    assert covered >= 52


def test_few_pairs_have_an_exact_p_and_fewer_than_five_none(bench):
    five = {"ours": [1.0, 1.0, 1.0, 1.0, 1.0], "peer": [1.1, 1.2, 1.3, 1.4, 1.5]}
    assert bench.compare(five, "ours", "peer").p == pytest.approx(1 / 32)
    four = {name: values[:4] for name, values in five.items()}
    assert bench.compare(four, "ours", "peer").p is None


def test_the_order_rotates_and_warm_rounds_do_not_count(bench):
    calls = []

    def side(name):
        def run():
            assert not gc.isenabled()
            calls.append(name)
            return f"{name}{len(calls)}"

        return run

    seconds, results = bench.interleaved({name: side(name) for name in "abc"}, 3, warm=2)
    assert "".join(calls) == "abcbcacababcbca"
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3, "c": 3}
    assert results == {"b": "b13", "c": "c14", "a": "a15"}
    assert gc.isenabled()


def test_garbage_is_collected_again_after_a_candidate_that_fails(bench):
    def broken():
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        bench.interleaved({"broken": broken}, 1)
    assert gc.isenabled()


def test_a_slower_candidate_is_told(bench):
    def work(rounds):
        return lambda: sum(range(rounds))

    seconds, _ = bench.interleaved({"ours": work(40_000), "peer": work(10_000)}, 30)
    found = bench.compare(seconds, "ours", "peer")
    assert found.high < 0.6
    assert found.p > 0.99


def test_spread(bench):
    assert bench.spread([5.0, 1.0, 2.0, 3.0, 4.0]) == {"median": 3.0, "low": 2.0, "high": 4.0, "least": 1.0}


def test_peak_memory_is_of_the_process_and_not_inherited(bench):
    held = bytearray(200 * 2**20)
    small = bench.peak_megabytes([sys.executable, "-c", "pass"])
    large = bench.peak_megabytes([sys.executable, "-c", "bytearray(100 * 2**20)"])
    del held
    assert small < 60
    assert 95 < large - small < 115
    with pytest.raises(RuntimeError, match="no such luck"):
        bench.peak_megabytes([sys.executable, "-c", "raise SystemExit('no such luck')"])


def test_provenance_names_an_absent_peer(bench):
    found = bench.provenance(["numpy", "no-such-distribution"], quick=True)
    assert found["peers"] == {"numpy": np.__version__, "no-such-distribution": "absent"}
    assert found["versions"]["torch"][0].isdigit()
    assert found["cores"] >= found["threads"] >= 1
    assert found["quick"] is True
    assert {"date", "commit", "python", "platform", "processor", "load", "stolen"} <= set(found)
    assert found["stolen"] is None or 0.0 <= found["stolen"] <= 1.0


def planted_report(bench, options, **changes):
    gates = [bench.Gate("ratio", 7.25, "≥ 5", True), bench.Gate("share | all", 0.5, "≥ 0.85", False)]
    rows = [{"size": "a|b", "seconds": np.float64(0.012345)}, {"size": 12345, "seconds": None}]
    said = {
        "name": "planted",
        "question": "How fast is it?",
        "answer": "7.25 times.",
        "columns": ("size", "seconds", "peer"),
        "rows": rows,
        "gates": gates,
        "peers": ("no-such-distribution",),
        "details": {"all": np.arange(3)},
    }
    bench.report(options, **{**said, **changes})


def test_report_prints_the_table_the_gates_and_the_absent_peer(bench, capsys):
    planted_report(bench, bench.arguments("planted").parse_args(["--quick"]))
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "How fast is it?"
    assert lines[2:5] == ["size   seconds  peer", "a|b    0.0123   –", "12345  –        –"]
    assert "gate: ratio: 7.25, wanted ≥ 5: met" in out
    assert "gate: share | all: 0.5, wanted ≥ 0.85: NOT met" in out
    assert "no-such-distribution is not installed: skipped" in out


def test_the_json_printed_is_the_json_written(bench, capsys, tmp_path):
    path = tmp_path / "new" / "planted.json"
    planted_report(bench, bench.arguments("planted").parse_args(["--json", "--out", str(path)]))
    kept = read_json(path)
    assert {**json.loads(capsys.readouterr().out), "provenance": 0} == {**kept, "provenance": 0}
    assert list(kept) == ["benchmark", "question", "answer", "gates", "columns", "rows", "details", "provenance"]
    assert kept["rows"][0] == {"size": "a|b", "seconds": 0.012345}
    assert kept["details"] == {"all": [0, 1, 2]}
    assert kept["provenance"]["peers"] == {"no-such-distribution": "absent"}


def test_the_page_is_made_from_the_results_alone(bench, run_all, tmp_path):
    out = tmp_path / "results" / "planted.json"
    planted_report(bench, bench.arguments("planted").parse_args(["--out", str(out)]))
    write_json(tmp_path / "results" / "old.json", {"benchmark": "old", "results": []})
    run_all.write_page(tmp_path)
    page = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert "## Gates: 1 of 2 met" in page
    assert "| planted | ratio | 7.25 | ≥ 5 | yes |" in page
    assert "| planted | share \\| all | 0.5 | ≥ 0.85 | no |" in page
    assert "| a\\|b | 0.0123 | – |" in page
    assert "7.25 times." in page
    assert "no-such-distribution absent" in page
    assert "`results/old.json`" in page
    assert "A quick run" not in page
    kept = read_json(tmp_path / "results.json")
    assert kept["other_forms"] == ["old"]
    assert "details" not in kept["benchmarks"][0]
    assert kept["benchmarks"][0]["gates"][0]["value"] == 7.25


def test_a_page_says_what_was_not_recorded(run_all):
    document = {"benchmark": "b", "question": "Q?", "answer": "A.", "gates": [], "columns": ["x"], "rows": [{"x": 1}]}
    page = run_all.page([{**document, "provenance": {"quick": True, "threads": "not recorded"}}])
    assert "commit not recorded" in page
    assert "A quick run" in page
    assert "## Gates: 0 of 0 met" in page


def test_every_benchmark_is_run_and_no_part_is(run_all):
    names = run_all.names()
    assert {"step", "growth"} <= set(names)
    assert not any(name.startswith("_") or name == "run_all" for name in names)


def test_the_kept_page_is_that_of_the_kept_results(run_all):
    """An edited number, or a result kept without its page, would show."""
    if not (FOLDER / "RESULTS.md").exists():
        pytest.skip("no full run is kept")
    documents, others = run_all.collect(FOLDER / "results")
    assert (FOLDER / "RESULTS.md").read_text(encoding="utf-8") == run_all.page(documents, others)
    assert read_json(FOLDER / "results.json")["benchmarks"] == documents


def test_a_planted_exponent_is_fitted_and_a_bend_shows_in_the_local_slope():
    fit = _module("growth").fit
    sizes = [100, 200, 400, 800]
    exact = fit(sizes, [3e-6 * n**1.5 for n in sizes])
    assert exact["exponent"] == pytest.approx(1.5)
    assert exact["±"] == pytest.approx(0.0, abs=1e-6)
    bent = fit(sizes, [1.0, 2.0, 4.0, 32.0])
    assert bent["largest local slope"] == pytest.approx(3.0)
    assert 1.0 < bent["exponent"] < 3.0
    assert bent["±"] > 1.0
    # Levels walked come in any order, and may all be equal: then there is nothing to fit.
    assert fit([400, 100, 200], [4.0, 1.0, 2.0])["exponent"] == pytest.approx(1.0)
    assert fit([3, 3], [1.0, 2.0])["exponent"] is None
    assert fit([1, 2], [1.0, 2.0])["±"] is None


def test_the_interval_of_an_exponent_covers_it():
    fit, rng, sizes = _module("growth").fit, np.random.default_rng(0), [1, 2, 4, 8, 16]
    covered = 0
    for _ in range(100):
        found = fit(sizes, [n * rng.lognormal(0.0, 0.1) for n in sizes])
        covered += abs(found["exponent"] - 1.0) <= found["±"]
    assert covered >= 88


@pytest.mark.parametrize("kind", ["fully connected", "leaky"])
def test_the_products_of_a_step_are_those_that_autograd_takes(kind):
    """Counted by PyTorch itself on the network's own forward and backward."""
    from torch.utils.flop_counter import FlopCounterMode

    steps = _module("_steps")
    case = steps.Case(kind, 4, 12, 30, 5)
    net, (X, Y) = case.network(), case.data()
    with FlopCounterMode(display=False) as counter:
        (net(X) - Y).square().sum().backward()
    assert case.flops == counter.get_total_flops()
    for blocks in (1, 2):
        with FlopCounterMode(display=False) as alone:
            steps.gemms(case, blocks)(3)
        assert alone.get_total_flops() == 3 * case.flops


def test_where_f_was_not_learned_is_counted_and_named():
    rank = _module("rank")
    plain = {"problem": "a", "seed": 0, "noise": 0.0, "verdict": "determined"}
    near = {**plain, "errors": {"1": 0.5, "2": 0.014}, "learners": {"forest": 0.2, "kernel": 0.01}}
    far = {**plain, "problem": "b", "noise": None, "errors": {"1": 0.5, "2": 0.016}, "learners": near["learners"]}
    tiny = {**plain, "errors": {"1": 1.4e-4}, "learners": {"kernel": 1e-9}}
    rows = [near, far, tiny, {**plain, "errors": {}, "learners": {}}]
    found = rank.learned(rows)
    assert (found["compared"], found["within"]) == (3, 2)
    assert [(one["problem"], one["ours"], one["reference"]) for one in found["beyond"]] == [("b", 0.016, 0.01)]
    assert "on 2 of 3" in " ".join(rank.told_learned(rows))
    assert rank.told_learned(rows)[-1] == "| b | 0 | – | 0.016 | 0.01 | determined |"
    assert rank.told_learned(rows[3:]) == []
