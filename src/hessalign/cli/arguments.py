"""What can be said on the command line: every verb, its flags and their help, on one page.

Nothing here imports what a verb needs, so that help comes at once: a parser names the function that
does the work, as `module:function` of this package, and the names that help shows are written out.
"""

from __future__ import annotations

import argparse
import os
import textwrap
from pathlib import Path
from typing import Final, TypeAlias

from hessalign._processes import WORKERS_VARIABLE
from hessalign._protocol import LARGEST_SEED
from hessalign._version import __version__

TRACEBACK_VARIABLE: Final = "HESSALIGN_TRACEBACK"
"""The environment variable that asks for the traceback of an error on the terminal."""

LAUNCHERS: Final = ("serial", "local", "ray")
ALL_REPRODUCED: Final = "all-cmnist"
ON_BANKS: Final = ("table1", "figure2")
"""Experiments that also report on a sweep over a feature bank."""

# What help says of things that heavier modules define. The tests compare them.
_COLORED_KEYS: Final = (
    "imbalance, train_images, test_images, jump, penalty_weight, learning_rate, l2, width, "
    "evaluate_every, hessian_distance, optimizer, momentum, lr_schedule, warmup_steps"
)
_COMMON_KEYS: Final = (
    "data_augmentation, resnet18, resnet_dropout, class_balanced, nonlinear_classifier, lr, "
    "weight_decay, batch_size"
)
_NETWORK_KEYS: Final = (
    "backbone, weights, head, hidden, freeze_batch_norm, image_size, augment_validation, loss, "
    "optimizer, momentum, lr_schedule, warmup_steps"
)
_SELECTIONS: Final = "training-domain, leave-one-out, oracle"
_FORMATS: Final = "text, domainbed, markdown, latex, csv, json"
_EXPORTS: Final = "safetensors, torchscript, onnx, pt2"
_ATTACKS: Final = "exact, published"
_BENCHMARKS: Final = "VLCS, PACS, OfficeHome, TerraIncognita, DomainNet"
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
_Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _seed_number(text: str) -> int:
    """A seed, as argparse asks for it.

    Returns:
        A whole number.

    Raises:
        argparse.ArgumentTypeError: If it is something else, or too large.

    Example:
        >>> _seed_number("3")
        3
    """
    if not text.isdecimal() or int(text) > LARGEST_SEED:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 0 to {LARGEST_SEED}, got {text!r}"
        )
    return int(text)


def _add_demo(verbs: _Verbs) -> None:
    parser = verbs.add_parser("demo", help="Colored MNIST with four methods, in a few minutes")
    parser.add_argument("--output", type=Path, default=Path("outputs/demo"), metavar="DIR")
    parser.add_argument("--train-images", type=int, default=20_000, metavar="N")
    parser.add_argument("--steps", type=int, default=501, metavar="N")
    parser.add_argument("--seed", type=_seed_number, default=0)
    jobs = min(4, os.cpu_count() or 1)
    parser.add_argument("--jobs", type=int, default=jobs, metavar="N", help="processes at once")
    parser.set_defaults(run="demo:run", continues=True)


def _add_train(verbs: _Verbs) -> None:
    paragraphs = (
        f"Keys for ColoredMNIST-IRM: {_COLORED_KEYS}; and the options of the algorithm.",
        f"Keys for other data sets: {_COMMON_KEYS}; of the network: {_NETWORK_KEYS}; preset, whose "
        "ranges draws are made from; and the options of the algorithm.",
        "`hessalign algorithms NAME` lists an algorithm's options. Words override flags, and flags "
        "override the file.",
    )
    parser = verbs.add_parser(
        "train",
        help="train one algorithm; the defaults are the published protocol",
        description="Example: hessalign train --dataset colored_mnist --algorithm hutchinson \\\n"
        "  --restarts 3 --output outputs/hutchinson probes=100 fidelity=paper",
        epilog="\n\n".join(textwrap.fill(text, 80) for text in paragraphs),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="keys and values as YAML")
    add(
        "--dataset",
        help="ColoredMNIST-IRM, the name of one below --data-dir, or package.module:function",
    )
    add("--algorithm", help="see `hessalign algorithms`")
    add("--seed", type=_seed_number, help="of the first restart")
    add("--restarts", type=int, default=1, metavar="N", help="runs with seeds SEED, SEED+1, …")
    add(
        "--output",
        type=Path,
        metavar="DIR",
        help="keep records, checkpoints and the model there; the same command continues a run "
        "that was killed",
    )
    add("--tensorboard", type=Path, metavar="DIR", help="also log to TensorBoard")
    add("--data-dir", metavar="DIR", help="where data sets are: folders of images, files of arrays")
    add("--test-domains", metavar="D,…", help="names or numbers of the domains not trained on")
    add("--hparams-seed", type=int, metavar="N", help="a draw of hyper-parameters; 0: defaults")
    add("--steps", type=int, metavar="N", help="updates; unless given, those of the protocol")
    add("entries", nargs="*", metavar="KEY=VALUE", help="what differs from the defaults")
    parser.set_defaults(run="train:run")


