"""`hessalign collect` as a user meets it, and on DomainBed's own runs."""

import json
import re
import shutil

import pytest
from tests.sweep_data import SWEEP, needs_sweep
from tests.sweeps import record, write, write_sweep

from hessalign.bench.sweep.selection import collect
from hessalign.cli import main


@needs_sweep
@pytest.mark.parametrize("options", [[], ["--format", "domainbed"], ["--include-unfinished"]])
def test_domainbeds_own_runs_give_its_own_table_byte_for_byte(options, capsysbinary):
    assert main(["collect", str(SWEEP / "runs"), *options]) == 0
    captured = capsysbinary.readouterr()
    assert captured.out == (SWEEP / "expected.txt").read_bytes()
    assert captured.err == b""


CHOSEN = {
    "training-domain": [
        ((0.976148, 900, 1), (0.983216, 1000, 1)),
        ((0.653647, 900, 1), (0.631059, 600, 1)),
        ((0.734958, 1000, 1), (0.746382, 900, 1)),
        ((0.768604, 300, 0), (0.773417, 300, 0)),
    ],
    "leave-one-out": [
        ((0.954947, 1000, 1), (0.983216, 1000, 1)),
        ((0.657882, 1000, 1), (0.631059, 600, 1)),
        ((0.698401, 900, 1), (0.711729, 900, 0)),
        ((0.768604, 300, 0), (0.765272, 1000, 1)),
    ],
    "oracle": [
        ((0.954947, 1000, 1), (0.983216, 1000, 1)),
        ((0.665882, 1000, 0), (0.651294, 1000, 0)),
        ((0.734958, 1000, 1), (0.698020, 1000, 1)),
        ((0.772677, 1000, 1), (0.765272, 1000, 1)),
    ],
}


@needs_sweep
@pytest.mark.parametrize("name", CHOSEN)
def test_domainbeds_own_runs_give_the_published_choices(name):
    (row,) = collect(SWEEP / "runs", [name]).tables[0].rows
    found = [
        tuple((round(c.test, 6), c.step, c.run.key.hparams_seed) for c in cell.chosen)
        for cell in row.cells
    ]
    assert found == CHOSEN[name]


@needs_sweep
def test_a_damaged_copy_of_domainbeds_runs(tmp_path, capsys):
    folder = tmp_path / "runs"
    shutil.copytree(SWEEP / "runs", folder, copy_function=shutil.copyfile)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    torn = folder / "0657090f9a83ff76efe083a104fde93a" / "results.jsonl"
    torn.write_text(torn.read_text()[:-30])
    assert main(["collect", str(folder), "--selection", "leave-one-out"]) == 0
    captured = capsys.readouterr()
    assert f"note: torn line: {torn}, line 5 was cut off; it is skipped." in captured.err
    assert (
        f"note: unfinished run: {torn}: its last record is of step 900, not 1000." in captured.err
    )
    assert captured.out.startswith("Total records: 195\n")
    reason = "trial 0: hyper-parameter seed 1: no run with test domains {1,2}"
    assert captured.out.endswith(f"-------- Missing\n[1] {reason}\n")


# --- on small sweeps ------------------------------------------------------------------------------


def test_all_methods_are_shown_unless_some_are_named(tmp_path, capsys):
    write_sweep(tmp_path)
    assert main(["collect", str(tmp_path)]) == 0
    assert len(re.findall("(?m)^-------- ", capsys.readouterr().out)) == 6
    assert (
        main(["collect", str(tmp_path), "--selection", "oracle", "--selection", "training-domain"])
        == 0
    )
    titles = re.findall("(?m)^-------- Dataset.*: (.*)$", capsys.readouterr().out)
    assert titles == ["test-domain validation set (oracle)", "training-domain validation set"]


