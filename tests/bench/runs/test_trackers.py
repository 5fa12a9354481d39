"""Runs followed elsewhere, by every launcher; a tracker that fails stops nothing."""

import subprocess
import sys
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest
from tests.colored import colored_job
from tests.sweep_jobs import make_jobs, write_bank
from tests.trackers import Diary, read_diary

from hessalign._errors import InputError, MissingPackageError, UnknownNameError
from hessalign.bench.runs import plan_job, read_records, trackers, train_job
from hessalign.bench.runs.trackers import find_tracker, run_name, tracked_work, tracking
from hessalign.bench.sweep import LocalLauncher, RayLauncher, SerialLauncher, run_jobs

DIARY = "tests.trackers:Diary"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_bank(tmp_path_factory.mktemp("data"))


@pytest.fixture
def job(data):
    return make_jobs(data, 1)[0]


@pytest.fixture(autouse=True)
def _nothing_has_failed(monkeypatch):
    monkeypatch.setattr(trackers, "_failed", set())


def follow(job, folder, *names):
    tracked_work(train_job, names, None, job, folder)
    return read_records(folder / "results.jsonl")


def test_a_tracker_is_told_of_start_records_and_end(job, tmp_path):
    records = follow(job, tmp_path / "run", f"{DIARY}={tmp_path / 'diary'}")
    first, *lines, last = read_diary(tmp_path / "diary")[job.folder]
    assert first[:4] == ["start", job.folder, "ERM", 1e-3]
    assert [line[1] for line in lines] == [record.step for record in records] == list(range(11))
    name = f"env{job.test_domains[0]}_in_acc"
    assert [line[2] for line in lines] == [record.metrics[name] for record in records]
    assert lines[0][3] == ["loss", "risk"]
    assert last == ["finish", "done"]
    # A run that is complete is not followed again.
    follow(job, tmp_path / "run", f"{DIARY}={tmp_path / 'again'}")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt, "interrupted"), (RuntimeError, "failed")]
)
def test_the_end_says_how_it_came(job, tmp_path, error, status):
    plan = plan_job(job)
    record = SimpleNamespace(step=0, terms={}, metrics={"test_accuracy": 0.5})

    def train():
        with tracking([f"{DIARY}={tmp_path}"], plan) as log:
            log(record)
            raise error

    with pytest.raises(error):
        train()
    assert read_diary(tmp_path)[job.folder][-1] == ["finish", status]


@pytest.mark.parametrize("place", ["start", "log", "exit", "finish"])
def test_one_that_fails_is_told_of_once_and_stops_nothing(job, tmp_path, capsys, place):
    name = f"tests.trackers:Fails={place}"
    for run in ("one", "two"):
        names = (name, f"{DIARY}={tmp_path / run / 'diary'}")
        assert len(follow(job, tmp_path / run / "run", *names)) == 11
        assert len(read_diary(tmp_path / run / "diary")[job.folder]) == 13
    error = capsys.readouterr().err
    assert error.count("hessalign: the tracker") == 1
    assert f"'{name}' failed and follows no more runs of this process" in error
    assert f"nobody answers at {place}" in error


def test_one_that_changes_what_it_is_given_changes_nothing(job, tmp_path):
    after = {"bank": [f"{DIARY}={tmp_path / 'diary'}"]}
    for run in (job, colored_job(steps=3)):
        names = ["tests.trackers:Meddler", *after.get(run.dataset, ())]
        kept, expected = follow(run, tmp_path / run.dataset, *names), train_job(run).records
        assert [vars(each) | {"seconds": 0} for each in kept] == [
            vars(each) | {"seconds": 0} for each in expected
        ]
    assert len(read_diary(tmp_path / "diary")[job.folder]) == 13


LAUNCHERS = {
    "serial": SerialLauncher,
    "local": partial(LocalLauncher, 2),
    "ray": partial(RayLauncher, jobs=2),
}


@pytest.mark.parametrize(
    "name", ["serial", *(pytest.param(each, marks=pytest.mark.slow) for each in ("local", "ray"))]
)
def test_runs_of_every_launcher_are_followed(data, tmp_path, name):
    jobs = make_jobs(data, 3)
    work = partial(tracked_work, train_job, (f"{DIARY}={tmp_path / 'diary'}",), data)
    outcomes = run_jobs(tmp_path / "sweep", jobs, LAUNCHERS[name](), work)
    assert [each.state for each in outcomes] == ["done"] * 3
    found = read_diary(tmp_path / "diary")
    assert set(found) == {job.folder for job in jobs}
    for lines in found.values():
        assert [line[0] for line in lines] == ["start", *["log"] * 11, "finish"]


def test_names_are_found_in_the_table_by_entry_point_and_by_module(tmp_path, monkeypatch):
    info = tmp_path / "own-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[hessalign.trackers]\ndiary = {DIARY}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(find_tracker(f"diary={tmp_path}"), Diary)
    with pytest.raises(UnknownNameError, match=r"Unknown tracker 'diari'.* Did you mean 'diary'"):
        find_tracker("diari")
    with pytest.raises(UnknownNameError, match="Did you mean 'mlflow'"):
        find_tracker("mlfow=http://here")
    with pytest.raises(InputError, match="Expected a folder for TensorBoard, as tensorboard=DIR"):
        find_tracker("tensorboard")
    with pytest.raises(InputError, match=r"'tests.trackers:Diary' cannot be made; it raised Type"):
        find_tracker(DIARY)  # it needs to know where