def _add_predict(verbs: _Verbs) -> None:
    parser = verbs.add_parser(
        "predict",
        help="classify images or arrays with a trained model",
        description="Example: hessalign predict runs/PACS photos/ cat.jpg --output found.csv. "
        "Images are prepared as in the evaluation of the run. One that cannot be read is named and "
        "left out, and the exit code is 1.",
    )
    add = parser.add_argument
    add("run_folder", type=Path, metavar="RUN", help="a trained run; with --select, a sweep")
    add(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="images, folders of images, files of arrays (.npy, .npz, .safetensors)",
    )
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help=".csv: path, class and probabilities; .npz: features too (default: CSV, printed)",
    )
    add(
        "--batch-size",
        type=int,
        metavar="N",
        help="samples at a time (default: 64, as in training)",
    )
    group = parser.add_argument_group("the best run of a sweep (one with keep_models: true)")
    group.add_argument("--select", metavar="METHOD", help=f"one of: {_SELECTIONS}")
    for name in ("dataset", "algorithm", "test-domain"):
        group.add_argument(f"--{name}", metavar="NAME", help="which, if the sweep has several")
    parser.set_defaults(run="predict:run")


def _add_export(verbs: _Verbs) -> None:
    parser = verbs.add_parser(
        "export",
        help="write a trained network as ONNX, TorchScript, pt2 or safetensors",
        description="Example: hessalign export runs/PACS --format onnx --output model.onnx. The "
        "file takes prepared inputs in batches of any size and gives logits; it carries the names "
        "of the classes and says how images are prepared. It is read back and compared with the "
        "network before it is left there.",
    )
    add = parser.add_argument
    add("run_folder", type=Path, metavar="RUN", help="a trained run")
    add("--format", required=True, help=f"one of: {_EXPORTS}")
    add("--output", type=Path, required=True, metavar="FILE", help="the file to write")
    parser.set_defaults(run="export:run")


def _add_reproduce(verbs: _Verbs) -> None:
    parser = verbs.add_parser(
        "reproduce",
        help="regenerate a table or figure of the paper",
        description="Runs are kept in the cache and shared between experiments; an interrupted "
        "command continues when it is given again.",
    )
    add = parser.add_argument
    add("name", help=f"`list`, one of its names, or `{ALL_REPRODUCED}` for one page of them")
    add("--output", type=Path, default=Path("results"), metavar="DIR", help="where results go")
    add(
        "--finished",
        action="store_true",
        help="train nothing: report on the runs that are there, and in tables 2, 3, 9 and 10 on "
        "restarts that one of them has written below --output, marked as such",
    )
    _add_launcher(parser)
    add("entries", nargs="*", metavar="KEY=VALUE", help="what differs from the published protocol")
    add = parser.add_argument_group("Colored MNIST").add_argument
    add("--restarts", type=int, metavar="N", help="runs of each method (10)")
    add("--seed", type=_seed_number, help="of the first restart (0)")
    add("--cache", type=Path, metavar="DIR", help="where runs are kept (outputs/runs)")
    add = parser.add_argument_group(
        "DomainBed",
        f"For {_SWEPT}. KEY=VALUE sets keys of the sweep, such as draws=4 or algorithms=[erm,hgp].",
    ).add_argument
    add("--scale", metavar="NAME", help=f"{_SCALES} (full)")
    add("--data-dir", metavar="DIR", help="the folder that holds the data sets")
    add("--backbone", metavar="NAME", help="the network (resnet50), or whose features")
    add(
        "--sweep",
        action="append",
        type=Path,
        metavar="DIR",
        help="the folder of a sweep to begin or continue; at the small scale once for each head",
    )
    add = parser.add_argument_group(
        "feature banks",
        f"For {' and '.join(ON_BANKS)}, which report on the sweep in --sweep with the bank below "
        "--data-dir too.",
    ).add_argument
    add("--dataset", metavar="NAME", help=f"the bank ({_BANK})")
    parser.set_defaults(run="reproduce:run", continues=True)


