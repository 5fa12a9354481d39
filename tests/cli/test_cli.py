"""The command line as a user meets it."""

import json
import re
import sys

import pytest
import yaml

from hessalign.bench.algorithms import ALGORITHMS
from hessalign.bench.runs import read_records
from hessalign.cli import main
from hessalign.cli.main import VERBS, make_parser

TINY = ["train_images=200", "test_images=60", "steps=4", "jump=2"]


def test_train_prints_accuracies_beside_the_papers_and_keeps_its_runs(tmp_path, capsys):
    folder = tmp_path / "runs"
    command = [
        "train", "--algorithm", "hgp", *TINY, "--restarts", "2", "--output", str(folder),
        "hessian_distance=true", "alpha=0.5"
    ]  # fmt: skip
    assert main(command) == 0
    captured = capsys.readouterr()
    assert "71.0 ± 1.5" in captured.out
    assert "69.4 ± 1.3" in captured.out
    assert "hgp #0" in captured.err
    assert "hgp #1" in captured.err
    assert sorted(path.name for path in folder.iterdir()) == ["hgp-seed0", "hgp-seed1"]
    config = json.loads((folder / "hgp-seed1" / "config.json").read_text())
    assert (config["trial_seed"], config["steps"]) == (1, 4)
    assert json.loads(config["hparams"])["alpha"] == 0.5
    records = read_records(folder / "hgp-seed0" / "results.jsonl")
    assert [record.step for record in records] == [0, 3]
    assert records[-1].metrics["hessian_distance"] > 0
    assert main(command) == 0  # complete runs are read, not repeated
    again = capsys.readouterr()
    assert again.out == captured.out
    assert "hgp #0" not in again.err


def test_imbalanced_runs_are_compared_with_table_3(capsys):
    assert main(["train", "--algorithm", "erm", "imbalance=paper", *TINY]) == 0
    assert "16.7 ± 0.1" in capsys.readouterr().out


def test_words_override_flags_and_flags_the_file(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text("algorithm: fishr\nseed: 3\nsteps: 7\ntrain_images: 200\ntest_images: 60\n")
    assert main(["train", "--config", str(file), "--algorithm", "hgp", "steps=4", "beta=2"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out.split("\n\n")[0])
    assert printed["dataset"] == "ColoredMNIST-IRM"
    assert (printed["algorithm"], printed["seed"], printed["steps"]) == ("hgp", 3, 4)
    assert printed["options"] == {"beta": 2.0}


def test_the_printed_configuration_can_be_given_back(tmp_path, capsys):
    assert main(["train", "--algorithm", "hgp", *TINY, "alpha=1e-3"]) == 0
    printed = capsys.readouterr().out.split("\n\n")[0]
    (tmp_path / "run.yaml").write_text(printed)
    assert main(["train", "--config", str(tmp_path / "run.yaml")]) == 0
    assert capsys.readouterr().out.split("\n\n")[0] == printed


def test_tensorboard_curves_can_be_read(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main(["train", "--algorithm", "hgp", *TINY, "--tensorboard", str(tmp_path)]) == 0
    curves = EventAccumulator(str(tmp_path / "hgp-seed0")).Reload()
    assert {"terms/loss", "terms/hessian", "metrics/test_accuracy"} <= set(curves.Tags()["scalars"])
    assert [event.step for event in curves.Scalars("terms/loss")] == [0, 3]


def test_a_missing_tensorboard_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert main(["train", "--algorithm", "erm", *TINY, "--tensorboard", str(tmp_path)]) == 2
    assert "pip install 'hessalign[tensorboard]'" in capsys.readouterr().err


def test_demo_draws_a_figure_and_prints_a_table(tmp_path, capsys, monkeypatch):
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
    # Its runs are kept: given again, it trains nothing.
    assert len(list((tmp_path / "d" / "runs").glob("*/done"))) == 4
    monkeypatch.setattr("hessalign.paper.cache.run_jobs", None)
    assert main(arguments) == 0
    table = (tmp_path / "d" / "colored_mnist.md").read_text()
    assert table in out
    assert table in capsys.readouterr().out


def test_algorithms_lists_every_row(capsys):
    assert main(["algorithms"]) == 0
    out = capsys.readouterr().out
    assert [line.split("|")[1].strip() for line in out.splitlines()[2:]] == list(ALGORITHMS)


def test_the_closed_form_is_credited_where_it_is_used(capsys):
    assert main(["algorithms"]) == 0
    rows = {line.split()[1]: line for line in capsys.readouterr().out.splitlines()[2:]}
    credited = {name for name, row in rows.items() if "CMA, Chen et al., 2025" in row}
    assert credited == {"full", "diagonal"}
    assert not [name for name, row in rows.items() if "| this package" in row]


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
        (["--dataset", "colored-mnist"], "Unknown data set .* Did you mean 'ColoredMNIST'"),
        (["--algorithm", "huchinson"], "Unknown algorithm .* Did you mean 'hutchinson'"),
        (["--restarts", "0"], "Expected --restarts of 1 or more, got 0"),
        (["--config", "nowhere.yaml"], r"Cannot read nowhere\.yaml: No such file"),
        (["width=0"], "Expected width of 1 or more, got 0"),
        (["probes"], "Expected KEY=VALUE, got 'probes'"),
        (["probes=1", "probes=2"], "Expected each key once, got 'probes' twice"),
        (["probes=many"], "Expected probes as a whole number or none, got 'many'"),
    ],
)
def test_mistakes_are_explained(arguments, text, capsys):
    assert main(["train", *TINY, *arguments]) == 2
    assert re.search(text, capsys.readouterr().err)


def test_too_few_images(capsys):
    assert main(["train", "train_images=1", "steps=1"]) == 2
    assert "Expected train_images from 4 to 50,000, got 1" in capsys.readouterr().err


def test_an_unwritable_folder_is_named(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert main(["train", "--algorithm", "erm", *TINY, "--output", str(blocked / "x")]) == 2
    assert "file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ([], "nothing was kept: give --output"),
        (["--output", "runs"], "The same command continues:\n  hessalign train --algorithm erm "),
    ],
)
def test_interrupt_says_how_to_continue(monkeypatch, capsys, output, text):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("hessalign.cli.train.train_job", interrupt)
    assert main(["train", "--algorithm", "erm", *TINY, *output]) == 130
    error = capsys.readouterr().err
    assert "interrupted" in error
    assert text in error


