"""Table 1, measured: what each method aligns, beside the paper's ticks and crosses.

That is, by how much it reduces the dispersion of each attribute, against a reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal, final, get_args

import torch

from hessalign.alignment import TABLE_1
from hessalign.alignment.attribute_dispersion import AttributeDispersion, attribute_dispersions
from hessalign.bench.runs.job import Job
from hessalign.bench.runs.run import TrainedHead, trained_head
from hessalign.paper.experiment import (
    ERM,
    FISHR,
    FULL,
    HGP,
    VREX,
    Experiment,
    Finished,
    Method,
    Options,
    Report,
    hutchinson,
    on_features,
)
from hessalign.paper.feature_sweep import (
    REFERENCE,
    FeatureSweep,
    Selected,
    feature_sweep,
    second_start,
    select_jobs,
    train_all,
    twin,
)
from hessalign.paper.figures import TITLES, plot_reductions, ratio_text
from hessalign.paper.published import TABLE_1 as PUBLISHED
from hessalign.report.tables import markdown_table

Domains = Literal["sources", "all"]
"""Which domains are compared: those trained on, or the unseen one too."""

_Attributes = Mapping[str, AttributeDispersion]
"""All attributes of one trained head."""

THRESHOLD: Final = 0.8
"""A ratio below this, or above its inverse, counts as a change if all trials agree on the side."""


UNCLEAR: Final = 0.5
"""Where chance explains more of the reference's dispersion than this, ratios are not judged."""

Change = Literal["reduced", "raised", "unchanged", "unclear"]


@final
@dataclass(frozen=True)
class Reduction:
    """Ratios of dispersions to the reference's, over trials.

    Attributes:
        mean: Their geometric mean.
        low: The smallest of a trial.
        high: The largest of a trial.
    """

    mean: float
    low: float
    high: float

    @property
    def change(self) -> Change:
        """What the ratios say together."""
        if self.mean < THRESHOLD and self.high < 1:
            return "reduced"
        if self.mean > 1 / THRESHOLD and self.low > 1:
            return "raised"
        return "unchanged"

    def __str__(self) -> str:
        text = ratio_text(self.mean)
        if self.low == self.high:
            return text
        return f"{text} [{ratio_text(self.low)}, {ratio_text(self.high)}]"


def measure(trained: TrainedHead, domains: Domains) -> _Attributes:
    """The dispersions of a head's attributes, between some of its domains."""
    chosen = trained.sources if domains == "sources" else tuple(range(len(trained.names)))
    rows = torch.isin(trained.domain, torch.tensor(chosen))
    return attribute_dispersions(
        trained.z[rows],
        trained.logits[rows],
        trained.y[rows],
        trained.domain[rows],
        loss=trained.loss,
    )


def reductions(
    pairs: Mapping[int, Sequence[tuple[_Attributes, _Attributes]]], *, relative: bool
) -> dict[str, Reduction]:
    """Ratios of a method's dispersions to the reference's: geometric means over heads, by trial."""
    first = next(iter(pairs.values()))[0][0]
    found = {}
    for name in first:
        trials = [
            fmean(_log_ratio(ours[name], reference[name], relative) for ours, reference in group)
            for group in pairs.values()
        ]
        found[name] = Reduction(*(math.exp(x) for x in (fmean(trials), min(trials), max(trials))))
    return found


def _log_ratio(ours: AttributeDispersion, reference: AttributeDispersion, relative: bool) -> float:
    """Logarithm of a ratio of dispersions; one of 0 counts as the smallest positive number."""
    tiny = math.ulp(0.0)
    top, bottom = (
        max(each.relative if relative else each.dispersion, tiny) for each in (ours, reference)
    )
    return math.log(top) - math.log(bottom)


def chance_share(heads: Sequence[_Attributes]) -> dict[str, float]:
    """How much of the dispersion finite samples explain: mean chance part over mean dispersion."""
    shares = {}
    for name in heads[0]:
        whole = math.fsum(head[name].dispersion for head in heads)
        part = math.fsum(head[name].chance for head in heads)
        shares[name] = part / whole if whole > 0 else math.nan
    return shares