def test_output_goes_to_a_file_on_request(tmp_path, capsys):
    write_sweep(tmp_path / "sweep")
    target = tmp_path / "new" / "table.md"
    arguments = ["collect", str(tmp_path / "sweep"), "--format", "markdown"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "56.5 ± 0.4" in printed
    assert main([*arguments, "--output", str(target)]) == 0
    assert capsys.readouterr().out == ""
    assert target.read_text(encoding="utf-8") == printed


def test_chosen_runs_are_shown_on_request(tmp_path, capsys):
    write_sweep(tmp_path)
    assert main(["collect", str(tmp_path), "--chosen", "--selection", "oracle"]) == 0
    assert capsys.readouterr().out.count(str(tmp_path / "ERM-")) == 6


def test_notes_go_to_stderr_the_first_few_of_each_kind(tmp_path, capsys):
    write_sweep(tmp_path)
    for seed in range(2, 9):
        write(tmp_path / f"part-{seed}", [record(0, [0], seed=seed)], done=False)
    assert main(["collect", str(tmp_path), "--format", "json"]) == 0
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 6
    assert lines[0] == (
        f"note: unfinished run: {tmp_path / 'part-2' / 'results.jsonl'}: its last record is of "
        "step 0, not 1."
    )
    assert lines[-1] == "note: unfinished run: 2 more; --format json lists all."
    assert len(json.loads(captured.out)["notes"]) == 7
    assert main(["collect", str(tmp_path), "--include-unfinished"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--format", "html"], "Unknown format 'html'. Expected one of: 'text', 'domainbed'"),
        (["--format", "latec"], "Did you mean 'latex'"),
        (["--selection", "orcale"], "Unknown selection method 'orcale'.* Did you mean 'oracle'"),
    ],
)
def test_mistakes_are_explained(arguments, text, tmp_path, capsys):
    write_sweep(tmp_path)
    assert main(["collect", str(tmp_path), *arguments]) == 2
    assert re.search(text, capsys.readouterr().err)


def test_a_wrong_folder_is_named(tmp_path, capsys):
    assert main(["collect", str(tmp_path / "missing")]) == 2
    assert "missing', which is none" in capsys.readouterr().err
    assert main(["collect", str(tmp_path)]) == 2
    assert "found none" in capsys.readouterr().err


def test_mixed_protocols_are_refused_unless_allowed(tmp_path, capsys):
    write_sweep(tmp_path)
    records = [record(step, [0], trial=2, args={"steps": 3}) for step in range(3)]
    write(tmp_path / "longer", records)
    assert main(["collect", str(tmp_path)]) == 2
    assert "Debug28: steps: 2 (24 runs" in capsys.readouterr().err
    assert main(["collect", str(tmp_path), "--mix"]) == 0
    assert capsys.readouterr().out.startswith("Total records: 51\n")


# --- what is odd is noted on stderr, and what cannot be used is refused ---------------------------


def table_of(folder, capsys, *options):
    """What DomainBed would print, and the notes."""
    assert main(["collect", str(folder), "--format", "domainbed", *options]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_what_domainbeds_tables_lack_is_noted(tmp_path, capsys):
    write_sweep(tmp_path)
    assert table_of(tmp_path, capsys)[1] == ""
    shutil.rmtree(tmp_path / "ERM-0-1-0_1")
    partial, notes = table_of(tmp_path, capsys, "--selection", "leave-one-out")
    assert "hyper-parameter seed 1: no run with test domains {0,1}" in notes
    assert "note: missing: Debug28, ERM, 0, by leave-one-out: trial 0" in notes
    assert "no run" not in partial


def test_a_run_with_three_test_domains_is_noted(tmp_path, capsys):
    write_sweep(tmp_path)
    before, _ = table_of(tmp_path, capsys)
    path = write(tmp_path / "three", [record(step, [0, 1, 2]) for step in range(2)])
    after, notes = table_of(tmp_path, capsys)
    assert after.splitlines()[1:] == before.splitlines()[1:]
    assert notes == (
        f"note: unread run: {path} has 3 test domains, {{0,1,2}}; model selection reads runs with "
        "one or two.\n"
    )


def test_a_test_domain_that_is_named_twice_is_refused(tmp_path, capsys):
    write_sweep(tmp_path)
    path = write(tmp_path / "twice", [record(step, [1, 1]) for step in range(2)])
    assert main(["collect", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert f"each once, got [1, 1] in {path}" in shown
    assert "Remove the run's folder, or train it again." in shown


@pytest.mark.parametrize("dataset", ["Debug28", "mine"])
@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("cut", [1, 40, -1])
def test_a_torn_line_before_its_complete_record_is_harmless(tmp_path, capsys, dataset, end, cut):
    """A process was killed while it wrote; the next one wrote the record again, behind it."""
    args = {"checkpoint_freq": None} if dataset == "mine" else {}
    for domain in range(3):
        for seed in range(2):
            records = [record(n, [domain], seed=seed, dataset=dataset, args=args) for n in (0, 1)]
            path = write(tmp_path / f"{domain}-{seed}", records)
    options = ["--selection", "oracle"]
    whole, notes = table_of(tmp_path, capsys, *options)
    assert notes == ""
    first, second = path.read_bytes().splitlines()
    path.write_bytes(first + b"\n" + second[:cut] + end + second + b"\n")
    mended, notes = table_of(tmp_path, capsys, *options)
    assert mended == whole
    assert notes.count("note: torn line: ") == notes.count("\n") == 1
    assert f"{path}, line 2" in notes


def nan_in(folder, test, name, steps=(0, 1)):
    """A run with an accuracy that is not a number."""
    records = [
        record(n, test, seed=1, **({name: float("nan")} if n in steps else {})) for n in (0, 1)
    ]
    return write(folder, records)


@pytest.mark.parametrize(
    ("test", "name", "steps"),
    [
        ([0], "env1_in_acc", (0, 1)),
        ([0], "env0_out_acc", (0,)),
        ([0, 1], "env2_in_acc", (0, 1)),
        ([0, 1], "env0_out_acc", (0, 1)),
        ([0, 1, 2], "env0_in_acc", (0, 1)),
    ],
)
def test_accuracies_that_no_selection_reads_may_be_anything(tmp_path, capsys, test, name, steps):
    write_sweep(tmp_path)
    shutil.rmtree(tmp_path / f"ERM-0-1-{'_'.join(map(str, test))}", ignore_errors=True)
    nan_in(tmp_path / "nan", test, name, steps)
    table_of(tmp_path, capsys)


@pytest.mark.parametrize(
    ("test", "name", "steps"),
    [
        ([0], "env0_in_acc", (0,)),
        ([0], "env1_out_acc", (0,)),
        ([0], "env0_out_acc", (1,)),
        ([0, 1], "env1_in_acc", (0,)),
    ],
)
def test_accuracies_that_selection_reads_have_to_be_numbers(tmp_path, capsys, test, name, steps):
    path = nan_in(tmp_path / "nan", test, name, steps)
    assert main(["collect", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert f"Expected {name} from 0 to 1 in {path}, step {steps[0]}, got nan" in shown
    assert "Remove the run's folder, or train it again." in shown
