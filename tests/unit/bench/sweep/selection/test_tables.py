"""Tables as data: means, errors, averages, order, and what cells say they lack."""

import pytest
from tests.sweeps import all_sets, record, run, write, write_sweep

from hessalign.bench.sweep.selection import SELECTIONS, Cell, Row, build_tables, collect

TRAINING, LEAVE_ONE_OUT, ORACLE = SELECTIONS.values()


def flat(test, level, *, domains=3, **changes):
    """A run whose accuracies are all the same."""
    return run(test, [[(level, level)] * domains], **changes)


def table(runs, selection=ORACLE, dataset=0):
    return build_tables(runs, [selection])[dataset]


def test_mean_and_standard_error_are_those_domainbed_prints():
    cell = Cell((0, 1, 2), (0.1, 0.2, 0.3))
    assert f"{cell.mean:.1f} +/- {cell.error:.1f}" == "20.0 +/- 4.7"
    assert (Cell((), ()).mean, Cell((), ()).error) == (None, None)
    assert Cell((0,), (0.5,)).error == 0


def test_average_is_of_unrounded_means_and_needs_them_all():
    first, second = Cell((0,), (0.12344,)), Cell((0,), (0.12346,))
    assert Row("ERM", (first, second)).average == pytest.approx(12.345)
    assert Row("ERM", (first, Cell((), ()))).average is None


def test_averages_first_average_the_domains_of_a_trial():
    levels = {(0, 0): 0.1, (0, 1): 0.2, (0, 2): 0.6, (1, 0): 0.5, (1, 1): 0.5, (1, 2): 0.5}
    runs = [flat((domain,), level, trial=trial) for (trial, domain), level in levels.items()]
    (cell,) = table(runs, dataset=1).rows[0].cells
    assert cell.trials == (0, 1)
    assert cell.values == pytest.approx((0.3, 0.5))
    assert cell.chosen == cell.reasons == ()


def test_order_of_data_sets_algorithms_and_columns():
    names = [("Mine", "Zeta"), ("PACS", "IRM"), ("VLCS", "Alpha"), ("DomainNet", "ERM")]
    domains = {"Mine": 2, "PACS": 4, "VLCS": 4, "DomainNet": 6}
    runs = [
        flat((0,), 0.5, domains=domains[dataset], dataset=dataset, algorithm=algorithm)
        for dataset, algorithm in names
    ]
    tables = build_tables(runs, [TRAINING, ORACLE])
    order = ["VLCS", "PACS", "DomainNet", "Mine", None]
    assert [found.dataset for found in tables] == order * 2
    assert [found.selection for found in tables] == [TRAINING] * 5 + [ORACLE] * 5
    assert [row.algorithm for row in tables[0].rows] == ["ERM", "IRM", "Alpha", "Zeta"]
    assert [found.columns for found in tables[:5]] == [
        ("C", "L", "S", "V"),
        ("A", "C", "P", "S"),
        ("clip", "info", "paint", "quick", "real", "sketch"),
        ("0", "1"),
        ("VLCS", "PACS", "DomainNet", "Mine"),
    ]


def test_domains_are_numbered_where_the_catalog_has_another_number_of_them():
    assert table([flat((0,), 0.5, domains=5)]).columns == ("0", "1", "2", "3", "4")
    told = {"domain_names": ("Bern", "Como", "Graz", "Lyon")}
    runs = [
        flat((0,), 0.5, dataset="sites", domains=4),
        flat((1,), 0.5, dataset="sites", domains=4, **told),
    ]
    assert table(runs).columns == told["domain_names"]
    assert table([flat((0,), 0.5, domains=4, **told)]).columns == ("A", "C", "P", "S")


# --- what is missing ------------------------------------------------------------------------------


def full(trials=2, seeds=2, drop=lambda item: False):
    runs = [
        flat(test, 0.5, trial=trial, seed=seed)
        for test in all_sets(3)
        for trial in range(trials)
        for seed in range(seeds)
    ]
    return [item for item in runs if not drop(item.key)]


def reasons(runs, selection, dataset=0):
    return [cell.reasons for cell in table(runs, selection, dataset).rows[0].cells]


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_a_complete_sweep_lacks_nothing(selection):
    assert reasons(full(), selection) == [(), (), ()]
    assert reasons(full(), selection, dataset=1) == [()]


def test_a_missing_pair_of_one_trial():
    runs = full(drop=lambda key: key.test_domains == (0, 2) and key.trial_seed == 1)
    expected = ("trial 1: no run with test domains {0,2}",)
    assert reasons(runs, LEAVE_ONE_OUT) == [expected, (), expected]
    assert reasons(runs, TRAINING) == reasons(runs, ORACLE) == [(), (), ()]
    cells = table(runs, LEAVE_ONE_OUT).rows[0].cells
    assert [cell.trials for cell in cells] == [(0,), (0, 1), (0,)]
    (average,) = table(runs, LEAVE_ONE_OUT, dataset=1).rows[0].cells
    assert average.trials == (0, 1)
    assert average.reasons == ("trial 1: no value for 0, 2, average of the others",)


