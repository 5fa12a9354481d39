"""Reading runs: what is kept, and what is said about files that are not as they should be."""

import json

import pytest
from tests.sweeps import record, write

from hessalign.bench.sweep.selection import Note, Record, RunKey, RunProtocol, read_run, read_runs


def test_a_run_keeps_what_selection_needs(tmp_path):
    path = write(
        tmp_path / "a",
        [
            record(1, [2, 0], seed=3, trial=1, env1_in_acc=0.25),
            record(0, [2, 0], seed=3, trial=1, env2_out_acc=1),
        ],
    )
    run, notes = read_run(path.parent)
    assert notes == []
    assert run.path == str(path)
    assert run.key == RunKey("Debug28", "ERM", (0, 2), trial_seed=1, hparams_seed=3)
    assert run.protocol == RunProtocol("domain_generalization", 0.2, 0, 2, 1)
    assert run.hparams == {"lr": pytest.approx(0.3), "batch_size": 8}
    assert run.records == (
        Record(0, (0.5, 0.5, 0.5), (0.5, 0.5, 1)),
        Record(1, (0.5, 0.25, 0.5), (0.5, 0.5, 0.5)),
    )
    assert run.domains == 3
    assert run.done


def test_all_folders_of_the_tree_are_read_in_order(tmp_path):
    for name in ("b/x", "a", "c/d/e"):
        write(tmp_path / name, [record(0, [0])], done=name == "a")
    (tmp_path / "results.txt").write_text("old tables")
    runs, notes = read_runs(tmp_path)
    assert [run.path for run in runs] == [
        str(tmp_path / name / "results.jsonl") for name in ("a", "b/x", "c/d/e")
    ]
    assert [run.done for run in runs] == [True, False, False]
    assert notes == []


def test_job_folders_without_records_are_noted(tmp_path):
    write(tmp_path / "a", [record(0, [0])])
    (tmp_path / "0657090f9a83ff76efe083a104fde93a").mkdir()
    (tmp_path / "figures").mkdir()
    write(tmp_path / "b", [])
    runs, notes = read_runs(tmp_path)
    assert len(runs) == 1
    assert notes == [
        Note(
            "run not started",
            f"{tmp_path / '0657090f9a83ff76efe083a104fde93a'} has no results.jsonl.",
        ),
        Note("empty run", f"{tmp_path / 'b' / 'results.jsonl'} has no records."),
    ]


# --- damaged files --------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 20, -1])
def test_a_torn_last_line_is_skipped_with_a_note(tmp_path, cut):
    path = write(tmp_path, [record(0, [0])])
    path.write_text(path.read_text() + json.dumps(record(1, [0]))[:cut])
    run, notes = read_run(path.parent)
    assert [found.step for found in run.records] == [0]
    assert run.unreadable == ()
    assert notes == [Note("torn line", f"{path}, line 2 was cut off; it is skipped.")]


def test_a_last_line_that_only_lacks_its_end_is_kept(tmp_path):
    path = write(tmp_path, [record(0, [0]), record(1, [0])])
    path.write_text(path.read_text().rstrip("\n"))
    run, notes = read_run(path.parent)
    assert [found.step for found in run.records] == [0, 1]
    assert notes == []


@pytest.mark.parametrize(
    "damage", [b'{"step": 3, "args": {"al\n', b"\0\0\0\0\n", b"\xff\xfe\n", b"[1, 2]\n", b"17\n"]
)
def test_an_unreadable_line_in_the_middle_is_remembered(tmp_path, damage):
    path = write(tmp_path, [record(0, [0]), record(1, [0])])
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + b"\n" + damage + second)
    run, notes = read_run(path.parent)
    assert [found.step for found in run.records] == [0, 1]
    assert run.unreadable == (3,)
    assert notes == [Note("unreadable line", f"{path}, line 3 is not a record.")]


def test_a_torn_only_line_leaves_no_run(tmp_path):
    path = write(tmp_path, [])
    path.write_text('{"args"')
    run, notes = read_run(path.parent)
    assert run is None
    assert [note.kind for note in notes] == ["torn line", "empty run"]


