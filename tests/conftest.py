"""Settings of the whole suite: one thread, fixed seeds, hypothesis without time limits."""

import gc
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, settings
from tests.pairwise import covering, meetings

torch.set_num_threads(1)

ANY_TIME = settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow]
)  # on a busy machine nothing is fast
settings.register_profile("local", ANY_TIME)
settings.register_profile("quick", ANY_TIME, max_examples=15)
settings.register_profile("ci", ANY_TIME, derandomize=True, database=None)

SLOW = {
    "tests/bench/algorithms/test_learning.py": [
        "test_gains_on_the_target",
        r"test_learns_the_sources\[(?!(erm|irm|vrex|hgp|coral|dann|mldg|fish|sagm)\])",
    ],
    "tests/bench/algorithms/test_battery.py": [
        r"test_everything_stays_finite.*-(one-class|single-samples)\]",
    ],
    "tests/bench/runs/test_exported_model.py": [
        r"test_every_form.*\[(coloured-onnx|(arm|mtl)-pt2)"
    ],
    "tests/bench/runs/test_feature_bank.py": ["test_several_processes"],
    "tests/bench/runs/test_image_run.py": [
        "test_a_network_learns_stripes",
        "test_an_interrupted_run_ends",
        "test_reading_without_a_cache",
        "test_domainbeds_arm",
        "test_a_damaged_image_is_named",
    ],
    "tests/bench/runs/test_irm.py": [
        r"test_every_algorithm_is_determined_by_the_seed\[(?!(erm|hutchinson|mixup|dann|fish)\])",
    ],
    "tests/bench/runs/test_machine.py": [
        r"test_every_algorithm_makes.*\[(?!(erm|irm|hgp|mldg|dann|fish|sagm)-)",
    ],
    "tests/bench/runs/test_run.py": ["test_the_collector_reads_a_small_sweep"],
    "tests/bench/runs/test_run_folder.py": ["test_killed_at_random_moments"],
    "tests/bench/runs/test_sampling.py": [
        r"test_a_run_continues_with_the_same_batches\[2",
        "test_a_worker_that_died",
        "test_no_process_is_left_when",
        "test_workers_end_when",
        "test_a_batch_lasts",
    ],
    "tests/bench/sweep/test_launchers.py": [
        "test_killed_workers",
        "test_workers_may_be_killed",
        "test_two_launchers",
        "test_a_job_whose_workers",
        "test_an_interrupt",
    ],
    "tests/bench/sweep/test_ray.py": [""],
    "tests/bench/sweep/test_running.py": ["test_plain_jobs_report"],
    "tests/cli/test_benchmarks.py": ["test_every_verb_takes_them"],
    "tests/cli/test_cli.py": ["test_a_missing_matplotlib"],
    "tests/cli/test_datasets.py": ["test_check_of_the_real_pacs"],
    "tests/cli/test_diagnose.py": [
        "test_a_run_is_diagnosed",
        "test_a_table_gives",
        "test_features_as_they_are",
        "test_images_are_diagnosed",
    ],
    "tests/cli/test_errors.py": [
        r"test_a_run_knows_where_its_data_were\[verb1",
        r"test_damaged_runs_of_.*\[done(\.json)?-(?!empty)",
        r"test_damaged_runs_of_the_domainbed_protocol\[done-",
        r"test_data_that_were_moved_can_be_named\[verb1",
        "test_the_traceback_of_a_bug",
    ],
    "tests/cli/test_sweep.py": [
        "test_ctrl_c",
        r"test_runs_with_one_training_domain_are_told_of_once\[local",
    ],
    "tests/cli/test_tables.py": ["test_it_is_diagnosed", "test_heart_is_diagnosed"],
    "tests/graphs/test_transforms.py": ["test_a_graph"],
    "tests/paper/experiments/test_feature_sweep.py": ["test_several_processes", "test_figure2"],
    "tests/paper/experiments/test_reproduce.py": [
        "test_interrupted_it_saves",
        "test_one_page_of_everything",
        "test_rows_whose_runs_are_gone",
        "test_tables_and_figures_share",
        "test_figure2_attacks",
    ],
    "tests/paper/test_theorem_1.py": [r"test_both_vanish_as_the_target.*\[cross_entropy"],
    "tests/precision/test_float32.py": ["test_many_samples"],
    "tests/unit/alignment/test_hessian_alignment.py": [
        r"test_descending_the_penalty.*\[(expected|diagonal)\]",
    ],
    "tests/unit/alignment/test_loss_options.py": [r"test_second_derivatives.*\[.*(soft|coupled)"],
    "tests/unit/alignment/test_parts.py": [r"test_the_mean_over_micro_batches.*\[diagonal"],
    "tests/unit/bench/data/test_augmentation.py": [
        r"test_augmented_images_have_the_distribution_of_(torchvision|the_reference\[8)",
        "test_rates_of_flips",
    ],
    "tests/unit/bench/data/test_image_cache.py": [
        r"test_a_corrupt_image_is_named\[2",
        "test_several_processes",
        "test_work_continues",
        "test_only_one_process_writes",
    ],
    "tests/unit/bench/data/test_inspection.py": [
        r"test_damaged_and_repeated_images.*\[2",
        "test_the_real_pacs",
    ],
    "tests/unit/bench/data/test_mnist14.py": ["test_shipped_file_equals"],
    "tests/unit/bench/models/test_weights.py": ["test_torchvision_can_be_imported"],
    "tests/unit/curvature/test_softmax.py": [r"test_float32_is_float64.*\[full-13-1\.0"],
    "tests/unit/diagnosis/test_bad_input.py": [
        "test_a_class_in_one_domain_only",
        "test_a_thousand_classes",
        "test_two_hundred_domains",
    ],
    "tests/unit/diagnosis/test_remedies.py": [
        "test_a_site_with_wrong_labels",
        "test_few_sites",
        "test_nothing_helps",
    ],
    "tests/unit/diagnosis/test_sections.py": [
        "test_a_head_that_is_not_at_its_optimum",
        "test_bounds_are_those",
        "test_equal_domains_have_spectral",
    ],
    "tests/unit/diagnosis/test_shift.py": ["test_feature_shift_is_found_as_such"],
    "tests/unit/heads/test_attack_search.py": [
        "test_more_restarts",
        r"test_plain_ascent.*-[12]\]",
        r"test_plain_ascent.*\[squared (sigmoid-8|tanh-[28]|softplus)",
        r"test_plain_ascent.*\[cross_entropy-1",
    ],
    "tests/unit/heads/test_measure.py": ["test_quadratics_agree"],
    "tests/unit/heads/test_worst_case_gap.py": [
        "test_float32_samples_and_more_parameters",
        "test_quadratics_reach",
        "test_exact_is_never_below",
    ],
    "tests/unit/test_benchmark_marginal.py": ["test_the_page_is_written"],
    "tests/unit/test_estimator.py": [
        "test_alignment_helps",
        r"test_grid_search_leaves_one_domain_out\[True",
    ],
    "tests/unit/test_estimator_cv.py": ["test_it_finds_half"],
    "tests/unit/test_import.py": ["test_a_star_and_help", "test_parts_of_the_package"],
    "tests/unit/test_processes.py": ["test_a_process_"],
    "tests/unit/test_testing.py": ["test_every_algorithm_passes"],
}
"""Tests of the slow lane by file, where no marker in the file says so: how their names begin.

`make test` leaves this lane out, `make test-all` runs it too. In it are Ray, kills, benchmarks,
examples, and whatever else takes more than some seconds.
"""


