"""What can be said on the command line: every verb, its flags and their help, on one page.

Nothing here imports what a verb needs, so that help comes at once: a parser names the function that
does the work, as `module:function` of this package, and the names that help shows are written out.

A flag is a line: its name, what stands for its value, `...` if there may be several, the type
unless it is text, a default, `required` or `repeated`, and two blanks before what help says, which
may go on in lines that are indented. A flag without a value is a switch. A line `= TITLE = TEXT`
begins a group of flags.
"""

from __future__ import annotations

import argparse
import os
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from hessalign._processes import WORKERS_VARIABLE
from hessalign._protocol import LARGEST_SEED
from hessalign._version import __version__

TRACEBACK_VARIABLE: Final = "HESSALIGN_TRACEBACK"
"""The environment variable that asks for the traceback of an error on the terminal."""

LAUNCHERS: Final = ("serial", "local", "ray", "slurm")
ALL_REPRODUCED: Final = "all-cmnist"
ON_BANKS: Final = ("table1", "figure2")
"""Experiments that also report on a sweep over a feature bank."""

# What help says of things that heavier modules define. The tests compare them.
_LOOP_KEYS: Final = (
    "average, average_decay, average_start, n_converge, n_tolerance, tolerance_ratio, optimizer, "
    "momentum, lr_schedule, warmup_steps"
)
_COLORED_KEYS: Final = (
    "imbalance, train_images, test_images, jump, penalty_weight, learning_rate, l2, width, "
    "evaluate_every, hessian_distance, initial_seed"
)
_COMMON_KEYS: Final = (
    "data_augmentation, resnet18, resnet_dropout, class_balanced, nonlinear_classifier, lr, "
    "weight_decay, batch_size"
)
_NETWORK_KEYS: Final = (
    "backbone, weights, head, hidden, freeze_batch_norm, image_size, augment_validation, loss, "
    "hessian_distance, precision, evaluate_every, initial_seed, initial_head"
)
_COMPUTING_KEYS: Final = "compile, channels_last, workers"
_SLURM_KEYS: Final = "time, memory, partition, account, qos, constraint, exclude"
_SELECTIONS: Final = "training-domain, leave-one-out, oracle"
_FORMATS: Final = "text, domainbed, markdown, latex, csv, json"
_TRACKERS: Final = "tensorboard, mlflow, wandb, trackio"
_EXPORTS: Final = "safetensors, torchscript, onnx, pt2"
_ATTACKS: Final = "exact, published"
_BENCHMARKS: Final = (
    "VLCS, PACS, OfficeHome, TerraIncognita, DomainNet, SVIRO, WILDSCamelyon, WILDSFMoW, "
    "WILDSiWildCam, SpawriousO2O_easy, SpawriousO2O_medium, SpawriousO2O_hard, SpawriousM2M_easy, "
    "SpawriousM2M_medium, SpawriousM2M_hard"
)
_SWEPT: Final = "table4, table6, table7, table8"
_SCALES: Final = (
    "full: the published protocol: networks fine-tuned on images, 20 draws, 3 trials, 5,001 steps; "
    "small: the same protocol on the feature banks that are there: 8 draws, 3 trials, 301 steps"
)
_BANK: Final = "PACS@efficientnet_lite0"

_EXAMPLE: Final = (
    "hessalign sweep run --datasets PACS --data-dir data --algorithms erm hgp --trials 3 --draws "
    "20 --selections training-domain oracle --output outputs/pacs hidden=256"
)
_CORES: Final = os.cpu_count() or 1


def _seed_number(text: str) -> int:
    """A seed, as argparse asks for it."""
    if not text.isdecimal() or int(text) > LARGEST_SEED:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 0 to {LARGEST_SEED}, got {text!r}"
        )
    return int(text)


_TYPES: Final[Mapping[str, Callable[[str], object]]] = {
    "text": str, "int": int, "float": float, "path": Path, "seed": _seed_number
}  # fmt: skip