def test_a_repeated_record_is_dropped_with_a_note(tmp_path):
    path = write(tmp_path, [record(0, [0]), record(1, [0]), record(0, [0], step_time=9.0)])
    run, notes = read_run(path.parent)
    assert [found.step for found in run.records] == [0, 1]
    assert notes == [Note("repeated record", f"{path}, line 3 repeats step 0 of line 1.")]


def test_contradicting_records_name_both_lines(tmp_path):
    path = write(tmp_path, [record(0, [0]), record(0, [0], env1_in_acc=0.75)])
    text = (
        r"Expected one record per step, got two different ones of step 0: .*results.jsonl, line 1 "
        r"and .*results.jsonl, line 2\. Remove the lines of the attempt"
    )
    with pytest.raises(ValueError, match=text):
        read_run(path.parent)


def test_training_domains_need_no_accuracy_on_their_larger_part(tmp_path):
    found = record(0, [1])
    del found["env0_in_acc"], found["env2_in_acc"]
    run, notes = read_run(write(tmp_path, [found]).parent)
    assert not notes
    assert run.records[0].inner == (None, found["env1_in_acc"], None)
    assert run.records[0].test(1) == found["env1_in_acc"]
    with pytest.raises(ValueError, match="Expected env0_in_acc at step 0, found none"):
        run.records[0].test(0)


# --- records that make no sense -------------------------------------------------------------------


def without(found, name):
    return {key: value for key, value in found.items() if key != name}


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (record(1, [1]), r"Expected the records of one run per file, .*test domains \{1\}, trial"),
        (record(1, [0], args={"steps": 9}), "Expected the records of one run per file"),
        (record(1, [0], hparams={}), r"Expected the same hyper-parameters .* in .*, line 2\."),
        (record(-1, [0]), r"Expected a step of 0 or more in .*, line 2, got -1\."),
        (record("1", [0]), "Expected a step of 0 or more in .*, got '1'"),
        (record(1, [0], env1_in_acc=1.5), r"Expected env1_in_acc from 0 to 1 .* line 2, got 1\.5"),
        (record(1, [0], env1_out_acc=float("nan")), "Expected env1_out_acc from 0 to 1 .* got nan"),
        (
            record(1, [0], args={"test_envs": [0, 0]}),
            r"test domains, each once, got \[0, 0\] .*Rem",
        ),
        (record(1, [0], args={"test_envs": ["a"]}), r"test domains, each once, got \['a'\]"),
        (record(1, [0], args={"steps": [2]}), r"as DomainBed records them, got steps=\[2\]"),
        (record(1, [0], env1_out_acc=None), "Expected env1_out_acc from 0 to 1 .* got None"),
        (without(record(1, [0]), "env2_out_acc"), r"one for each domain, .* line 2, got 2\."),
        (without(record(1, [0]), "env0_in_acc"), r"Expected env0_in_acc, .* step 1 has none\."),
        (record(1, [0], domains=0), r"Expected env0_out_acc, env1_out_acc .* line 2, got 0\."),
        (record(1, [0], domains=2), r"Expected the same domains in all records .* got \[2, 3\]"),
        (without(record(1, [0]), "args"), "Expected a record with the arguments of its run as"),
        (record(1, [0], args={"trial_seed": None}), "Expected the arguments .* trial_seed=None in"),
    ],
)
def test_records_that_make_no_sense_are_refused(tmp_path, second, text):
    path = write(tmp_path, [record(0, [0]), second])
    with pytest.raises(ValueError, match=text):
        read_run(path.parent)


@pytest.mark.parametrize("domains", [[], [3], [-1], [0, 3]])
def test_test_domains_must_exist(tmp_path, domains):
    path = write(tmp_path, [record(0, domains)])
    with pytest.raises(ValueError, match=r"Expected test domains from 0 to 2 in .*, got \["):
        read_run(path.parent)


def test_other_arguments_may_change_within_a_run(tmp_path):
    path = write(tmp_path, [record(0, [0]), record(1, [0], args={"output_dir": "moved"})])
    assert len(read_run(path.parent)[0].records) == 2


def test_a_folder_without_runs_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"Expected folders with records in results\.jsonl below"):
        read_runs(tmp_path)
    with pytest.raises(ValueError, match=r"Expected the folder of a sweep, got '.*missing', which"):
        read_runs(tmp_path / "missing")