def pytest_configure(config):
    """Let hypothesis find the same examples always in CI, and fewer of them in the quick lane."""
    lane = "quick" if config.option.markexpr == "not slow" else "local"
    settings.load_profile("ci" if os.environ.get("CI", "").lower() == "true" else lane)


def pytest_collection_finish():
    """Spare the collector of garbage the tests that were found: they stay to the end."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their markers
def pytest_collection_modifyitems(items):
    """Put tests of the table above, and all but the pairs of a `pairwise` grid, in the slow lane.

    The marker can be given another function than `meetings`, of the parameters, which says what a
    row of the grid is kept for.
    """
    grids = {}
    for item in items:
        file, _, name = item.nodeid.partition("::")
        if any(re.match(beginning, name) for beginning in SLOW.get(file, ())):
            item.add_marker("slow")
        if marker := item.get_closest_marker("pairwise"):
            wanted = marker.kwargs.get("meetings", meetings)(item.callspec.params)
            grids.setdefault(item.nodeid.partition("[")[0], []).append((item, wanted))
    for grid in grids.values():
        kept = covering([wanted for _, wanted in grid])
        for position in set(range(len(grid))) - set(kept):
            grid[position][0].add_marker("slow")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def interruptible():
    """SIGINT interrupts this process and those it starts, also where it is ignored.

    So it is in what nohup starts, or a script in the background.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def unchecked():
    """No shape checks, which would take most of the time; the other tests have them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def drawn(monkeypatch):
    """All random signs drawn during a test, in order."""
    from hessalign.curvature import hutchinson

    signs = []
    draw = hutchinson._rademacher

    def record(shape, seed, device):
        signs.append(draw(shape, seed, device))
        return signs[-1]

    monkeypatch.setattr(hutchinson, "_rademacher", record)
    return signs


@pytest.fixture(params=["small", "large"])
def route(request, monkeypatch):
    """The code's routes for small shapes, and for large ones on small shapes too."""
    from hessalign.curvature import gram, products, softmax

    if request.param == "large":
        monkeypatch.setattr(softmax, "_FEW_CLASSES", 0)
        monkeypatch.setattr(gram, "MANY_FEATURES", 1)
        monkeypatch.setattr(products, "_FEW_SAMPLES", 0)
    return request.param


OUTCOMES = """
import json, warnings
import numpy as np
import torch
import hessalign as ha
{setup}
outcomes = {{}}
for name, call in {calls!r}.items():
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            outcomes[name] = repr(eval(call))
    except Exception as error:
        outcomes[name] = f"{{type(error).__name__}}: {{error}}"
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="session")
def outcomes_without_type_checks():
    """Evaluate expressions as a user would, without the tests' type checks.

    During tests jaxtyping and beartype refuse wrong types before the library can say what it
    expected. Returns a function of some lines of set-up and of expressions by name; its result
    holds the representation of each value, or the error it raised.
    """

    from tests.together import printed

    def run(setup, calls):
        return json.loads(printed(OUTCOMES.format(setup=dedent(setup), calls=calls)))

    return run


def python_environment():
    """The environment of an interpreter that finds the same package."""
    import hessalign

    source = Path(hessalign.__file__).parents[1]
    return {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}


def run_python(script):
    """What a script prints in an interpreter of its own that finds the same package."""
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=python_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="session")
def python():
    """Run a script in an interpreter of its own; returns what it printed."""
    return run_python