_LAUNCHER: Final = f"""
--launcher NAME text=local  one of: {", ".join(LAUNCHERS)}
--jobs N int  runs at a time (default: all cores, all of Ray, or what Slurm allows)
--address HOST:PORT  of a Ray cluster (default: start one here)
--cpus-per-run N float  for ray and slurm (default: 1)
--gpus-per-run N float  for ray, fractions too, and slurm (default: 0)
--slurm KEY=VALUE...  of jobs of slurm: {_SLURM_KEYS}
"""
_SPECIFICATION: Final = f"""
entries SWEEP_|_KEY=VALUE...  a YAML file, or the folder of a sweep; and hyper-parameters to set in
    all runs. Flags override the file
--output DIR  the folder of the sweep
--datasets NAME...
--data-dir DIR  the folder that holds the data sets
--algorithms NAME...  see `hessalign algorithms`; or all
--test-domains DOMAIN...  names or numbers (default: all)
--trials N int
--draws N int  of hyper-parameters; the first is the defaults
--preset NAME  whose hyper-parameter ranges
--steps N int
--selections NAME...  of: {_SELECTIONS}; or all
--evaluate WHAT  needed (default) or all
--keep-models
"""
_TRACK: Final = f"""\
--tensorboard DIR path  also log to TensorBoard
--track NAME repeated  also log to one of: {_TRACKERS}; NAME=WHERE says to which folder, address or
    project; or package.module:Name for your own
"""
_SOURCE: Final = f"""
path PATH path  the data set: a folder or file, the name of a benchmark, hf:NAME of Hugging Face,
    or package.module:function
--preset NAME  which benchmark a folder is: {_BENCHMARKS}
--data-dir DIR path=data  what holds data sets that are given by name (default: data)
"""
_TABLE: Final = """
--label COLUMN  of a table: the classes (default: y or label)
--domain COLUMN  of a table: the domains (default: domain)
"""
_CACHE: Final = """
--size N int=224  height and width (default: 224)
--cache DIR path  {what} (default: beside PATH)
--allow-truncated  fill what an image lacks with grey
"""
_WORKERS: Final = f"--workers N int={_CORES}  processes (default: all cores)\n"
_WHICH: Final = "which, if the sweep has several"

