"""The command line as a user meets it."""

import json
import re
import sys
from dataclasses import fields
from importlib import import_module
from typing import get_args

import pytest
import yaml

from hessalign.bench.algorithms import ALGORITHMS
from hessalign.bench.algorithms.search import common_space
from hessalign.bench.data import PRESETS
from hessalign.bench.data.catalog import COLORED_MNIST
from hessalign.bench.runs import read_records, trained
from hessalign.bench.runs.computing import COMPUTING_KEYS
from hessalign.bench.runs.domainbed import MODEL_KEYS, PRESET
from hessalign.bench.runs.irm import STEPS, IrmOptions
from hessalign.bench.runs.loop import LoopOptions
from hessalign.bench.runs.trackers import TRACKERS
from hessalign.bench.sweep import SlurmOptions
from hessalign.bench.sweep.printed import FORMATS
from hessalign.bench.sweep.selection import SELECTIONS
from hessalign.cli import arguments, main
from hessalign.cli.arguments import VERBS, make_parser
from hessalign.heads.attack import Mode
from hessalign.paper.catalogue import EXPERIMENTS
from hessalign.paper.experiment import Options
from hessalign.paper.sweeps import _DEFAULT_BANK, _SCALES

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
    (folder,) = tmp_path.glob("HGP-ColoredMNIST-IRM-test2-trial0-draw0-*")
    curves = EventAccumulator(str(folder)).Reload()
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
    monkeypatch.setattr("hessalign.bench.sweep.progress.run_jobs", None)
    assert main(arguments) == 0
    table = (tmp_path / "d" / "colored_mnist.md").read_text()
    assert table in out
    assert table in capsys.readouterr().out


def described(out: str) -> dict[str, str]:
    """What is said of each algorithm that was named."""
    return {text.partition(":")[0].strip(): text for text in out.split("\n\n\n")}


@pytest.fixture
def wide(monkeypatch):
    """No width of a terminal, which workers of pytest are told, so that nothing is wrapped."""
    monkeypatch.delenv("COLUMNS", raising=False)


