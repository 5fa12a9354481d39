import torch

from hessalign.bench.models import make_coloured_mlp
from hessalign.bench.runs import ColoredMnistConfig, Record, Run
from hessalign.paper.published import Accuracy
from hessalign.paper.run_table import accuracy_table


def run(algorithm, train, test):
    record = Record(0, 2.0, {}, {"train_accuracy": train, "test_accuracy": test})
    network = make_coloured_mlp(1, 1, 1, torch.Generator())
    return Run(ColoredMnistConfig(algorithm), [record], network)


def test_restarts_are_averaged_and_the_paper_stands_beside():
    runs = [run("hgp", 0.70, 0.60), run("hgp", 0.72, 0.64), run("full", 0.5, 0.5)]
    lines = accuracy_table(runs, {"hgp": Accuracy(71.0, 1.5, 69.4, 1.3)}).splitlines()
    assert lines[0] == (
        "| method       |      train |   OOD test | paper train | paper OOD test | time |"
    )
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == [
        "HGP", "71.0 ± 1.0", "62.0 ± 2.0", "71.0 ± 1.5", "69.4 ± 1.3", "2 s"
    ]  # fmt: skip
    assert [cell.strip() for cell in lines[3].split("|")[1:-1]] == [
        "Full Hessian", "50.0", "50.0", "–", "–", "2 s"
    ]  # fmt: skip