_COMMANDS: Final = {
    "demo": f"""
Colored MNIST with four methods, in a few minutes
--output DIR path=outputs/demo
--train-images N int=20000
--steps N int=501
--seed SEED seed=0
--jobs N int={min(4, _CORES)}  processes at once
""",
    "train": f"""
train one algorithm; the defaults are the published protocol
--config FILE path  keys and values as YAML
--dataset DATASET  ColoredMNIST-IRM, heart, the name of one below --data-dir, or
    package.module:function
{_TABLE.strip()}
--algorithm ALGORITHM  see `hessalign algorithms`
--seed SEED seed  of the first restart
--restarts N int=1  runs with seeds SEED, SEED+1, …
--output DIR path  keep records, checkpoints and the model there; the same command continues a run
    that was killed
{_TRACK}--data-dir DIR  where data sets are: folders of images, files of arrays
--test-domains D,…  names or numbers of the domains not trained on; or official, the default of
    data sets with an official split
--hparams-seed N int  a draw of hyper-parameters; 0: defaults
--steps N int  updates; unless given, those of the protocol
entries KEY=VALUE...  what differs from the defaults
---
Example: hessalign train --dataset colored_mnist --algorithm hutchinson \\
  --restarts 3 --output outputs/hutchinson probes=100 fidelity=paper
---
Keys for ColoredMNIST-IRM: {_COLORED_KEYS}; and the options of the algorithm.

Keys for other data sets: {_COMMON_KEYS}; of the network: {_NETWORK_KEYS}; preset, whose ranges
draws are made from; and the options of the algorithm.

Keys for all: {_LOOP_KEYS}; that change speed alone: {_COMPUTING_KEYS}.

`hessalign algorithms NAME` lists an algorithm's options. Words override flags, and flags override
the file.
""",
    "predict": f"""
classify images or arrays with a trained model
run_folder RUN path  a trained run; with --select, a sweep
inputs INPUT... required  images, folders of images, files of arrays (.npy, .npz, .safetensors); a
    table (.csv, .tsv) for a model that was trained on one
--output FILE path  .csv: path, class and probabilities; .npz: features too (default: CSV, printed)
--batch-size N int  samples at a time (default: 64, as in training)
= the best run of a sweep (one with keep_models: true) =
--select METHOD  one of: {_SELECTIONS}
--dataset NAME  {_WHICH}
--algorithm NAME  {_WHICH}
--test-domain NAME  {_WHICH}
---
Example: hessalign predict runs/PACS photos/ cat.jpg --output found.csv. Images are prepared as in
the evaluation of the run. One that cannot be read is named and left out, and the exit code is 1.
""",
    "export": f"""
write a trained network as ONNX, TorchScript, pt2 or safetensors
run_folder RUN path  a trained run
--format FORMAT required  one of: {_EXPORTS}
--output FILE path required  the file to write
---
Example: hessalign export runs/PACS --format onnx --output model.onnx. The file takes prepared
inputs in batches of any size and gives logits; it carries the names of the classes and says how
images are prepared. It is read back and compared with the network before it is left there.
""",
    "reproduce": f"""
regenerate a table or figure of the paper
name name  `list`, one of its names, or `{ALL_REPRODUCED}` for one page of them
--output DIR path=results  where results go
--finished  train nothing: report on the runs that are there, and in tables 2, 3, 9 and 10 on
    restarts that one of them has written below --output, marked as such
{_LAUNCHER.strip()}
entries KEY=VALUE...  what differs from the published protocol
= Colored MNIST =
--restarts N int  runs of each method (10)
--seed SEED seed  of the first restart (0)
--cache DIR path  where runs are kept (outputs/runs)
= DomainBed = For {_SWEPT}. KEY=VALUE sets keys of the sweep, such as draws=4 or
    algorithms=[erm,hgp].
--scale NAME  {_SCALES} (full)
--data-dir DIR  the folder that holds the data sets
--backbone NAME  the network (resnet50), or whose features
--sweep DIR path repeated  the folder of a sweep to begin or continue; at the small scale once for
    each head
= feature banks = For {" and ".join(ON_BANKS)}, which report on the sweep in --sweep with the bank
    below --data-dir too.
--dataset NAME  the bank ({_BANK})
---
Runs are kept in the cache and shared between experiments; an interrupted command continues when it
is given again.
""",
    "sweep plan": f"""
how many runs there are, what they cost, and what each selection method adds
{_SPECIFICATION}
--no-measure  count only; needs no data
--jobs N int  processes (default: all cores)
---
Measures a few steps of each algorithm. Example of flags: {_EXAMPLE}
""",
    "sweep run": f"""
do all runs that are not done; the same command continues
{_SPECIFICATION}{_LAUNCHER}{_TRACK}--retry-failed  do again what failed before
---
Several launchers, also on several machines, may work on one folder: each run is done once. Example
of flags: {_EXAMPLE}
""",
    "sweep status": f"""
done, running, failed, left, and the time to go
{_SPECIFICATION}--all  show all runs that failed
""",
    "collect": f"""
tables of a sweep, by three methods of model selection
folder DIR path  the folder of the sweep
--format NAME text=text  one of: {_FORMATS}; text is DomainBed's, with reasons for what is missing
--selection NAME...  one or more of: {_SELECTIONS} (default: all)
--chosen  show run, step and hyper-parameters of each value
--include-unfinished  count runs that did not finish
--mix  allow runs of different protocols in one table
--averaged  read the accuracies of averaged weights, of runs with `average`
--output FILE path  write the tables there
---
Reads results.jsonl of all runs below DIR. What is left out or odd is said on stderr; what a cell
lacks stands below its table.
""",
    "report": """
a sweep as one page: results, runs, curves, failures, costs
folder SWEEP path  the folder of a sweep, ours or DomainBed's
--html FILE path  write the page there; it needs no network
--latex FILE path  write the tables there, the best in bold
--watch  write again while the sweep goes on, until it is complete
--mix  allow runs of different protocols in one table
---
Without --html it says in short what there is. The page shows the three model selections side by
side with paired differences to ERM, accuracies per domain, every run against its hyper-parameters,
learning curves, Hessian distances, what failed and why, and hours; its tables can be sorted.
""",
    "average": """
one network from the runs of a sweep, by averaging their weights (DiWA)
folder SWEEP path  a sweep that kept its models (--keep-models)
--output DIR path  where the averages go, a run's folder each (default: SWEEP-RULE)
--members RULE text=restricted  which runs are averaged. uniform: all of them. restricted: the best,
    and in turn those that do not make the average worse on held-out parts of training domains
--across-trials  average runs of all trials, not of each (uniform only)
--data-dir DIR path  where the data are now, if moved
---
Averages the runs of each data set, algorithm and test domain, trial by trial, and measures the
average beside the best single run. Runs should begin with the same weights: initial_seed=0 in the
sweep sees to it. `hessalign collect` makes tables of the averages; predict, export and diagnose
take each like any run.
""",
    "diagnose": f"""
how different domains are, in what, and whether a head transfers
path PATH path  a run, a table, arrays, or heart, four hospitals that come with the package
{_TABLE.strip()}
--backbone NAME  of images: see `hessalign features extract`
--weights W  of the backbone: imagenet or a file; random if none
--data-dir DIR path  of a run: where its data are, if moved
--html FILE path  also write one page with figures
--json FILE path  also write all numbers
--samples N int  of each domain (default: 6,000 in all, more where models are tested)
--l2 W float  L2 weight of fits (default: 0.01 where domains are compared, 1 / samples where models
    are tested)
--tolerance T float=0.01  excess loss of a nearly optimal head, for the transfer bound (default:
    0.01)
--as-is  do not scale features to mean 0 and variance 1
--seed SEED seed=0  of every draw
---
PATH is the folder of a complete run (`train --output`), arrays (.npz or .safetensors with x, y and
domain), a table (.csv or .tsv: a column of classes, one of domains, all others features, numbers
or words, some missing), or, with --backbone, a folder or manifest of images. A head is fitted if
there is none. Example: hessalign diagnose table.csv --label outcome --domain clinic
""",
    "attack": f"""
the worst loss gap between domains near a trained head
folder RUN path  folder of a complete run (`train --output`)
--delta D... float  radii
--mode MODE text=exact  one of: {_ATTACKS}
--samples N int=2500  of each domain, drawn at random
--seed SEED seed=0  of the draw and of the attack's starts
--data-dir DIR path  where the data are now, if moved
--output DIR path  where to save; by default RUN/attack
---
Moves the head of a trained run within a radius so that the losses of two domains, sources or
target, differ as much as possible; features stay as they are.
""",
    "features extract": f"""
run a backbone over all images, once; run it again to continue
{_SOURCE}
--backbone BACKBONE required  a model of torchvision or timm (timm:NAME), or package.module:name for
    your own
--weights WEIGHTS  imagenet or a file; random without it, unless it brings its own
--name NAME  what the bank calls the backbone (default: its name)
--output BANK path  default: DATA@BACKBONE.safetensors; or .npz
{_CACHE.format(what="cache of the images").strip()}
--jobs N int={_CORES}  processes (default: all cores)
---
Example: hessalign features extract data/PACS --backbone resnet50 --weights imagenet. The bank,
PACS@resnet50.safetensors, is a data set that every algorithm takes.
""",
    "features show": """
what a bank was made with
bank BANK path  the bank
""",
    "datasets list": """
the benchmarks, and where to obtain them
""",
    "datasets check": f"""
count and read all images; exit code 1 if something should be mended
{_SOURCE}{_TABLE}{_WORKERS}--all  show all findings
---
PATH is a folder of the form domain/class/image, a manifest (.csv or .jsonl with path, class and
domain), a table (.csv or .tsv) or arrays (.npz or .safetensors with x, y and domain). What a
folder's exclude.txt lists, an image per line, is left out by every command.
""",
    "datasets prepare": f"""
decode and resize all images once; run it again to continue or to bring up to date
{_SOURCE}{_WORKERS}{_CACHE.format(what="where to keep it").strip()}
---
What is stored are the evaluation images of the protocol; training crops are taken from them. For
the name of a benchmark, it says first where that can be had, under which licence and how large it
is, and checks what is there; the exit code is 1 if something is missing.
""",
    "algorithms": """
list the algorithms, what they align, options
patterns NAME...  list only these; * and ? stand for any letters, as in 'h*' (with the quotes); or
    one of your own as package.module:Name
""",
    "convert": """
runs on Colored MNIST of version 0.1, in today's form
old OLD... path required  a run, or a folder that holds runs
--output DIR path required  where the new folders go
---
Example: hessalign convert outputs/runs --output outputs/converted

The new folders are named by the hash of what each run is, so that `hessalign reproduce
--cache` finds them. The old ones stay as they are. Runs of other data sets need no
conversion.
""",
}
"""Verbs, or verbs and actions: what the list of all says, the flags, and what help of it alone says
first, and last. The function `run`, or `run_ACTION`, of its file does it.
"""

