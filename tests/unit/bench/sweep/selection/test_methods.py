"""The three methods of selection: DomainBed's own vectors, ties, and a second implementation."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sweeps import all_sets, run

from hessalign.bench.sweep.selection import (
    SELECTIONS,
    build_tables,
    choose,
    find_selection,
    leave_one_out,
    oracle,
    training_domain,
)

# --- DomainBed's own vectors ----------------------------------------------------------------------


def by_sets(*runs):
    return {item.key.test_domains: item for item in runs}


def values(candidate):
    return candidate.validation, candidate.test, candidate.step


@pytest.mark.parametrize(
    ("last", "expected"), [((0.65, 0.60), (0.60, 0.65, 1)), ((0.85, 0.80), (0.80, 0.85, 1))]
)
def test_oracle_takes_the_last_step_even_if_it_is_worse(last, expected):
    runs = by_sets(run((0,), [[(0.75, 0.70)], [last]]))
    assert values(oracle(runs, 0)) == expected


def test_training_domain_takes_the_best_step():
    runs = by_sets(
        run((0,), [[(0.1, 0.2), (0.5, 0.6), (0.6, 0.7)], [(0.3, 0.4), (0.6, 0.7), (0.7, 0.8)]])
    )
    assert values(training_domain(runs, 0)) == (0.75, 0.3, 1)


LEFT_OUT = (
    run((0,), [[(0.1, 0.0), (0.0, 0.0), (0.0, 0.0)]]),
    run((0, 1), [[(0.0, 0.0), (0.5, 0.0), (0.0, 0.0)]]),
    run((0, 2), [[(0.0, 0.0), (0.0, 0.0), (0.6, 0.0)]]),
)


def test_leave_one_out_averages_the_domains_left_out():
    assert values(leave_one_out(by_sets(*LEFT_OUT), 0)) == (0.55, 0.1, 0)


def test_leave_one_out_needs_every_pair():
    assert leave_one_out(by_sets(*LEFT_OUT[:2]), 0) == "no run with test domains {0,2}"
    assert leave_one_out(by_sets(LEFT_OUT[0]), 0) == "no run with test domains {0,1}, {0,2}"
    assert leave_one_out(by_sets(*LEFT_OUT[1:]), 0) == "no run with test domains {0}"


@pytest.mark.parametrize("method", [training_domain, oracle, leave_one_out])
def test_without_runs_there_is_no_candidate(method):
    assert method({}, 2) == "no run with test domains {2}"


@pytest.mark.parametrize("method", [training_domain, leave_one_out])
def test_one_domain_leaves_nothing_to_train_on(method):
    assert method(by_sets(run((0,), [[(0.5, 0.5)]])), 0) == "no training domain"


# --- steps and ties -------------------------------------------------------------------------------


def test_leave_one_out_drops_steps_that_a_pair_lacks():
    domains = [(0.5, 0.5)] * 3
    better = [(0.9, 0.9)] * 3
    runs = by_sets(
        run((0,), {0: domains, 300: better, 600: domains}),
        run((0, 1), {0: domains, 600: domains}),
        run((0, 2), {0: domains, 300: better, 600: better}),
    )
    assert values(leave_one_out(runs, 0)) == (0.7, 0.5, 600)
    runs[0, 1] = run((0, 1), {100: domains})
    assert leave_one_out(runs, 0) == "no step recorded by all of its 3 runs"


def test_of_equal_steps_the_earliest_counts():
    first, second = [(0.1, 0.5), (0.2, 0.5)], [(0.3, 0.5), (0.4, 0.5)]
    runs = by_sets(run((0,), [first, second]))
    assert values(training_domain(runs, 0)) == (0.5, 0.1, 0)
    pair = run((0, 1), [[(0.0, 0.0), (0.4, 0.0)]] * 2)
    assert values(leave_one_out({**runs, (0, 1): pair}, 0)) == (0.4, 0.1, 0)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_of_equal_runs_the_largest_hyper_parameter_seed_counts(order):
    levels = {0: 0.5, 1: 0.7, 2: 0.7}
    candidates = [
        oracle(by_sets(run((0,), [[(seed / 10, levels[seed])]], seed=seed)), 0) for seed in order
    ]
    assert choose(candidates).run.key.hparams_seed == 2


def test_unknown_method_is_named():
    assert find_selection("oracle").candidate is oracle
    with pytest.raises(ValueError, match=r"Unknown selection method 'leave-one'.*'leave-one-out'"):
        find_selection("leave-one")


# --- against a second implementation --------------------------------------------------------------
# Written from the protocol on flat records, step by step as DomainBed goes, sharing nothing.


def flat_records(runs):
    for item in runs:
        for found in item.records:
            flat = {
                "trial": item.key.trial_seed, "seed": item.key.hparams_seed,
                "test": set(item.key.test_domains), "step": found.step,
            }  # fmt: skip
            for domain, (inner, outer) in enumerate(zip(found.inner, found.outer, strict=True)):
                flat["in", domain], flat["out", domain] = inner, outer
            yield flat


def judge_training_domain(records, test, domains):
    for flat in records:
        if flat["test"] == {test}:
            others = [flat["out", i] for i in range(domains) if i != test]
            yield sum(others) / len(others), flat["in", test], flat["step"]


def judge_leave_one_out(records, test, domains):
    for step in sorted({flat["step"] for flat in records}):
        now = [flat for flat in records if flat["step"] == step]
        single = [flat for flat in now if flat["test"] == {test}]
        left_out = {}
        for flat in now:
            if len(flat["test"]) == 2 and test in flat["test"]:
                (other,) = flat["test"] - {test}
                left_out[other] = flat["in", other]
        if len(single) == 1 and len(left_out) == domains - 1:
            total = sum(left_out[other] for other in sorted(left_out))
            yield total / (domains - 1), single[0]["in", test], step


def judge_oracle(records, test, domains):
    mine = sorted((flat for flat in records if flat["test"] == {test}), key=lambda f: f["step"])
    for flat in mine[-1:]:
        yield flat["out", test], flat["in", test], flat["step"]


JUDGES = {
    "training-domain": judge_training_domain,
    "leave-one-out": judge_leave_one_out,
    "oracle": judge_oracle,
}


def brute_force(runs, method, trial, test, domains):
    records = [flat for flat in flat_records(runs) if flat["trial"] == trial]
    best_by_seed = []
    for seed in sorted({flat["seed"] for flat in records}):
        mine = sorted((f for f in records if f["seed"] == seed), key=lambda f: f["step"])
        judged = list(JUDGES[method](mine, test, domains))
        if judged:
            best_by_seed.append((max(judged, key=lambda item: item[0]), seed))
    ranked = sorted(best_by_seed, key=lambda item: item[0][0])[::-1]
    return ranked[0] if ranked else None


@st.composite
def sweeps(draw):
    """Runs with many ties, some of them missing, some of them without some steps."""
    domains = draw(st.integers(2, 4))
    level = st.sampled_from([0.0, 0.25, 0.5, 1.0])
    runs = []
    for test, seed, trial in product(all_sets(domains), range(3), range(2)):
        if draw(st.integers(0, 7)) == 0:
            continue
        steps = draw(st.sets(st.sampled_from([0, 300, 600]), min_size=2))
        accuracies = {
            step: draw(st.lists(st.tuples(level, level), min_size=domains, max_size=domains))
            for step in sorted(steps)
        }
        runs.append(run(test, accuracies, seed=seed, trial=trial))
    return domains, draw(st.permutations(runs))


@settings(max_examples=60)
@given(sweeps())
def test_tables_agree_with_the_second_implementation(sweep):
    domains, runs = sweep
    if not runs:
        return
    for table in build_tables(runs, SELECTIONS.values()):
        if table.dataset is None:
            continue
        (row,) = table.rows
        assert len(row.cells) == domains
        for test, cell in enumerate(row.cells):
            found = {
                trial: ((c.validation, c.test, c.step), c.run.key.hparams_seed)
                for trial, c in zip(cell.trials, cell.chosen, strict=True)
            }
            expected = {
                trial: brute_force(runs, table.selection.name, trial, test, domains)
                for trial in {item.key.trial_seed for item in runs}
            }
            assert found == {trial: best for trial, best in expected.items() if best is not None}
            assert cell.values == tuple(c.test for c in cell.chosen)


@given(sweeps(), st.randoms())
def test_tables_do_not_depend_on_the_order_of_runs(sweep, random):
    _, runs = sweep
    if not runs:
        return
    other = list(runs)
    random.shuffle(other)
    assert build_tables(runs, SELECTIONS.values()) == build_tables(other, SELECTIONS.values())