def _add_sweep(verbs: _Verbs) -> None:
    parser = verbs.add_parser("sweep", help="plan, run and watch the runs of a benchmark")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")

    plan = actions.add_parser(
        "plan",
        help="how many runs there are, what they cost, and what each selection method adds",
        description="Measures a few steps of each algorithm. " + f"Example of flags: {_EXAMPLE}",
    )
    _add_specification(plan)
    plan.add_argument("--no-measure", action="store_true", help="count only; needs no data")
    plan.add_argument("--jobs", type=int, metavar="N", help="processes (default: all cores)")
    plan.set_defaults(run="sweep:run_plan")

    run = actions.add_parser(
        "run",
        help="do all runs that are not done; the same command continues",
        description="Several launchers, also on several machines, may work on one folder: each run "
        f"is done once. Example of flags: {_EXAMPLE}",
    )
    _add_specification(run)
    add = run.add_argument
    _add_launcher(run)
    add("--retry-failed", action="store_true", help="do again what failed before")
    run.set_defaults(run="sweep:run_run", continues=True)

    status = actions.add_parser("status", help="done, running, failed, left, and the time to go")
    _add_specification(status)
    status.add_argument("--all", action="store_true", help="show all runs that failed")
    status.set_defaults(run="sweep:run_status")


def _add_launcher(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--launcher", default="local", metavar="NAME", help=f"one of: {', '.join(LAUNCHERS)}")
    add("--jobs", type=int, metavar="N", help="runs at a time (default: all cores, or all of Ray)")
    add("--address", metavar="HOST:PORT", help="of a Ray cluster (default: start one here)")
    add("--cpus-per-run", type=float, metavar="N", help="for ray (default: 1)")
    add("--gpus-per-run", type=float, metavar="N", help="for ray (default: 0)")


def _add_specification(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "entries",
        nargs="*",
        metavar="SWEEP | KEY=VALUE",
        help="a YAML file, or the folder of a sweep; and hyper-parameters to set in all runs. "
        "Flags override the file",
    )
    add("--output", metavar="DIR", help="the folder of the sweep")
    add("--datasets", nargs="+", action="extend", metavar="NAME")
    add("--data-dir", metavar="DIR", help="the folder that holds the data sets")
    add(
        "--algorithms",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="see `hessalign algorithms`; or all",
    )
    add(
        "--test-domains",
        nargs="+",
        action="extend",
        metavar="DOMAIN",
        help="names or numbers (default: all)",
    )
    add("--trials", type=int, metavar="N")
    add("--draws", type=int, metavar="N", help="of hyper-parameters; the first is the defaults")
    add("--preset", metavar="NAME", help="whose hyper-parameter ranges")
    add("--steps", type=int, metavar="N")
    add(
        "--selections",
        nargs="+",
        action="extend",
        metavar="NAME",
        help=f"of: {_SELECTIONS}; or all",
    )
    add("--evaluate", metavar="WHAT", help="needed (default) or all")
    add("--keep-models", action="store_true", default=None)


def _add_collect(verbs: _Verbs) -> None:
    parser = verbs.add_parser(
        "collect",
        help="tables of a sweep, by three methods of model selection",
        description="Reads results.jsonl of all runs below DIR. What is left out or odd is said on "
        "stderr; what a cell lacks stands below its table.",
    )
    add = parser.add_argument
    add("folder", metavar="DIR", type=Path, help="the folder of the sweep")
    add(
        "--format",
        default="text",
        metavar="NAME",
        help=f"one of: {_FORMATS}; text is DomainBed's, with reasons for what is missing",
    )
    add(
        "--selection",
        nargs="+",
        action="extend",
        metavar="NAME",
        help=f"one or more of: {_SELECTIONS} (default: all)",
    )
    add("--chosen", action="store_true", help="show run, step and hyper-parameters of each value")
    add("--include-unfinished", action="store_true", help="count runs that did not finish")
    add("--mix", action="store_true", help="allow runs of different protocols in one table")
    add("--output", type=Path, metavar="FILE", help="write the tables there")
    parser.set_defaults(run="collect:run")


def _add_diagnose(verbs: _Verbs) -> None:
    parser = verbs.add_parser(
        "diagnose",
        help="how different domains are, in what, and whether a head transfers",
        description="PATH is the folder of a complete run (`train --output`), arrays (.npz or "
        ".safetensors with x, y and domain), a table (.csv with the columns y and domain, all "
        "others features), or, with --backbone, a folder or manifest of images. A head is fitted "
        "if there is none.",
    )
    add = parser.add_argument
    add("path", type=Path, metavar="PATH", help="a run, arrays, or a table of numbers")
    add("--backbone", metavar="NAME", help="of images: see `hessalign features extract`")
    add("--weights", metavar="W", help="of the backbone: imagenet or a file; random if none")
    add("--data-dir", type=Path, metavar="DIR", help="of a run: where its data are, if moved")
    add("--html", type=Path, metavar="FILE", help="also write one page with figures")
    add("--json", type=Path, metavar="FILE", help="also write all numbers")
    add("--samples", type=int, metavar="N", help="of each domain (default: 6,000 in all)")
    add("--l2", type=float, default=1e-2, metavar="W", help="L2 weight of fits (default: 0.01)")
    add(
        "--tolerance",
        type=float,
        default=1e-2,
        metavar="T",
        help="excess loss of a nearly optimal head, for the transfer bound (default: 0.01)",
    )
    add("--as-is", action="store_true", help="do not scale features to mean 0 and variance 1")
    add("--seed", type=_seed_number, default=0, help="of every draw")
    parser.set_defaults(run="diagnose:run")


def _add_attack(verbs: _Verbs) -> None:
    parser = verbs.add_parser(
        "attack",
        help="the worst loss gap between domains near a trained head",
        description="Moves the head of a trained run within a radius so that the losses of two "
        "domains, sources or target, differ as much as possible; features stay as they are.",
    )
    add = parser.add_argument
    add("folder", type=Path, metavar="RUN", help="folder of a complete run (`train --output`)")
    add("--delta", type=float, nargs="+", action="extend", metavar="D", help="radii")
    add("--mode", default="exact", help=f"one of: {_ATTACKS}")
    add("--samples", type=int, default=2500, metavar="N", help="of each domain, drawn at random")
    add("--seed", type=_seed_number, default=0, help="of the draw and of the attack's starts")
    add("--data-dir", type=Path, metavar="DIR", help="where the data are now, if moved")
    add("--output", type=Path, metavar="DIR", help="where to save; by default RUN/attack")
    parser.set_defaults(run="attack:run")


def _add_features(verbs: _Verbs) -> None:
    parser = verbs.add_parser("features", help="turn images into a bank of features")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    extract = actions.add_parser(
        "extract",
        help="run a backbone over all images, once; run it again to continue",
        description="Example: hessalign features extract data/PACS --backbone resnet50 --weights "
        "imagenet. The bank, PACS@resnet50.safetensors, is a data set that every algorithm takes.",
    )
    _add_source(extract)
    add = extract.add_argument
    add(
        "--backbone",
        required=True,
        help="a model of torchvision or timm (timm:NAME), or package.module:name for your own",
    )
    add("--weights", help="imagenet or a file; random without it, unless it brings its own")
    add("--name", help="what the bank calls the backbone (default: its name)")
    add("--output", type=Path, metavar="BANK", help="default: DATA@BACKBONE.safetensors; or .npz")
    add("--size", type=int, default=224, metavar="N", help="height and width (default: 224)")
    add("--cache", type=Path, metavar="DIR", help="cache of the images (default: beside PATH)")
    add("--allow-truncated", action="store_true", help="fill what an image lacks with grey")
    jobs = os.cpu_count() or 1
    add("--jobs", type=int, default=jobs, metavar="N", help="processes (default: all cores)")
    extract.set_defaults(run="features:run_extract", continues=True)

    show = actions.add_parser("show", help="what a bank was made with")
    show.add_argument("bank", type=Path, metavar="BANK", help="the bank")
    show.set_defaults(run="features:run_show")


def _add_datasets(verbs: _Verbs) -> None:
    parser = verbs.add_parser("datasets", help="list, check and prepare data sets")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="the benchmarks, and where to obtain them")
    listing.set_defaults(run="datasets:run_list")

    check = actions.add_parser(
        "check",
        help="count and read all images; exit code 1 if something should be mended",
        description="PATH is a folder of the form domain/class/image, a manifest (.csv or .jsonl "
        "with path, class and domain) or arrays (.npz or .safetensors with x, y and domain). What "
        "a folder's exclude.txt lists, an image per line, is left out by every command.",
    )
    _add_source(check)
    _add_workers(check)
    check.add_argument("--all", action="store_true", help="show all findings")
    check.set_defaults(run="datasets:run_check")

    prepare = actions.add_parser(
        "prepare",
        help="decode and resize all images once; run it again to continue or to bring up to date",
        description="What is stored are the evaluation images of the protocol; training crops are "
        "taken from them.",
    )
    _add_source(prepare)
    _add_workers(prepare)
    add = prepare.add_argument
    add("--size", type=int, default=224, metavar="N", help="height and width (default: 224)")
    add("--cache", type=Path, metavar="DIR", help="where to keep it (default: beside PATH)")
    add("--allow-truncated", action="store_true", help="fill what an image lacks with grey")
    prepare.set_defaults(run="datasets:run_prepare", continues=True)


