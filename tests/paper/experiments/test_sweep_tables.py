"""Tables 4, 6, 7 and 8 on tiny feature banks: what is run, read, compared and written."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_rel
from tests.sweeps import run

from hessalign.bench.runs.job import Job
from hessalign.bench.sweep import SweepSpec, make_specification, progress, sweep_jobs
from hessalign.bench.sweep.selection.tables import paired_difference
from hessalign.cli import main
from hessalign.paper.catalogue import EXPERIMENTS
from hessalign.paper.domainbed import (
    _accuracy_table,
    _dataset_rows,
    _gain_table,
    _make_rows,
    _who_wins,
)
from hessalign.paper.experiment import Options
from hessalign.paper.published import (
    AVERAGE,
    DATASETS,
    TABLE_4,
    TABLE_7,
    TABLE_8,
)
from hessalign.paper.sweeps import Sweep, _find_banks, departures, find_scale

DOMAINS = ["art_painting", "photo", "sketch"]
TINY = ["draws=2", "trials=2", "steps=3"]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A bank of three domains."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.RandomState(0)
    y = rng.randint(3, size=150)
    x = rng.randn(150, 6).astype(np.float32) + np.eye(6, dtype=np.float32)[y]
    domain = np.repeat(np.arange(3), 50)
    np.savez(folder / "PACS@tiny.npz", x=x, y=y, domain=domain, domains=DOMAINS)
    return folder


def command(data_dir, where, name, *more, head="linear", entries=("algorithms=[erm,hgp]", *TINY)):
    return [
        "reproduce", name, "--scale", "small", "--data-dir", str(data_dir), "--launcher", "serial",
        "--sweep", str(where / head),
        "--output", str(where / "results"), *more, *entries,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def swept(data_dir, tmp_path_factory):
    """Table 4, whose runs serve the other two as well."""
    where = tmp_path_factory.mktemp("swept")
    assert main(command(data_dir, where, "table4")) == 0
    return where


def content(where, name):
    return json.loads((where / "results" / name / f"{name}.json").read_text())


def records_by_run(folder):
    """Records by data set, algorithm, test domains, trial and draw, read without the package."""
    found = {}
    for path in folder.glob("*/results.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        a = records[0]["args"]
        tests = tuple(a["test_envs"])
        found[a["dataset"], a["algorithm"], tests, a["trial_seed"], a["hparams_seed"]] = records
    return found


def test_published_averages_are_those_of_their_rows():
    for table, methods in ((TABLE_4, 17), (TABLE_7, 20), (TABLE_8, 20)):
        assert len(table) == methods
        for row in table.values():
            if AVERAGE in row:
                assert np.mean([row[name] for name in DATASETS]) == pytest.approx(
                    row[AVERAGE], abs=0.0501
                )
    assert DATASETS[-1] not in TABLE_4["fishr"]


def test_leave_one_out_table(swept, capsys):
    (section,) = content(swept, "table4")["heads"].values()
    runs = records_by_run(swept / "linear")
    assert len(runs) == 2 * 6 * 2 * 2  # algorithms, sets, draws, trials
    spec = make_specification(read_yaml(swept / "linear" / "sweep.yaml"))
    assert spec.selections == ("leave-one-out",)
    rows = {row["algorithm"]: row for row in section["PACS@tiny"]}
    assert list(rows) == ["erm", "hgp"]
    for trial in (0, 1):
        for t, domain in enumerate(DOMAINS):
            best = (-1.0,)
            for draw in (0, 1):
                for step in range(3):
                    left_out = []
                    for v in {0, 1, 2} - {t}:
                        pair = runs["PACS@tiny", "HGP", tuple(sorted((t, v))), trial, draw]
                        left_out.append(pair[step][f"env{v}_in_acc"])
                    record = runs["PACS@tiny", "HGP", (t,), trial, draw][step]
                    # Of equals the later draw, and in it the earlier step.
                    best = max(best, (np.mean(left_out), draw, -step, record[f"env{t}_in_acc"]))
            expected = pytest.approx(100 * best[-1])
            assert rows["hgp"]["accuracy"][domain][str(trial)] == expected
    page = (swept / "results" / "table4" / "table4.md").read_text()
    assert "**Not the published protocol:** frozen features of tiny" in page
    assert "2 draws instead of 20; 2 trials instead of 3; 3 steps instead of 5,001" in page
    assert "not comparable" in page
    assert (swept / "results" / "table4" / "table4.svg").exists()


def read_yaml(path):
    import yaml

    return yaml.safe_load(path.read_text())


def test_other_selections_report_on_the_same_runs(swept, data_dir, monkeypatch, capsys):
    def refuse(*_, **__):
        raise AssertionError("ran again")

    monkeypatch.setattr(progress, "run_jobs", refuse)
    assert main(command(data_dir, swept, "table8")) == 0  # all are done
    runs = records_by_run(swept / "linear")
    section = content(swept, "table8")["heads"]["linear head"]["PACS@tiny"]
    (erm,) = [row for row in section if row["algorithm"] == "erm"]
    last = [runs["PACS@tiny", "ERM", (2,), 1, draw][-1] for draw in (1, 0)]
    chosen = max(last, key=lambda record: record["env2_out_acc"])
    assert erm["accuracy"][DOMAINS[2]]["1"] == pytest.approx(100 * chosen["env2_in_acc"])
    capsys.readouterr()
    # More draws than there are: what is missing is said, and takes no part.
    entries = ("algorithms=[erm,hgp]", *TINY[1:], "draws=3")
    assert main(command(data_dir, swept, "table7", "--finished", entries=entries)) == 0
    out = capsys.readouterr().out
    assert (
        out.count("Not all runs are finished (*, not compared): ERM 12 of 18, HGP 12 of 18.") == 1
    )
    assert "| ERM *" in out
    assert "is best on average" not in out
    assert "--finished" in content(swept, "table7")["command"]
    assert main(command(data_dir, swept, "table7", entries=entries)) == 1
    assert "ran again" in capsys.readouterr().err


def test_a_sweep_that_is_there_keeps_its_specification(swept, data_dir, tmp_path):
    before = (swept / "linear" / "sweep.yaml").read_bytes()
    runs = len(records_by_run(swept / "linear"))
    more = command(data_dir, swept, "table7", "--output", str(tmp_path),
                   entries=("algorithms=[vrex]", *TINY))  # fmt: skip
    assert main(more) == 0
    assert len(records_by_run(swept / "linear")) > runs
    assert (swept / "linear" / "sweep.yaml").read_bytes() == before


def test_average_over_data_sets():
    """Each data set counts once, in each trial; a method that lacks one has no average."""
    level = {("VLCS", "ERM"): 0.5, ("PACS", "ERM"): 0.7, ("VLCS", "HGP"): 0.6, ("PACS", "HGP"): 0.8}
    runs = [
        run((t,), [((x := value + 0.01 * trial + 0.1 * t, x),) * 3], trial=trial, dataset=dataset,
            algorithm=algorithm)
        for (dataset, algorithm), value in level.items()
        for trial in (0, 1)
        for t in range(3)
    ]  # fmt: skip
    runs += [run((t,), [((0.9, 0.9),) * 3], algorithm="Fishr") for t in range(3)]
    head = find_scale("full").heads[0]
    spec = SweepSpec(("VLCS", "PACS"), ("erm", "hgp", "fishr"), overrides=head.overrides)
    sweep = Sweep(head, "", spec, Path("x"), runs=runs)
    sections = _dataset_rows(sweep, "training-domain", TABLE_7)
    assert list(sections) == ["VLCS", "PACS", "All data sets"]
    rows = {row["algorithm"]: row for row in sections["All data sets"]}
    assert rows["erm"]["values"] == pytest.approx([70.0, 71.0])
    assert rows["hgp"]["published"] == 67.9
    assert rows["hgp"]["against_erm"]["PACS"].mean == pytest.approx(10.0)
    assert rows["fishr"]["mean"] is None
    assert rows["erm"]["verdict"].startswith("not reproduced (4.1 std)")


def test_jobs_are_those_of_any_sweep_with_the_protocol():
    options = Options(
        scale="small", data_dir="outputs/features", entries={"datasets": "PACS@efficientnet_lite0"}
    )
    linear, hidden = EXPERIMENTS["table4"].sweeps(options)
    assert linear.folder == Path("outputs/sweeps/small-linear")
    expected = Job(
        "PACS@efficientnet_lite0", "Hutchinson", (0, 3), 7, 2, "outputs/features", steps=301,
        hparams='{"hidden": 128}',
    )  # fmt: skip
    jobs = sweep_jobs(hidden.spec, without_data=True)
    assert len(jobs) == 12 * 10 * 8 * 3
    assert expected.folder in {job.folder for job in jobs}


def test_the_full_scale_is_the_published_protocol():
    (part,) = EXPERIMENTS["table4"].sweeps(Options())
    assert departures(part.spec) == []
    jobs = sweep_jobs(part.spec, without_data=True)
    assert len(jobs) == len(TABLE_4) * (3 * 600 + 1260)
    assert {job.hparams for job in jobs} == {
        '{"augment_validation": true, "fidelity": "domainbed"}'
    }
    (part,) = EXPERIMENTS["table7"].sweeps(Options(backbone="resnet18"))
    assert departures(part.spec) == ["resnet18 instead of resnet50"]
    assert json.loads(part.spec.hparams)["backbone"] == "resnet18"
    assert len(part.spec.algorithms) == 20


def test_folders_are_known_by_their_runs(tmp_path):
    entries = {"datasets": "PACS@x", "algorithms": "erm"}
    make = EXPERIMENTS["table7"].sweeps
    hidden = make(Options(scale="small", data_dir="d", entries=entries))[1]
    job = sweep_jobs(hidden.spec, without_data=True)[5]
    (tmp_path / "b" / job.folder).mkdir(parents=True)

    def heads(*names):
        folders = tuple(tmp_path / name for name in names)
        return [
            (part.head.name, part.folder.name)
            for part in make(Options(scale="small", data_dir="d", sweeps=folders, entries=entries))
        ]

    assert heads("b") == [("hidden", "b")]
    assert heads("b", "a") == [("linear", "a"), ("hidden", "b")]
    assert heads("a") == [("linear", "a")]
    assert heads("mine-hidden") == [("hidden", "mine-hidden")]
    with pytest.raises(ValueError, match=r"Expected a folder for each of: linear head, hidden"):
        heads("a", "b", "c")
    (tmp_path / "c" / job.folder).mkdir(parents=True)
    with pytest.raises(ValueError, match=r"Expected one sweep with a hidden layer of 128, got .*b"):
        heads("b", "c")


def test_paired_differences_agree_with_students_test():
    rng = np.random.RandomState(0)
    outcomes = set()
    for shift in (0.0, 0.5, 2.0, 8.0):
        first, second = rng.randn(4) + shift, rng.randn(4)
        found = paired_difference(dict(enumerate(first)), dict(enumerate(second)))
        test = ttest_rel(first, second)
        assert found.mean / found.error == pytest.approx(test.statistic)
        assert found.clear == (test.pvalue < 0.05)
        outcomes.add(found.clear)
    assert outcomes == {True, False}
    assert paired_difference({0: 1.0}, {1: 2.0}) is None
    assert str(paired_difference({0: 1.0, 5: 9.0}, {0: 2.0})) == "-1.0"


ACCURACIES = {
    "hgp": {"A": {0: 72.0, 1: 73.0, 2: 74.0}, "B": {0: 81.0, 1: 82.0, 2: 83.0}},
    "erm": {"A": {0: 70.0, 1: 71.1, 2: 71.9}, "B": {0: 82.4, 1: 82.4, 2: 82.4}},
    "fish": {"A": {0: 60.0, 1: 60.0, 2: 60.0}, "B": {}},
}


def test_rows_verdicts_and_winner():
    published = {"erm": 76.7, "hgp": 90.0}
    rows = _make_rows(ACCURACIES, published, comparable=True)
    assert [row["algorithm"] for row in rows] == ["erm", "hgp", "fish"]
    erm, hgp, fish = rows
    assert erm["verdict"] == "reproduced"
    assert hgp["values"] == [76.5, 77.5, 78.5]
    spread = np.std([76.5, 77.5, 78.5])
    assert hgp["verdict"] == f"not reproduced ({12.5 / np.hypot(spread, spread):.1f} std)"
    assert fish["mean"] is None
    assert hgp["against_erm"]["A"].mean == pytest.approx(2.0)
    text = _who_wins(rows)
    assert "**HGP is best on average**: 77.5 ± 0.8, +0.8 ± 0.3 against ERM" in text
    assert "Best by column: A HGP (+2.0 ± 0.1); B ERM" in text
    assert "no method differs from ERM by more than 4.3 standard errors" in text
    again = _make_rows(ACCURACIES, published, comparable=False, incomplete=["hgp"])
    assert {row["verdict"] for row in again} == {"not comparable", None}
    assert _who_wins(again) == ""
    assert "| HGP * " in _accuracy_table(again)


def test_table6(swept, data_dir, capsys):
    entries = ("algorithms=[erm,full,hutchinson]", "draws=2", "trials=2", "steps=3")
    assert main(command(data_dir, swept, "table6", head="mine-hidden", entries=entries)) == 0
    cells = content(swept, "table6")["heads"]["hidden layer of 128"]
    alphas = []
    for weights, setting, overrides in (
        ("published", "published-hessian", {"alpha": 1e-5, "beta": 0.0}),
        ("searched", "searched-hessian", {"beta": 0.0}),
        ("searched", "searched-gradient", {"alpha": 0.0}),
    ):
        folder = swept / f"mine-hidden-{setting}"
        assert read_yaml(folder / "sweep.yaml")["overrides"] == {"hidden": 128, **overrides}
        terms = setting.partition("-")[2]
        runs = records_by_run(folder)
        draws = (0,) if weights == "published" else (0, 1)
        assert {key[2] for key in runs} == {(2,)}
        assert {key[-1] for key in runs} == set(draws)
        for trial in (0, 1):
            best = max(
                (np.mean([record[f"env{i}_out_acc"] for i in range(2)]), draw, -step,
                 record["env2_in_acc"])
                for draw in draws
                for step, record in enumerate(runs["PACS@tiny", "Hutchinson", (2,), trial, draw])
            )  # fmt: skip
            assert cells[weights][terms]["hutchinson"][str(trial)] == pytest.approx(100 * best[-1])
            if setting == "searched-hessian":
                chosen = runs["PACS@tiny", "Hutchinson", (2,), trial, best[1]][0]["hparams"]
                alphas.append(f"α {chosen['penalty_alpha']:.1g}")
    assert set(cells["searched"]["gradient"]) == {"hutchinson"}
    assert {"full", "hutchinson"} <= set(cells["published"]["hessian"])
    page = (swept / "results" / "table6" / "table6.md").read_text()
    assert re.search(r"Hessian and gradient \|.*\| +81\.4 \| not comparable", page)
    assert "1 draws" not in page
    assert "chosen by training domains (2 draws)" in page
    assert f"Hutchinson, Hessian only: {'; '.join(alphas)}." in page


def test_gains_are_paired():
    cells = {
        "both": {"hutchinson": {0: 70.0, 1: 74.0}},
        "gradient": {"hutchinson": {0: 69.0, 1: 71.0}},
        "hessian": {"hutchinson": {0: 70.5, 1: 74.5}},
        "neither": {"erm": {0: 70.0, 1: 70.0}},
    }
    lines = [
        [word.strip() for word in line.split("|")[1:-1]] for line in _gain_table(cells).split("\n")
    ]
    assert [line[1:] for line in lines[2:]] == [
        ["+2.0 ± 1.0", "+4.4"],
        ["-0.5 ± 0.0", "+2.0"],
        ["+2.5 ± 1.0", "+2.4"],
        ["+2.0 ± 2.0", "–"],
    ]


def test_departures_and_banks(tmp_path):
    as_published = {"augment_validation": True}
    spec = SweepSpec(("PACS",), ("erm",), preset="hgp-2023", overrides=as_published)
    assert departures(spec) == ["preset hgp-2023"]
    spec = SweepSpec(("PACS",), ("erm",), overrides={"lr": 0.1, "alpha": 1.0, **as_published})
    assert departures(spec) == ["lr = 0.1"]
    spec = SweepSpec(("PACS",), ("erm",), draws=1, overrides=as_published)
    assert departures(spec, draws=1) == []
    assert departures(SweepSpec(("PACS",), ("erm", "irm", "coral", "fishr"))) == [
        "by their papers where DomainBed's code deviates: IRM, CORAL",
        "validated on images as they are, not augmented ones",
    ]
    for name in ("PACS@a.npz", "VLCS@a.safetensors", "PACS@b.npz", "mine@a.npz", "PACS@c.txt"):
        (tmp_path / name).touch()
    assert _find_banks(str(tmp_path), "a") == ("VLCS@a", "PACS@a")
    assert _find_banks(str(tmp_path), "a", ["PACS"]) == ("PACS@a",)
    with pytest.raises(ValueError, match=r"one backbone, found in .* those of a, b\. Choose one"):
        _find_banks(str(tmp_path), None)
    with pytest.raises(ValueError, match=r"named DATASET@z.safetensors in .*; found PACS@a, PACS"):
        _find_banks(str(tmp_path), "z")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["table2", "--scale", "small"], r"Expected --scale only with: table4, table6"),
        (["table7", "--restarts", "3"], r"Expected --restarts only with: .*table2"),
        (["table7", "--scale", "smal"], r"Unknown scale 'smal'.*Did you mean 'small'"),
        (["table7", "drws=3"], r"Unknown key of a sweep 'drws'.*Did you mean 'draws'"),
        (["table77"], r"Unknown experiment 'table77'.*Did you mean 'table7'"),
        (["table7", "--scale", "small"], r"Expected feature banks named .* found none"),
        (["table7", "--finished"], r"Expected finished runs of table7 in outputs/sweeps/full"),
        (["table8", "--address", "x:1"], r"Expected --address only with --launcher ray"),
    ],
)
def test_mistakes_are_named(words, text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *words]) == 2
    assert re.search(text, capsys.readouterr().err, re.DOTALL)
    assert not list(tmp_path.iterdir())