def test_a_missing_matplotlib_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    arguments = ["demo", "--train-images", "200", "--steps", "2", "--output", str(tmp_path)]
    assert main(arguments) == 2
    assert "pip install 'hessalign[plot]'" in capsys.readouterr().err


def test_an_unexpected_error_is_one_line_and_keeps_its_traceback(monkeypatch, capsys, tmp_path):
    def fail(options):
        return {}["lost\nkey"]

    monkeypatch.setattr("hessalign.cli.algorithms.run", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["algorithms"]) == 1
    shown = capsys.readouterr().err
    assert re.fullmatch(r"hessalign: error: unexpected KeyError: .* in \S+ .*\n", shown)
    (kept,) = tmp_path.iterdir()
    assert str(kept) in shown
    assert 'return {}["lost\\nkey"]' in kept.read_text()
    monkeypatch.setenv("HESSALIGN_TRACEBACK", "1")
    with pytest.raises(KeyError):
        main(["algorithms"])


# --- the list of verbs ---------------------------------------------------------------------------

HEAVY = """
import contextlib, io, sys
from hessalign.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main({words!r})
verbs = {{name.removeprefix("hessalign.cli.") for name in sys.modules if "hessalign.cli." in name}}
print(sorted(verbs - {{"main"}}), sorted({{"torch", "numpy"}} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("words", "imported"),
    [
        (["--help"], []),
        (["--version"], []),
        (["algorithms", "--help"], ["algorithms"]),
    ],
)
def test_help_imports_no_more_than_it_needs(words, imported, python):
    assert python(HEAVY.format(words=words)) == f"{imported} []\n"


def test_help_lists_every_verb(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for verb, text in VERBS.items():
        assert f" {verb} {text}" in shown


def verb_rows(parser):
    """What the list of verbs says of each, and the parser of each."""
    (verbs,) = (action for action in parser._actions if action.metavar == "VERB")
    return {action.dest: action.help for action in verbs._choices_actions}, verbs.choices


def test_the_list_says_of_a_verb_what_its_module_says():
    texts, _ = verb_rows(make_parser())
    assert texts == dict(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_read_as_among_all_of_them(verb):
    texts, parsers = verb_rows(make_parser({verb}))
    everything, all_parsers = verb_rows(make_parser())
    assert texts == everything
    assert parsers[verb].format_help() == all_parsers[verb].format_help()


def test_an_unknown_verb_suggests_one(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["trian", "--algorithm", "erm"])
    assert "Unknown verb 'trian'" in (said := capsys.readouterr().err)
    assert "Did you mean 'train'?" in said


def test_help_before_an_unknown_verb_is_help(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help", "trian"])
    assert "verbs:" in capsys.readouterr().out