def _add_source(parser: argparse.ArgumentParser) -> None:
    """Let a command take a data set."""
    add = parser.add_argument
    add("path", metavar="PATH", type=Path, help="the data set, or package.module:function")
    add("--preset", metavar="NAME", help=f"which benchmark it is: {_BENCHMARKS}")


def _add_workers(parser: argparse.ArgumentParser) -> None:
    workers = os.cpu_count() or 1
    parser.add_argument(
        "--workers", type=int, default=workers, metavar="N", help="processes (default: all cores)"
    )


def _add_algorithms(verbs: _Verbs) -> None:
    parser = verbs.add_parser("algorithms", help="list the algorithms, what they align, options")
    parser.add_argument(
        "patterns",
        nargs="*",
        metavar="NAME",
        help="list only these; * and ? stand for any letters, as in 'h*' (with the quotes); or one "
        "of your own as package.module:Name",
    )
    parser.set_defaults(run="algorithms:run")


def _add_convert(verbs: _Verbs) -> None:
    parser = verbs.add_parser(
        "convert",
        help="runs on Colored MNIST of version 0.1, in today's form",
        description="Example: hessalign convert outputs/runs --output outputs/converted\n\n"
        "The new folders are named by the hash of what each run is, so that `hessalign reproduce\n"
        "--cache` finds them. The old ones stay as they are. Runs of other data sets need no\n"
        "conversion.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("old", nargs="+", type=Path, metavar="OLD", help="a run, or a folder that holds runs")
    add("--output", type=Path, required=True, metavar="DIR", help="where the new folders go")
    parser.set_defaults(run="convert:run", continues=True)


VERBS: Final = {
    "demo": _add_demo,
    "train": _add_train,
    "predict": _add_predict,
    "export": _add_export,
    "reproduce": _add_reproduce,
    "sweep": _add_sweep,
    "collect": _add_collect,
    "diagnose": _add_diagnose,
    "attack": _add_attack,
    "features": _add_features,
    "datasets": _add_datasets,
    "algorithms": _add_algorithms,
    "convert": _add_convert,
}


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
    for add_verb in VERBS.values():
        add_verb(verbs)
    return parser
