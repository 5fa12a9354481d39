"""The command line as a user meets it."""

import json
import re
import sys

import pytest

from hessalign.algorithms import ALGORITHMS
from hessalign.cli import main
from hessalign.cli.train import parse_options

TINY = ["--train-images", "200", "--test-images", "60", "--steps", "4", "--jump", "2"]


def test_train_prints_accuracies_beside_the_papers_and_writes_records(tmp_path, capsys):
    folder = tmp_path / "runs"
    code = main(
        ["train", "--algorithm", "hgp", *TINY, "--restarts", "2", "--output", str(folder),
         "--hessian-distance", "alpha=0.5"]
    )  # fmt: skip
    captured = capsys.readouterr()
    assert code == 0
    assert "71.0 ± 1.5" in captured.out
    assert "69.4 ± 1.3" in captured.out
    assert "hgp #0" in captured.err
    assert "hgp #1" in captured.err
    names = sorted(path.name for path in folder.iterdir())
    assert names == [
        "hgp-seed0.config.json", "hgp-seed0.jsonl", "hgp-seed1.config.json", "hgp-seed1.jsonl"
    ]  # fmt: skip
    config = json.loads((folder / "hgp-seed1.config.json").read_text())
    assert (config["seed"], config["steps"], config["options"]) == (1, 4, {"alpha": 0.5})
    records = [json.loads(line) for line in (folder / "hgp-seed0.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 3]
    assert records[-1]["hessian_distance"] > 0


def test_imbalanced_runs_are_compared_with_table_3(capsys):
    assert main(["train", "--algorithm", "erm", "--imbalance", "paper", *TINY]) == 0
    assert "16.7 ± 0.1" in capsys.readouterr().out


def test_demo_draws_a_figure_and_prints_a_table(tmp_path, capsys):
    from matplotlib import image

    arguments = ["demo", "--train-images", "200", "--steps", "4", "--output", str(tmp_path / "d")]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    for word in ("Colored MNIST", "ERM", "HGP", "Hutchinson", "Full Hessian", "74.0 ± 1.2"):
        assert word in out
    pixels = image.imread(tmp_path / "d" / "colored_mnist.png")
    assert pixels.shape[0] > 400
    assert pixels[..., :3].std() > 0.05
    assert (tmp_path / "d" / "colored_mnist.md").read_text().count("\n") == 6


def test_algorithms_lists_every_row(capsys):
    assert main(["algorithms"]) == 0
    out = capsys.readouterr().out
    assert [line.split("|")[1].strip() for line in out.splitlines()[2:]] == list(ALGORITHMS)


def test_algorithms_can_be_picked_by_pattern(capsys):
    assert main(["algorithms", "h*", "*mask"]) == 0
    out = capsys.readouterr().out
    names = [line.split("|")[1].strip() for line in out.splitlines()[2:]]
    assert names == ["hgp", "hutchinson", "andmask", "sandmask"]


def test_a_pattern_without_match_suggests_a_name(capsys):
    assert main(["algorithms", "corral"]) == 2
    assert "Did you mean 'coral'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--dataset", "colored-mnist"], "Unknown data set .* Did you mean 'colored_mnist'"),
        (["--algorithm", "huchinson"], "Unknown algorithm .* Did you mean 'hutchinson'"),
        (["--restarts", "0"], "Expected --restarts of 1 or more, got 0"),
        (["--train-images", "1"], "Expected train_images from 4 to 50,000, got 1"),
        (["probes"], "Expected KEY=VALUE, got 'probes'"),
        (["probes=1", "probes=2"], "Expected each option once, got 'probes' twice"),
        (["probes=many"], "Expected probes as a whole number of 1 or more, got 'many'"),
    ],
)
def test_mistakes_are_explained(arguments, text, capsys):
    assert main(["train", *TINY, *arguments]) == 2
    assert re.search(text, capsys.readouterr().err)


def test_an_unwritable_folder_is_named(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert main(["train", "--algorithm", "erm", *TINY, "--output", str(blocked / "x")]) == 2
    assert "file" in capsys.readouterr().err


def test_interrupt_says_so(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("hessalign.cli.train.train_colored_mnist", interrupt)
    assert main(["train", "--algorithm", "erm", *TINY]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_missing_matplotlib_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    arguments = ["demo", "--train-images", "200", "--steps", "2", "--output", str(tmp_path)]
    assert main(arguments) == 2
    assert "pip install 'hessalign[plot]'" in capsys.readouterr().err


def test_option_values():
    assert parse_options(["a=1", "b=0.5", "c=none", "d=True", "e=full"]) == {
        "a": 1, "b": 0.5, "c": None, "d": True, "e": "full"
    }  # fmt: skip