_CONTINUED: Final = {
    "demo", "reproduce", "sweep run", "features extract", "datasets prepare", "convert",
}  # fmt: skip
"""Which go on after an interrupt when they are given again."""

_LAID_OUT: Final = {"train", "convert"}  # of which help keeps the lines as they are
_GROUPS: Final = {
    "sweep": "plan, run and watch the runs of a benchmark",
    "features": "turn images into a bank of features",
    "datasets": "list, check and prepare data sets",
}
"""Verbs that have actions."""

VERBS: Final = tuple(dict.fromkeys(words.split()[0] for words in _COMMANDS))


def make_parser() -> argparse.ArgumentParser:
    """The parser of all verbs; it sets `run` to `module:function`."""
    parser = argparse.ArgumentParser(
        prog="hessalign",
        description="Exact Hessian and gradient alignment for domain generalization.",
        epilog=f"In the environment, {TRACEBACK_VARIABLE}=1 shows the whole traceback of an error, "
        f"and {WORKERS_VARIABLE}=N has N processes make the batches of images of each run (0: the "
        "run itself).",
    )
    parser.add_argument("--version", action="version", version=f"hessalign {__version__}")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    actions: dict[str, Any] = {}
    for words, text in _COMMANDS.items():
        verb, *action = words.split()
        if action and verb not in actions:
            group = verbs.add_parser(verb, help=_GROUPS[verb])
            actions[verb] = group.add_subparsers(title="actions", required=True, metavar="ACTION")
        said, _, rest = text.strip().partition("\n")
        flags, first, last = [*rest.split("\n---\n"), "", ""][:3]
        paragraphs = [textwrap.fill(each, 80) for each in last.split("\n\n")]
        laid_out = argparse.RawDescriptionHelpFormatter
        command = actions.get(verb, verbs).add_parser(
            *(action or [verb]),
            help=said,
            description=first or None,
            epilog="\n\n".join(paragraphs) or None,
            formatter_class=laid_out if words in _LAID_OUT else argparse.HelpFormatter,
        )
        _add_flags(command, flags)
        command.set_defaults(run=f"{verb}:{'_'.join(['run', *action])}")
        if words in _CONTINUED:
            command.set_defaults(continues=True)
    return parser