def judged(ratio: Reduction, chance: float, noise: Reduction | None = None) -> Change:
    """What a ratio says, if it can say anything.

    Args:
        ratio: The ratio.
        chance: The share of the reference's dispersion that finite samples explain.
        noise: The ratio where nothing but the start differs; a smaller change is none.

    Returns:
        The change.

    Example:
        >>> ratio, noise = Reduction(0.5, 0.5, 0.5), Reduction(3.0, 3.0, 3.0)
        >>> judged(ratio, 0.2), judged(ratio, 0.9), judged(ratio, 0.2, noise)
        ('reduced', 'unclear', 'unchanged')
    """
    if not chance <= UNCLEAR:
        return "unclear"
    if noise is not None and abs(math.log(ratio.mean)) <= abs(math.log(noise.mean)):
        return "unchanged"
    return ratio.change


def plain(found: Mapping[str, Reduction], changes: Mapping[str, Change]) -> dict[str, Any]:
    """Reductions as plain values, with what they say."""
    return {
        name: {"ratio": each.mean, "low": each.low, "high": each.high, "change": changes[name]}
        for name, each in found.items()
    }


_CORAL: Final = Method("CORAL", "coral")
_IGA: Final = Method("IGA", "iga")
_FISH: Final = Method("Fish", "fish")
_METHODS: Final = (VREX, _CORAL, _IGA, _FISH, FISHR, HGP, hutchinson(None), FULL)
_NOISE: Final = Method("ERM over another start", "second_start")

_Pairs = dict[int, list[tuple[TrainedHead, TrainedHead]]]
"""By trial, heads of a method each with its reference."""

_READING: Final = (
    "Each cell is the dispersion of an attribute over domains, (1/E) Σ_e ‖M_e − M̄‖², as a multiple "
    "of ERM's: 1 means no change, less means closer domains; geometric mean, in brackets the "
    "smallest and largest trial. *Raw* compares dispersions as they are, so a method that shrinks "
    "features shrinks everything. *Relative* first divides each dispersion by the mean squared "
    "norm of the attribute over samples, so that scale drops out. ✓ and ✗ are the paper's Table 1, "
    "which has one row for all Hessian alignment. ↓ marks a ratio below {low:g} and ↑ one above "
    "{high:g} where all trials are on the same side of 1. *Chance* is the share of ERM's "
    "dispersion that finite samples alone explain; a column where it is above {unclear:.0%} is "
    "marked ? and not judged."
)
_SOURCES: Final[dict[Domains, str]] = {
    "sources": "between training domains",
    "all": "between all domains, the unseen one too",
}
_HELD_OUT: Final = {
    "Colored MNIST": (
        "The unseen domain's images, none of them trained on, a third coloured like each domain. "
        "The reference is ERM with the same seed, so the same data and the same start. With "
        "everything but colour alike, the mean of an attribute is linear in the correlation of "
        "colour and label, so without sampling noise the raw ratios between training domains and "
        "between all domains are the same; those between all domains have far less of it."
    ),
    "features": (
        "{dataset}, the parts of domains that were held out. For each trial and test domain the "
        "draw of hyper-parameters that is best on the training domains' held-out parts (among "
        "{draws}); the reference is ERM with the same learning rate, weight decay, dropout, "
        "batch size and split. Ratios of a trial are the geometric mean over its test domains. "
        "*ERM over another start* compares selected runs of ERM with the same training from "
        "another start that was not selected: what chance does, and selection, which looks at the "
        "same held-out samples. ↓ and ↑ are only "
        "given where a change is larger than that."
    ),
}


