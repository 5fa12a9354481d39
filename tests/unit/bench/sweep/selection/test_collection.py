"""What must hold before runs share a table."""

import dataclasses

import pytest
from tests.sweeps import PROTOCOL, run

from hessalign.bench.sweep.selection.collection import (
    _distinct_runs,
    _unfinished_reason,
    check_protocols,
    finished_runs,
)


def at(recorded, *, done=False, dataset="PACS", unreadable=(), **protocol):
    """A run with records of some steps."""
    return run(
        (0,), {step: [(0.5, 0.5)] * 4 for step in recorded}, dataset=dataset, done=done,
        unreadable=unreadable, protocol=PROTOCOL._replace(**protocol),
    )  # fmt: skip


EVERY_300 = [0, 300, 600, 900]


@pytest.mark.parametrize(
    "found",
    [
        at([*EVERY_300, 1000], steps=1001, checkpoint_freq=None),
        at([*EVERY_300, 1000], steps=1001, checkpoint_freq=None, done=True),
        at([0, 1, 2], steps=3, checkpoint_freq=1),
        at([0, 2, 4], steps=5, checkpoint_freq=2),
        at([*range(0, 5000, 300), 5000], steps=None, checkpoint_freq=None),
        # Code with a frequency or a length of its own.
        at([0, 200, 400, 500], steps=501, checkpoint_freq=None),
        at([0, 300, 500], steps=None, checkpoint_freq=None, done=True),
        at([0, 7, 9], steps=10, checkpoint_freq=None, dataset="Mine"),
        at([0, 7], steps=None, checkpoint_freq=None, dataset="Mine", done=True),
        # A line that cannot be read, but nothing is missing.
        at([0, 1], steps=2, unreadable=(2,)),
    ],
)
def test_finished(found):
    assert _unfinished_reason(found) is None


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (at(EVERY_300, steps=1001, checkpoint_freq=None), "its last record is of step 900, not 10"),
        (at([0], steps=3, done=True), "its last record is of step 0, not 2"),
        (at([0, 300], steps=None, checkpoint_freq=None), "its last record is of step 300, not 500"),
        (at([0, 3], steps=4, checkpoint_freq=1, done=True), "it lacks the records of steps 1, 2"),
        (at([0, 1, 3, 4], steps=5, checkpoint_freq=2), "it lacks the records of steps 2"),
        (at([0, 1000], steps=1001, checkpoint_freq=None), "lacks the records of steps 300, 600, 9"),
        (at([0, 2], steps=3, done=True, unreadable=(2, 5)), "it lost the records of lines 2, 5"),
        (
            at([0, 7], steps=8, checkpoint_freq=None, dataset="Mine", unreadable=(2,)),
            "it lost the records of lines 2",
        ),
        (at([0], steps=None, dataset="Mine"), "not marked as done and does not say how many steps"),
    ],
)
def test_unfinished(found, reason):
    assert reason in _unfinished_reason(found)


def test_unfinished_runs_are_left_out_with_a_note():
    whole, part = at([0, 1], steps=2), at([0], steps=2)
    kept, notes = finished_runs([whole, part])
    assert kept == [whole]
    (note,) = notes
    assert note.kind == "unfinished run"
    assert note.text == f"{part.path}: its last record is of step 0, not 1."


# --- copies ---------------------------------------------------------------------------------------


def copy(path, levels, **changes):
    return run((0,), [[(level, level)] * 3 for level in levels], path=path, **changes)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [([0.1, 0.2], [0.1, 0.2], "a"), ([0.1, 0.2], [0.1], "a"), ([0.1], [0.1, 0.2], "b")],
)
def test_of_copies_the_longest_is_kept_with_a_note(order, first, second, kept):
    runs = [copy("a", first), copy("b", second)]
    found, notes = _distinct_runs([runs[i] for i in order])
    assert [item.path for item in found] == [kept]
    left = "b" if kept == "a" else "a"
    assert [note.text for note in notes] == [f"{left} repeats {kept}; it is left out."]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"levels": [0.1, 0.3]}, r"differ in the record of step 1: a and b\. Remove one of them"),
        ({"hparams": {"lr": 5}}, r"differ in their hyper-parameters \(lr\): a and b"),
        ({"protocol": PROTOCOL._replace(steps=3)}, r"differ in their protocol \(steps\): a and b"),
    ],
)
def test_contradicting_copies_name_both_files(change, text):
    changes = {"levels": [0.1, 0.2], **change}
    with pytest.raises(
        ValueError, match=r"Expected one run of ERM on PACS .*, got two that " + text
    ):
        _distinct_runs([copy("b", **changes), copy("a", [0.1, 0.2])])


def test_runs_with_other_seeds_are_no_copies():
    runs = [copy("a", [0.1]), copy("b", [0.2], seed=1), copy("c", [0.3], trial=1)]
    assert _distinct_runs(runs) == (runs, [])


# --- protocols ------------------------------------------------------------------------------------


def pair(**change):
    """Two runs of which the second differs, in its protocol or otherwise."""
    first = run((0,), [[(0.5, 0.5)] * 3], path="a")
    second = run((1,), [[(0.5, 0.5)] * 3], path="b")
    protocol = {name: change.pop(name) for name in list(change) if name in PROTOCOL._fields}
    return first, dataclasses.replace(
        second, protocol=second.protocol._replace(**protocol), **change
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"holdout_fraction": 0.1},
            r"\n  holdout_fraction: 0\.2 \(1 run, such as a\), 0\.1 \(1 ru",
        ),
        ({"task": "domain_adaptation"}, r"\n  task: 'domain_generalization' \(1 run, such as a\),"),
        ({"uda_holdout_fraction": 0.5}, r"\n  uda_holdout_fraction: 0 \(1 run, such as a\), 0\.5"),
        ({"steps": 9}, r"\n  PACS: steps: 2 \(1 run, such as a\), 9 \(1 run, such as b\)\nCollect"),
        ({"checkpoint_freq": None}, r"\n  PACS: checkpoint_freq: 1 .*, None \(1 run, such as b\)"),
        ({"hparams": {"lr": 0, "x": 1}}, r"ERM, trial seed 0, .* seed 0: x differ between a and b"),
    ],
)
def test_mixed_protocols_list_the_fields_and_a_run_of_each(change, text):
    with pytest.raises(
        ValueError, match=r"Expected runs of one protocol in one table, got several"
    ):
        check_protocols(pair(**change))
    with pytest.raises(ValueError, match=text):
        check_protocols(pair(**change))


def test_number_of_domains_is_part_of_the_protocol():
    runs = [run((0,), [[(0.5, 0.5)] * n], path=str(n), trial=n) for n in (3, 4, 4)]
    runs[2] = dataclasses.replace(runs[2], key=runs[2].key._replace(test_domains=(1,)))
    text = r"number of domains: 3 \(1 run, such as 3\), 4 \(2 runs, such as 4\)"
    with pytest.raises(ValueError, match=text):
        check_protocols(runs)


def test_data_sets_may_differ_in_length_and_seeds_in_hyper_parameters():
    first, second = pair(steps=9, checkpoint_freq=3)
    check_protocols([first, dataclasses.replace(second, key=second.key._replace(dataset="VLCS"))])
    first, second = pair(hparams={"lr": 7})
    check_protocols([first, dataclasses.replace(second, key=second.key._replace(hparams_seed=1))])