def _add_flags(parser: argparse.ArgumentParser, flags: str) -> None:
    """Add flags that are written as the module says."""
    add = parser.add_argument
    for line in filter(None, re.sub(r"\n +", " ", flags).split("\n")):
        if line.startswith("="):
            title, _, description = line.removeprefix("= ").partition(" =")
            add = parser.add_argument_group(title, description.strip() or None).add_argument
            continue
        written, _, said = line.partition("  ")
        name, *form = written.split()
        if not form:
            add(name, action="store_true", help=said or None)
            continue
        metavar, *rest = form
        known = (word for word in rest if word.partition("=")[0] in _TYPES)
        kind, _, default = next(known, "text").partition("=")
        options: dict[str, Any] = {"type": _TYPES[kind], "default": default or None}
        several, required = metavar.endswith("..."), "required" in rest
        if not name.startswith("-"):
            options |= {"nargs": "+" if required else "*"} if several else {}
        else:
            options["required"] = required
            options |= {"nargs": "+", "action": "extend"} if several else {}
            options |= {"action": "append"} if "repeated" in rest else {}
        shown = metavar.removesuffix("...").replace("_", " ")
        add(name, metavar=shown, help=said or None, **options)


def given_flags(options: argparse.Namespace, *flags: str) -> str:
    """Which of some flags a command line has, as messages name them."""
    names = {flag: flag.removeprefix("--").replace("-", "_") for flag in flags}
    return ", ".join(flag for flag, name in names.items() if getattr(options, name) is not None)
