"""Runs on Colored MNIST of version 0.1, which had a form of their own."""

import json

import pytest
import torch

from hessalign.bench.runs import load_run, train_job
from hessalign.bench.runs.convert import _old_job, convert_run
from hessalign.bench.runs.irm import irm_job
from hessalign.cli import main
from hessalign.paper.experiment import Method, Options, cached_runs

OLD = {
    "algorithm": "hgp", "options": {"beta": 0.0}, "seed": 2, "imbalance": "paper",
    "train_images": 200, "test_images": 90, "steps": 4, "jump": 2,
    "penalty_weight": 91257.18613115903, "learning_rate": 0.0004898536566546834,
    "l2": 0.00110794568, "width": 8, "evaluate_every": 10, "hessian_distance": True,
}  # fmt: skip
SOFTWARE = {"hessalign": "0.1.0", "torch": "2.0"}


def write_old(folder, run=None, done=True, **changes):
    """A folder as version 0.1 wrote it, of a run that was trained just now."""
    config = {**OLD, **changes}
    run = run or train_job(_old_job(config))
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    lines = [
        json.dumps(
            {
                "step": each.step,
                "seconds": each.seconds,
                "terms": dict(each.terms),
                "metrics": {k: v for k, v in each.metrics.items() if not k.startswith("env")},
                "config": config,
                "algorithm": {},
                "software": SOFTWARE,
            }
        )
        for each in run.records
    ]
    (folder / "records.jsonl").write_text("".join(f"{line}\n" for line in lines))
    torch.save(run.algorithm.state_dict(), folder / "model.pt")
    if done:
        (folder / "done.json").write_text(lines[-1])
    return run


def test_a_configuration_becomes_the_job_of_a_row():
    job = _old_job(OLD)
    options = Options(entries={"train_images": 200, "test_images": 90, "steps": 4, "jump": 2,
                               "width": 8}, restarts=1, seed=2)  # fmt: skip
    assert Method("HGP", "hgp", {"beta": 0.0}).jobs(options, "paper") == [job]
    published = {"train_images": 50_000, "test_images": 10_000, "steps": 501, "jump": 190}
    job = _old_job({**OLD, **published, "width": 390, "hessian_distance": False})
    assert job == irm_job("hgp", 2, {"beta": 0, "imbalance": "paper"})
    assert (job.algorithm, job.steps) == ("HGP", None)
    assert json.loads(job.hparams) == {"beta": 0.0, "imbalance": "paper"}


def test_a_converted_run_is_the_same_run(tmp_path):
    run = write_old(tmp_path / "old")
    before = {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()}
    folder = convert_run(tmp_path / "old", tmp_path / "new")
    assert folder == tmp_path / "new" / run.plan.job.folder
    assert {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()} == before
    (found,) = cached_runs(tmp_path / "new", [run.plan.job])
    for again in (found.load(), load_run(folder)):
        for name, value in run.algorithm.state_dict().items():
            assert torch.equal(again.algorithm.state_dict()[name], value)
        for ours, theirs in zip(again.records, run.records, strict=True):
            assert (ours.step, ours.seconds, ours.terms) == (
                theirs.step, theirs.seconds, theirs.terms,
            )  # fmt: skip
            assert ours.metrics.items() <= theirs.metrics.items()
            assert ours.metrics["test_accuracy"] == theirs.metrics["test_accuracy"]
    line = json.loads((folder / "done").read_text())
    assert line["software"] == SOFTWARE
    assert line["args"]["test_envs"] == [2]
    assert convert_run(tmp_path / "old", tmp_path / "new") == folder  # nothing is repeated
    assert len((folder / "results.jsonl").read_text().splitlines()) == len(run.records)


def test_an_interrupted_conversion_is_made_whole(tmp_path):
    run = write_old(tmp_path / "old")
    folder = convert_run(tmp_path / "old", tmp_path / "new")
    lines = (folder / "results.jsonl").read_text().splitlines()
    (folder / "done").unlink()
    (folder / "results.jsonl").write_text(lines[0] + "\n")
    assert convert_run(tmp_path / "old", tmp_path / "new") == folder
    assert (folder / "results.jsonl").read_text().splitlines() == lines
    assert len(lines) == len(run.records)


def test_the_verb_converts_what_is_complete_and_says_what_is_not(tmp_path, capsys):
    run = write_old(tmp_path / "runs" / "hgp-seed2")
    write_old(tmp_path / "runs" / "hgp-seed3", run, done=False, seed=3)
    damaged = tmp_path / "runs" / "hgp-seed4"
    write_old(damaged, run, seed=4)
    (damaged / "model.pt").write_bytes(b"?")
    train_job(irm_job("erm", 0, {"train_images": 200, "width": 2, "steps": 1}),
              tmp_path / "runs" / "today")  # fmt: skip
    new = tmp_path / "new"
    assert main(["convert", str(tmp_path / "runs"), "--output", str(new)]) == 1
    out, err = capsys.readouterr()
    assert "1 of 3 runs are in" in out
    assert "hgp-seed3, found one that is not complete" in err
    assert "Expected the model of the run in" in err
    assert [path.parent.name for path in new.glob("*/done")] == [run.plan.job.folder]
    assert main(["convert", str(tmp_path / "runs" / "hgp-seed2"), "--output", str(new)]) == 0
    assert main(["convert", str(tmp_path / "runs" / "today"), "--output", str(new)]) == 2
    assert "Expected runs on Colored MNIST of version 0.1 in" in capsys.readouterr().err


def test_collect_says_what_converted_runs_lack(tmp_path, capsys):
    write_old(tmp_path / "old")
    folder = convert_run(tmp_path / "old", tmp_path / "new")
    assert main(["collect", str(tmp_path / "new")]) == 2
    assert "runs of version 0.1 on Colored MNIST did not measure them" in capsys.readouterr().err
    job = irm_job("erm", 0, {"train_images": 200, "test_images": 90, "width": 2, "steps": 1})
    train_job(job, tmp_path / "new" / job.folder)
    assert main(["collect", str(tmp_path / "new")]) == 0
    out, err = capsys.readouterr()
    assert f"note: unread run: {folder}/results.jsonl does not have the accuracies" in err
    assert "ERM" in out


def test_records_that_are_none_are_named(tmp_path):
    write_old(tmp_path / "old")
    (tmp_path / "old" / "records.jsonl").write_text("{}\n")
    with pytest.raises(RuntimeError, match=r"Expected the records of the run in .*records.jsonl"):
        convert_run(tmp_path / "old", tmp_path / "new")