@pytest.mark.parametrize("name", ["mlflow", "wandb", "trackio"])
def test_a_missing_package_says_what_to_install(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match=rf"pip install 'hessalign\[{name}\]'"):
        find_tracker(name)


def test_tensorboard_has_one_curve_for_each_run_also_after_a_restart(job, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    name = f"tensorboard={tmp_path}"
    records = follow(job, tmp_path / "run", name)
    with tracking([name], plan_job(job)) as log:  # it goes on from step 5
        for record in records[5:]:
            log(record)
    curves = EventAccumulator(str(tmp_path / run_name(job))).Reload()
    found = curves.Scalars("metrics/test_accuracy")
    assert [event.step for event in found] == list(range(11))
    assert "terms/loss" in curves.Tags()["scalars"]


class Fake(ModuleType):
    """A module with the interface of wandb, or of trackio, that keeps what it is told."""

    def __init__(self):
        super().__init__("fake")
        self.said = []

    def init(self, **entries):
        self.said.append(("init", entries))
        return self

    def log(self, values, step):
        self.said.append(("log", step, values))

    def finish(self, **entries):
        self.said.append(("finish", entries))


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_wandb_and_trackio_get_the_same(monkeypatch, job, tmp_path, name):
    fake = Fake()
    monkeypatch.setitem(sys.modules, name, fake)
    records = follow(job, tmp_path / "run", f"{name}=project")
    (_, begun), *logged, (_, ended) = fake.said
    assert (begun["project"], begun["name"], begun["resume"]) == ("project", run_name(job), "allow")
    assert begun.get("id") == (job.folder if name == "wandb" else None)
    assert (begun["config"]["algorithm"], begun["config"]["steps"]) == ("ERM", 11)
    assert [step for _, step, _ in logged] == [record.step for record in records]
    assert logged[3][2]["terms/loss"] == records[3].terms["loss"]
    assert ended == ({"exit_code": 0} if name == "wandb" else {})


class FakeMlflow(ModuleType):
    """What the adapter uses of mlflow."""

    def __init__(self):
        super().__init__("mlflow")
        self.runs, self.said = {}, []
        record = lambda *values: values  # noqa: E731
        self.entities = SimpleNamespace(Param=record, Metric=record)
        self.experiment = None

    def MlflowClient(self, tracking_uri):  # noqa: N802
        self.uri = tracking_uri
        return self

    def get_experiment_by_name(self, name):
        return self.experiment

    def create_experiment(self, name):
        self.experiment = SimpleNamespace(experiment_id="7")
        raise RuntimeError(f"{name} exists")  # another process was faster

    def search_runs(self, experiments, text, max_results):
        return [run for job, run in self.runs.items() if f"'{job}'" in text]

    def create_run(self, experiment, tags, run_name):
        made = SimpleNamespace(info=SimpleNamespace(run_id=f"run{len(self.runs)}"))
        self.runs[tags["hessalign.job"]] = made
        return made

    def update_run(self, run, status):
        self.said.append((run, status))

    def log_batch(self, run, metrics=(), params=()):
        self.said += [(run, *entry) for entry in (*metrics, *params)]

    def set_terminated(self, run, status):
        self.said.append((run, status))


def test_mlflow_gets_params_and_metrics_and_goes_on_with_the_same_run(monkeypatch, job, tmp_path):
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    records = follow(job, tmp_path / "run", "mlflow=http://here")
    assert fake.uri == "http://here"
    assert ("run0", "algorithm", "ERM") in fake.said
    losses = [(entry[4], entry[2]) for entry in fake.said if entry[1] == "terms/loss"]
    assert losses == [(record.step, record.terms["loss"]) for record in records]
    assert fake.said[-1] == ("run0", "FINISHED")
    follow(job, tmp_path / "again", "mlflow")
    assert list(fake.runs) == [job.folder]
    assert ("run0", "RUNNING") in fake.said


TRACKIO = """
import sys
from pathlib import Path
from tests.colored import colored_job
from tests.sweep_jobs import make_jobs
from hessalign.bench.runs import train_job
from hessalign.bench.runs.trackers import run_name, tracked_work
from trackio.sqlite_storage import SQLiteStorage
(job,) = make_jobs(Path(sys.argv[1]), 1)
tracked_work(train_job, ("trackio=ours",), None, job, Path(sys.argv[2]))
found = SQLiteStorage.get_logs("ours", run_name(job))
print("FOUND", [entry["step"] for entry in found if "terms/loss" in entry])
"""


@pytest.mark.slow
def test_trackio_itself(data, tmp_path, monkeypatch):
    pytest.importorskip("trackio", reason="pip install 'hessalign[trackio]' runs this test")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    words = [sys.executable, "-c", TRACKIO, str(data), str(tmp_path / "run")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
    assert f"FOUND {[*range(11)]}" in done.stdout, (done.stdout, done.stderr)