def test_a_sweep_without_pairs():
    runs = full(drop=lambda key: len(key.test_domains) == 2)
    assert reasons(runs, LEAVE_ONE_OUT)[1] == (
        "trials 0, 1: no run with test domains {0,1}, {1,2}",
    )
    assert reasons(runs, LEAVE_ONE_OUT, dataset=1) == [("no value on any domain of PACS",)]
    assert reasons(runs, TRAINING) == [(), (), ()]


def test_fewer_hyper_parameter_seeds_than_the_sweep_has():
    runs = full(seeds=12, drop=lambda key: key.test_domains == (1,) and key.hparams_seed > 2)
    seeds = "hyper-parameter seeds 3, 4, 5, 6, 7, 8, 9, 10 and 1 more"
    assert reasons(runs, ORACLE) == [
        (),
        (f"trials 0, 1: {seeds}: no run with test domains {{1}}",),
        (),
    ]
    assert table(runs).rows[0].cells[1].trials == (0, 1)


def test_different_reasons_are_told_apart():
    def drop(key):
        return (key.test_domains, key.hparams_seed) in {((0, 1), 0), ((0, 2), 1)}

    assert reasons(full(drop=drop), LEAVE_ONE_OUT)[0] == (
        "trials 0, 1: hyper-parameter seed 0: no run with test domains {0,1}",
        "trials 0, 1: hyper-parameter seed 1: no run with test domains {0,2}",
    )


def test_an_algorithm_that_lacks_a_trial_or_a_data_set():
    runs = [
        *full(),
        *[flat((domain,), 0.5, algorithm="IRM") for domain in range(3)],
        flat((0,), 0.5, algorithm="IRM", dataset="VLCS"),
    ]
    found = build_tables(runs, [ORACLE])
    vlcs, pacs, averages = found
    assert pacs.rows[1].algorithm == "IRM"
    assert pacs.rows[1].cells[0].reasons == (
        "trial 0: hyper-parameter seed 1: no run with test domains {0}",
        "trial 1: no run with test domains {0}",
    )
    assert vlcs.rows[0].cells[0].reasons == ("no run of ERM on VLCS",)
    assert vlcs.without_value(vlcs.rows[1]) == ["1", "2"]
    assert averages.rows[1].cells[1].reasons == ("trial 1: no value on any domain of PACS",)
    assert averages.rows[0].cells[0].reasons == ("no value on any domain of VLCS",)
    assert averages.rows[0].average is None


# --- the whole way --------------------------------------------------------------------------------


def test_collect_reads_selects_and_tabulates(tmp_path):
    found = collect(write_sweep(tmp_path))
    assert found.records == 2 * 2 * 6 * 2
    assert found.notes == ()
    for item in found.tables[::2]:
        means = [cell.mean for cell in item.rows[0].cells]
        assert means == pytest.approx([56.5, 66.5, 76.5])
        assert [c.step for cell in item.rows[0].cells for c in cell.chosen] == [1] * 6


def test_unfinished_runs_count_only_on_request(tmp_path):
    write_sweep(tmp_path)
    path = write(tmp_path / "new", [record(0, [0], seed=2, level=1.0)], done=False)
    found = collect(tmp_path, ["oracle"])
    assert [note.text for note in found.notes] == [f"{path}: its last record is of step 0, not 1."]
    assert found.tables[0].rows[0].cells[0].mean == pytest.approx(56.5)
    included = collect(tmp_path, ["oracle"], include_unfinished=True)
    assert included.notes == ()
    assert included.records == found.records + 1
    assert included.tables[0].rows[0].cells[0].values == pytest.approx((1.0, 0.57))


def test_only_unfinished_runs_say_how_to_include_them(tmp_path):
    write(tmp_path / "a", [record(0, [0])])
    text = r"Expected a finished run below .*, found 1 unfinished, such as .* --include-unfinished"
    with pytest.raises(ValueError, match=text):
        collect(tmp_path)


def test_an_abandoned_attempt_does_not_contradict_the_finished_one(tmp_path):
    write(tmp_path / "a", [record(0, [0], level=0.25)], done=False)
    write(tmp_path / "b", [record(0, [0]), record(1, [0])])
    assert [note.kind for note in collect(tmp_path).notes] == ["unfinished run"]
    with pytest.raises(ValueError, match="got two that differ in the record of step 0"):
        collect(tmp_path, include_unfinished=True)


def test_copies_are_counted_once(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / name, [record(0, [0]), record(1, [0])])
    found = collect(tmp_path)
    assert found.records == 2
    assert [note.kind for note in found.notes] == ["repeated run"]


def test_mixed_protocols_are_mixed_only_on_request(tmp_path):
    write_sweep(tmp_path)
    other = {"holdout_fraction": 0.5}
    write(tmp_path / "x", [record(step, [0], trial=2, args=other) for step in range(2)])
    with pytest.raises(ValueError, match=r"holdout_fraction: 0\.2 \(24 runs, .*, 0\.5 \(1 run, "):
        collect(tmp_path)
    assert collect(tmp_path, mix=True).records == 50