def _present(finished: Finished, options: Options) -> Report:
    """Measure all methods on what there is."""
    texts = [_READING.format(low=THRESHOLD, high=1 / THRESHOLD, unclear=UNCLEAR)]
    data: dict[str, Any] = {}
    figures: dict[str, Callable[[Path], None]] = {}
    found, missing = _colored_mnist_pairs(finished)
    parts: list[tuple[str, str, dict[Method, _Pairs], list[str]]] = [
        ("Colored MNIST", _HELD_OUT["Colored MNIST"], found, missing)
    ]
    entry: dict[str, Any] = {}
    sweep = feature_sweep(options)
    if sweep is not None:
        found, missing, chosen = _feature_pairs(sweep)
        counts = sorted({each.draws for group in chosen.values() for each in group})
        draws = " to ".join(map(str, sorted({counts[0], counts[-1]}))) if counts else "0"
        text = _HELD_OUT["features"].format(dataset=sweep.dataset, draws=draws)
        parts.append((sweep.dataset, text, found, missing))
        entry["selected"] = {
            name: [_describe_selected(each) for each in group] for name, group in chosen.items()
        }
    for title, text, pairs, lacking in parts:
        section, values = _describe_part(pairs, title, options)
        without = f"No runs yet: {', '.join(lacking)}." if lacking else ""
        texts += [f"## {title}", *filter(None, (text, section, without))]
        data[title] = values
        if values["methods"]:
            figures[_file_name(title)] = _plotter(values["methods"], title)
    return Report("\n\n".join(texts), {"data_sets": data, **entry}, figures)


def _plotter(methods: Sequence[Mapping[str, Any]], title: str) -> Callable[[Path], None]:
    """The function that draws one data set."""
    return lambda path: plot_reductions(methods, path, title)


def _file_name(title: str) -> str:
    """The name of the figure of a data set, lower case and without spaces."""
    return "table1-" + title.lower().replace(" ", "-").replace("@", "-")


def _colored_mnist_pairs(finished: Finished) -> tuple[dict[Method, _Pairs], list[str]]:
    """Heads of Colored MNIST by method, each with ERM's of its seed; and those without runs."""
    reference = _held_out_heads(finished, ERM)
    found: dict[Method, _Pairs] = {}
    missing = [] if reference else [ERM.title]
    for method in _METHODS:
        pairs: _Pairs = {
            seed: [(head, reference[seed])]
            for seed, head in _held_out_heads(finished, method).items()
            if seed in reference
        }
        if pairs:
            found[method] = pairs
        else:
            missing.append(method.title)
    return found, missing


def _held_out_heads(finished: Finished, method: Method) -> dict[int, TrainedHead]:
    """Heads of the restarts of a method, with images that none was trained on, by seed."""
    return {run.seed: trained_head(run.load(), held_out=True) for run in finished(method, None)}


def _feature_pairs(
    sweep: FeatureSweep,
) -> tuple[dict[Method, _Pairs], list[str], dict[str, list[Selected]]]:
    """Heads on features by method, each with its twin of ERM."""
    chosen = select_jobs(sweep, [REFERENCE, *(method.algorithm for method in _METHODS)])
    wanted: dict[Method, list[tuple[Job, Job]]] = {
        _NOISE: [(each.job, second_start(each.job)) for each in chosen[REFERENCE]]
    }
    methods = [on_features(method) for method in _METHODS]
    for method in methods:
        wanted[method] = [(each.job, twin(each.job)) for each in chosen[method.algorithm]]
    runs = train_all(sweep, [job for group in wanted.values() for pair in group for job in pair])
    heads = {job: trained_head(run.load(), held_out=True) for job, run in runs.items()}
    found: dict[Method, _Pairs] = {}
    for method, jobs in wanted.items():
        pairs: _Pairs = {}
        for ours, reference in jobs:
            if ours in heads and reference in heads:
                pairs.setdefault(ours.trial_seed, []).append((heads[ours], heads[reference]))
        if pairs:
            found[method] = pairs
    return found, [method.title for method in methods if method not in found], chosen


def _describe_selected(each: Selected) -> dict[str, Any]:
    """A selected job as plain values."""
    job = each.job
    return {
        "trial": job.trial_seed,
        "test_domain": job.test_domains[0],
        "hparams_seed": job.hparams_seed,
        "validation": each.validation,
        "test": each.test,
        "draws": each.draws,
    }


