"""`hessalign report` as a user meets it."""

import os
import signal

import pytest
from tests.commands import begun, wait_for
from tests.sweep_data import SWEEP, needs_sweep
from tests.sweeps import record, write, write_sweep

from hessalign.cli import main


def test_a_summary_without_a_page(tmp_path, capsys):
    write_sweep(tmp_path, algorithms=("ERM", "VREx"))
    assert main(["report", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"48 runs in {tmp_path}: 48 done; 0.00 hours.\n\n| Debug28 |")
    assert "| VREx    | 66.5 ± 0.4 (+0.0 ± 0.0) |" in out


def test_a_page_and_a_table_with_the_best_in_bold(tmp_path, capsys):
    write_sweep(tmp_path / "sweep")
    for trial in range(2):
        for domain in range(3):
            key = {"trial": trial, "algorithm": "IRM", "level": 0.6}
            records = [record(step, (domain,), **key) for step in range(2)]
            write(tmp_path / "sweep" / f"{trial}{domain}", records)
    html, latex = tmp_path / "out" / "page.html", tmp_path / "out" / "table.tex"
    words = ["report", str(tmp_path / "sweep"), "--html", str(html), "--latex", str(latex)]
    assert main(words) == 0
    assert capsys.readouterr().out.endswith(f"Saved in {html}\nSaved in {latex}\n")
    assert html.read_text().startswith("<!doctype html>")
    rows = [line for line in latex.read_text().splitlines() if line.startswith(("ERM", "IRM"))]
    assert rows[0] == (
        r"ERM & 56.5 $\pm$ 0.4 & \textbf{66.5} $\pm$ 0.4 & \textbf{76.5} $\pm$ 0.4 & "
        r"\textbf{66.5} \\"
    )
    assert rows[1] == (
        r"IRM & \textbf{60.0} $\pm$ 0.0\textsuperscript{1} & 60.0 $\pm$ 0.0\textsuperscript{2} & "
        r"60.0 $\pm$ 0.0\textsuperscript{3} & 60.0 \\"
    )


@needs_sweep
def test_domainbeds_own_runs(tmp_path, capsys):
    assert main(["report", str(SWEEP / "runs"), "--html", str(tmp_path / "p.html")]) == 0
    assert "| ERM  |      78.3 ± 0.0 |" in capsys.readouterr().out


def test_what_cannot_be_done_is_told(tmp_path, capsys):
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "Expected the folder of a sweep" in capsys.readouterr().err
    assert main(["report", str(tmp_path), "--watch"]) == 2
    assert "Expected --html FILE with --watch" in capsys.readouterr().err


def test_a_sweep_that_is_complete_is_not_waited_for(tmp_path, capsys):
    write_sweep(tmp_path, trials=1, seeds=1)
    assert main(["report", str(tmp_path), "--watch", "--html", str(tmp_path / "page.html")]) == 0
    assert "refresh" not in (tmp_path / "page.html").read_text().partition("<style>")[0]


SPECIFICATION = "datasets: Debug28\nalgorithms: erm\ntrials: 1\ndraws: 1\nsteps: 2\n"


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_watching_until_ctrl_c(tmp_path):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.yaml").write_text(SPECIFICATION)
    page = tmp_path / "page.html"
    words = ("report", "sweep", "--watch", "--html", "page.html")
    with begun(tmp_path, *words) as process:
        wait_for(process, page.exists)
        assert 'http-equiv="refresh"' in page.read_text()
        os.kill(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "hessalign: interrupted" in error
    assert 'http-equiv="refresh"' not in page.read_text()  # nobody updates it any more