def test_algorithms_lists_every_row(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["algorithms"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    names = [line.split()[0] for line in lines[1:-3] if not line.startswith(" ")]
    assert names == list(ALGORITHMS)
    # What is wrapped stands in its own column, and without a terminal nothing is.
    at = lines[0].index("aligns")
    wrapped = [line for line in lines[1:-3] if line.startswith(" ")]
    assert wrapped
    assert {line[:at].strip() for line in wrapped} == {""}
    monkeypatch.delenv("COLUMNS")
    assert main(["algorithms"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(ALGORITHMS) + 4


def test_the_closed_form_is_credited_where_it_is_used(capsys, wide):
    assert main(["algorithms", "*"]) == 0
    said = described(capsys.readouterr().out)
    credited = {name for name, text in said.items() if "CMA, Chen et al., 2025" in text}
    assert credited == {"full", "diagonal"}
    assert not [name for name, text in said.items() if "reference  this package" in text]


def test_algorithms_can_be_picked_by_pattern(capsys):
    assert main(["algorithms", "h*", "*mask"]) == 0
    assert list(described(capsys.readouterr().out)) == ["hgp", "hutchinson", "andmask", "sandmask"]


def test_a_named_algorithm_tells_its_options_and_where_they_are_drawn(capsys, wide):
    """Every option and every range of the registry stands there."""
    assert main(["algorithms", *ALGORITHMS]) == 0
    said = described(capsys.readouterr().out)
    assert list(said) == list(ALGORITHMS)
    for name, info in ALGORITHMS.items():
        lines = {line.split()[0]: line for line in said[name].split("\n\n")[-1].splitlines()}
        names = [each.name for each in fields(info.config)]
        assert list(lines) == (["option", *names] if names else ["no"])
        for space in (info.search, info.search_small, info.search_features, info.search_released):
            for option, each in space.items():
                recorded, source = each if isinstance(each, tuple) else (option, each)
                assert str(source) in lines[option]
                assert (f"recorded as {recorded}" in lines[option]) == (recorded != option)
    assert "10^-5 to 10^-3; features: 10^-4.5 to 10^-0.5" in said["hgp"]
    assert "0.1 to 10; PACS: 1 to 10, default 5.0" in said["rdm"]
    assert "one of 0.0, 0.1, 0.5" in said["dann"]
    assert "2^0 to 2^3, whole" in said["dann"]
    assert "small images: always 0.0" in said["cdann"]
    assert "conditional                 true " in said["cdann"]
    assert said["erm"].endswith("no options")


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
        (["probes=many"], "Expected probes as a whole number of 1 or more, got 'many'"),
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


def test_a_missing_matplotlib_says_what_to_install_before_anything_is_trained(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    arguments = ["demo", "--train-images", "200", "--steps", "2", "--output", str(tmp_path / "d")]
    assert main(arguments) == 2
    assert not (tmp_path / "d").exists()
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


# --- help ----------------------------------------------------------------------------------------

HEAVY = """
import contextlib, io, sys
from hessalign.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main({words!r})
verbs = {{name.removeprefix("hessalign.cli.") for name in sys.modules if "hessalign.cli." in name}}
print(sorted(verbs), sorted({{"torch", "numpy", "hessalign.bench"}} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], *([verb, "--help"] for verb in VERBS)]
)
def test_help_imports_no_verb_and_nothing_heavy(words, python):
    assert python(HEAVY.format(words=words)) == "['arguments', 'main'] []\n"


def parsers(parser, words=()):
    """Every parser that does something, after the words that lead to it."""
    branches = [each.choices for each in parser._actions if isinstance(each.choices, dict)]
    if not branches:
        return {words: parser}
    (choices,) = branches
    below = [parsers(branch, (*words, name)) for name, branch in choices.items()]
    return {words: parser for found in below for words, parser in found.items()}


@pytest.mark.parametrize("words", parsers(make_parser()), ids="-".join)
def test_every_command_names_a_function_that_does_it(words):
    module, function = parsers(make_parser())[words].get_default("run").split(":")
    assert module == words[0]
    assert callable(getattr(import_module(f"hessalign.cli.{module}"), function))


def test_help_lists_every_verb(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = re.findall(r"^ {4}(\w+)\b", capsys.readouterr().out, re.MULTILINE)
    assert shown == list(VERBS)


LOOP_KEYS = [field.name for field in fields(LoopOptions)]
NAMES = {
    "_LOOP_KEYS": LOOP_KEYS,
    "_COLORED_KEYS": [each.name for each in fields(IrmOptions) if each.name not in LOOP_KEYS],
    "_COMMON_KEYS": common_space("big"),
    "_NETWORK_KEYS": [name for name in MODEL_KEYS if name not in LOOP_KEYS],
    "_COMPUTING_KEYS": COMPUTING_KEYS,
    "_SLURM_KEYS": [field.name for field in fields(SlurmOptions)],
    "_SELECTIONS": SELECTIONS,
    "_FORMATS": FORMATS,
    "_TRACKERS": TRACKERS,
    "_EXPORTS": trained.FORMATS,
    "_ATTACKS": get_args(Mode),
    "_BENCHMARKS": PRESETS,
    "_SWEPT": [name for name, each in EXPERIMENTS.items() if each.swept],
    "_BANK": [_DEFAULT_BANK],
}


@pytest.mark.parametrize("name", NAMES)
def test_help_knows_the_names_that_other_modules_define(name):
    assert getattr(arguments, name) == ", ".join(NAMES[name])


def test_help_knows_the_defaults_that_other_modules_define():
    told = dict(words.split(": ", 1) for words in arguments._SCALES.split("; "))
    assert list(told) == list(_SCALES)
    for name, scale in _SCALES.items():
        for key in ("draws", "trials", "steps"):
            assert f" {scale.entries.get(key, 5001):,} {key}" in told[name]
    texts = {words: parser.format_help() for words, parser in parsers(make_parser()).items()}
    assert f"Keys for {COLORED_MNIST}: " in texts["train",]
    assert f"{PRESET}, whose" in texts["train",]
    for said in (Options.restarts, Options.cache, Options.scale):
        assert f"({said})" in texts["reproduce",]
    demo = make_parser().parse_args(["demo"])
    assert demo.steps == STEPS


def test_an_unknown_verb_suggests_one(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["trian", "--algorithm", "erm"])
    assert "Unknown verb 'trian'" in (said := capsys.readouterr().err)
    assert "Did you mean 'train'?" in said


def test_help_before_an_unknown_verb_is_help(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help", "trian"])
    assert "verbs:" in capsys.readouterr().out