def _describe_part(
    found: Mapping[Method, _Pairs], title: str, options: Options
) -> tuple[str, dict[str, Any]]:
    """All tables of one data set, and the values in them."""
    texts: list[str] = []
    entries: list[dict[str, Any]] = [
        {"method": method.title, "algorithm": method.algorithm, "runs": _count(pairs)}
        for method, pairs in found.items()
    ]
    values: dict[str, Any] = {"methods": entries, "chance": {}}
    groups = [group for pairs in found.values() for group in pairs.values()]
    heads = list(dict.fromkeys(head for group in groups for pair in group for head in pair))
    for domains in get_args(Domains) if found else ():
        attributes = {  # of each head once, though many methods have the same reference
            head: measure(head, domains)
            for head in options.counted(heads, f"measuring {title}, {_SOURCES[domains]}", "heads")
        }
        measured = {
            method: {
                trial: [(attributes[ours], attributes[erm]) for ours, erm in group]
                for trial, group in pairs.items()
            }
            for method, pairs in found.items()
        }
        chance = chance_share(
            [erm for pairs in measured.values() for group in pairs.values() for _, erm in group]
        )
        values["chance"][domains] = chance
        for kind in ("raw", "relative"):
            rows = []
            noise: Mapping[str, Reduction] = {}
            for entry, (method, pairs) in zip(entries, measured.items(), strict=True):
                ratios = reductions(pairs, relative=kind == "relative")
                changes = {
                    name: judged(ratio, chance[name], noise.get(name))
                    for name, ratio in ratios.items()
                }
                noise = ratios if method is _NOISE else noise
                entry.setdefault(kind, {})[domains] = plain(ratios, changes)
                entry["published"] = list(PUBLISHED.get(method.algorithm, ()))
                rows.append([method.title, str(entry["runs"]), *_cells(method, ratios, changes)])
            rows.append(["*chance*", "", *(f"{100 * chance[name]:.0f} %" for name in TABLE_1)])
            header = ["method", "runs", *(TITLES[name] for name in TABLE_1)]
            texts.append(f"### {kind.capitalize()}, {_SOURCES[domains]}")
            texts.append(markdown_table(header, rows))
            texts.append(_agreement(entries, kind, domains))
    return "\n\n".join(texts), values


def _count(pairs: _Pairs) -> int:
    """How many heads a row has."""
    return sum(map(len, pairs.values()))


def _cells(
    method: Method, ratios: Mapping[str, Reduction], changes: Mapping[str, Change]
) -> list[str]:
    """A row of the table: the paper's mark, ours, and the ratio, by attribute."""
    arrows = {"reduced": "↓", "raised": "↑", "unchanged": "·", "unclear": "?"}
    ticks = PUBLISHED.get(method.algorithm)
    texts = []
    for name, ratio in ratios.items():
        paper = "" if ticks is None else "✓ " if name in ticks else "✗ "
        texts.append(f"{paper}{arrows[changes[name]]} {ratio}")
    return texts


def _agreement(entries: Sequence[Mapping[str, Any]], kind: str, domains: Domains) -> str:
    """How many of the paper's ticks and crosses the ratios bear out."""
    marks: dict[bool, list[str]] = {True: [], False: []}
    for entry in entries:
        if entry["algorithm"] in PUBLISHED:
            for name, each in entry[kind][domains].items():
                if each["change"] == "unclear":
                    continue
                marks[name in entry["published"]].append(each["change"])
    ticks, crosses = ((group.count("reduced"), len(group)) for group in marks.values())
    return (
        f"Of what can be judged, {ticks[0]} of the {ticks[1]} cells that the paper ticks are "
        f"reduced, and {crosses[0]} of the {crosses[1]} that it crosses."
    )


TABLE_1_MEASURED = Experiment(
    "table1",
    "Table 1, measured: what each method aligns",
    _present,
    tuple((method, None) for method in (ERM, *_METHODS)),
)
