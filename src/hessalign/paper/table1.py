"""Table 1, measured: what each method aligns, beside the paper's ticks and crosses.

That is, by how much it reduces the dispersion of each attribute, against a reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal, final

import torch

from hessalign.alignment import TABLE_1
from hessalign.alignment.distance import AttributeDispersion, attribute_dispersions
from hessalign.bench.runs.job import Job
from hessalign.bench.runs.run import TrainedHead, trained_head
from hessalign.paper import sweeps
from hessalign.paper.experiment import (
    Experiment,
    Finished,
    FinishedRun,
    Method,
    Options,
    Report,
    hutchinson,
    no_runs,
    plain,
    reading,
)
from hessalign.paper.figures import Rows, make_axes, save
from hessalign.paper.published import TABLE_1 as PUBLISHED
from hessalign.report.tables import markdown_table

Domains = Literal["sources", "all"]
"""Which domains are compared: those trained on, or the unseen one too."""

_Attributes = Mapping[str, AttributeDispersion]  # all attributes of one trained head
_TITLES: Final = {name: name.replace("_", " × ") for name in TABLE_1}

_THRESHOLD: Final = 0.8
"""A ratio below this, or above its inverse, counts as a change if all trials agree on the side."""

_UNCLEAR: Final = 0.5
"""Where chance explains more of the reference's dispersion than this, ratios are not judged."""

_Change = Literal["reduced", "raised", "unchanged", "unclear"]
_ARROWS: Final = {"reduced": "↓", "raised": "↑", "unchanged": "·", "unclear": "?"}


@final
@dataclass(frozen=True)
class Reduction:
    """Ratios of dispersions to the reference's over trials: their geometric mean, and range."""

    mean: float
    low: float
    high: float

    def change(self, chance: float = 0.0, noise: Reduction | None = None) -> _Change:
        """What the ratios say together, if it is more than where nothing but the start differs."""
        if not chance <= _UNCLEAR:  # the share of the reference's dispersion
            return "unclear"
        if noise is not None and abs(math.log(self.mean)) <= abs(math.log(noise.mean)):
            return "unchanged"
        if self.mean < _THRESHOLD and self.high < 1:
            return "reduced"
        if self.mean > 1 / _THRESHOLD and self.low > 1:
            return "raised"
        return "unchanged"

    def __str__(self) -> str:
        text = _ratio_text(self.mean)
        if self.low == self.high:
            return text
        return f"{text} [{_ratio_text(self.low)}, {_ratio_text(self.high)}]"


def _ratio_text(ratio: float) -> str:
    """A ratio with two significant digits, one below a tenth; large and small as powers of 10."""
    if 0.001 <= ratio < 0.1:
        return f"{ratio:.1g}"
    return f"{ratio:.2g}" if 0.1 <= ratio < 99.5 else f"{ratio:.0e}"


def measure(trained: TrainedHead, domains: Domains) -> _Attributes:
    """The dispersions of a head's attributes, between some of its domains."""
    chosen = trained.sources if domains == "sources" else tuple(range(len(trained.names)))
    rows = torch.isin(trained.domain, torch.tensor(chosen))
    samples = (trained.z, trained.logits, trained.y, trained.domain)
    return attribute_dispersions(*(each[rows] for each in samples), loss=trained.loss)


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


(_ERM,) = plain("erm")
_METHODS: Final = (
    *plain("vrex", "coral", "iga", "fish", "fishr", "hgp"),
    hutchinson(None),
    *plain("full"),
)
_NOISE: Final = Method("ERM over another start", "second_start")

_Wanted = dict[Method, list[tuple[Job, Job]]]  # runs of a method, each with its reference
_Pairs = dict[int, list[tuple[TrainedHead, TrainedHead]]]
"""By trial, heads of a method each with its reference."""

_COMPARED: Final[dict[Domains, str]] = {
    "sources": "between training domains",
    "all": "between all domains, the unseen one too",
}


def _present(finished: Finished) -> Report:
    """Measure all methods on what there is."""
    options = finished.options
    texts: list[str] = []
    data: dict[str, Any] = {"data_sets": {}}
    figures: dict[str, Callable[[Path], None]] = {}
    reference = _ERM.jobs(options, None)
    wanted: _Wanted = {
        method: list(zip(method.jobs(options, None), reference, strict=True))
        for method in (_ERM, *_METHODS)
    }
    runs = {run.job: run for method in wanted for run in finished(method)}
    parts = [("Colored MNIST", reading("table1-colored-mnist"), wanted, runs)]
    bank = sweeps.swept_bank(options)
    if bank is not None:
        methods = plain(*(method.algorithm for method in _METHODS))
        names = [sweeps.REFERENCE, *(method.algorithm for method in methods)]
        chosen = sweeps.select_jobs(options, names)
        picked = [each for group in chosen.values() for each in group.values()]
        draws = sweeps.draw_range(each.draws for each in picked)
        text = reading("table1-features", dataset=bank, draws=draws)
        wanted = {_NOISE: [(job, sweeps.second_start(job)) for job in chosen[sweeps.REFERENCE]]}
        for method in methods:
            wanted[method] = [(job, sweeps.twin(job)) for job in chosen[method.algorithm]]
        jobs = [job for pairs in wanted.values() for pair in pairs for job in pair]
        parts.append((bank, text, wanted, sweeps.train_all(options, jobs)))
        data["selected"] = {name: list(group.values()) for name, group in chosen.items()}
    for title, text, wanted, runs in parts:
        found = _pair_heads(wanted, runs)
        lacking = no_runs([m.title for m in wanted if m not in found and m is not _NOISE])
        found.pop(_ERM, None)  # which every method is compared with
        tables, values = _describe_part(found, title, options)
        texts += [f"## {title}", text, *tables, *lacking]
        data["data_sets"][title] = values
        if values["methods"]:
            name = title.lower().replace(" ", "-").replace("@", "-")
            figures[f"table1-{name}"] = partial(_plot_reductions, values["methods"], title)
    facts = {"low": _THRESHOLD, "high": 1 / _THRESHOLD, "unclear": _UNCLEAR}
    return Report(texts, data, figures, facts)


def _pair_heads(wanted: _Wanted, runs: Mapping[Job, FinishedRun]) -> dict[Method, _Pairs]:
    """Heads by method, each with its reference, on samples that neither was trained on."""
    heads = {job: trained_head(run.load(), held_out=True) for job, run in runs.items()}
    found: dict[Method, _Pairs] = {}
    for method, jobs in wanted.items():
        for ours, reference in jobs:
            if ours in heads and reference in heads:
                trials = found.setdefault(method, {})
                trials.setdefault(ours.trial_seed, []).append((heads[ours], heads[reference]))
    return found


def _describe_part(
    found: Mapping[Method, _Pairs], title: str, options: Options
) -> tuple[list[str], dict[str, Any]]:
    """All tables of one data set, and the values in them."""
    texts: list[str] = []
    entries = {
        method: method.entry(runs=sum(map(len, pairs.values()))) for method, pairs in found.items()
    }
    values: dict[str, Any] = {"methods": list(entries.values()), "chance": {}}
    groups = [group for pairs in found.values() for group in pairs.values()]
    heads = list(dict.fromkeys(head for group in groups for pair in group for head in pair))
    for domains, which in _COMPARED.items() if found else ():
        attributes = {  # of each head once, though many methods have the same reference
            head: measure(head, domains)
            for head in options.counted(heads, f"measuring {title}, {which}", "heads")
        }
        chance = chance_share([attributes[erm] for group in groups for _, erm in group])
        values["chance"][domains] = chance
        for kind in ("raw", "relative"):
            rows = []
            noise: Mapping[str, Reduction] = {}
            for method, pairs in found.items():
                measured = {
                    trial: [(attributes[ours], attributes[erm]) for ours, erm in group]
                    for trial, group in pairs.items()
                }
                ratios = reductions(measured, relative=kind == "relative")
                changes = {
                    name: ratio.change(chance[name], noise.get(name))
                    for name, ratio in ratios.items()
                }
                noise = ratios if method is _NOISE else noise
                entry = entries[method]
                entry.setdefault(kind, {})[domains] = {
                    name: {"ratio": x.mean, "low": x.low, "high": x.high, "change": changes[name]}
                    for name, x in ratios.items()
                }
                ticks = entry["published"] = list(PUBLISHED.get(method.algorithm, ()))
                cells = [
                    f"{_paper_mark(ticks, name)}{_ARROWS[changes[name]]} {ratio}"
                    for name, ratio in ratios.items()
                ]
                rows.append([method.title, str(entry["runs"]), *cells])
            rows.append(["*chance*", "", *(f"{100 * chance[name]:.0f} %" for name in _TITLES)])
            texts += [
                f"### {kind.capitalize()}, {which}",
                markdown_table(["method", "runs", *_TITLES.values()], rows),
                _agreement(values["methods"], kind, domains),
            ]
    return texts, values


def _paper_mark(ticks: Sequence[str], name: str) -> str:
    """What the paper says of an attribute, if it has a row for the method."""
    return ("✓ " if name in ticks else "✗ ") if ticks else ""


def _agreement(entries: Rows, kind: str, domains: Domains) -> str:
    """How many of the paper's ticks and crosses the ratios bear out."""
    changes: dict[bool, list[str]] = {True: [], False: []}
    for entry in entries:
        for name, each in entry[kind][domains].items() if entry["published"] else ():
            if each["change"] != "unclear":
                changes[name in entry["published"]].append(each["change"])
    ticks, crosses = (f"{x.count('reduced')} of the {len(x)}" for x in changes.values())
    return (
        f"Of what can be judged, {ticks} cells that the paper ticks are reduced, and {crosses} "
        "that it crosses."
    )


_KINDS: Final = {"raw": "raw", "relative": "relative to the attribute's mean square"}
_DOMAINS: Final = {"sources": "training domains", "all": "all domains"}
_LIMIT: Final = 4.0  # the colours end at ratios of 2 to the power of this, and its inverse


def _plot_reductions(methods: Rows, title: str, path: Path) -> None:
    """Ratios of dispersions to ERM's, with the paper's ticks and crosses."""
    size = (12.5, 2.2 + 0.8 * len(methods))
    figure, grid = make_axes(*size, len(_DOMAINS), len(_KINDS), sharex=True, sharey=True)
    for row, (domains, which) in zip(grid, _DOMAINS.items(), strict=True):
        for axes, (kind, heading) in zip(row, _KINDS.items(), strict=True):
            cells = [(entry["published"], entry[kind][domains]) for entry in methods]
            image = _heat_map(axes, cells)
            axes.set_title(f"{which}, {heading}", fontsize=9)
            axes.tick_params(length=0, labelsize=8)
            axes.set_xticks(range(len(_TITLES)), list(_TITLES.values()), rotation=30, ha="right")
            axes.set_yticks(range(len(methods)), [entry["method"] for entry in methods])
    bar = figure.colorbar(image, ax=grid, shrink=0.6, ticks=[-4, -2, 0, 2, 4])
    bar.ax.set_yticklabels(["1/16", "1/4", "1", "4", "16"])
    bar.set_label("dispersion over ERM's", fontsize=8)
    figure.suptitle(
        f"Table 1 measured on {title} (✓ ✗: the paper's; grey: mostly chance)", fontsize=11
    )
    save(figure, path, boxed=True)


def _heat_map(
    axes: Any,  # noqa: ANN401 - matplotlib is an optional dependency
    rows: Sequence[tuple[Sequence[str], Mapping[str, Mapping[str, Any]]]],
) -> Any:  # noqa: ANN401
    """Cells of one panel; those that cannot be judged have no colour."""
    colours = [
        [
            math.nan
            if cells[name]["change"] == "unclear"
            else max(-_LIMIT, min(_LIMIT, math.log2(max(cells[name]["ratio"], 1e-300))))
            for name in _TITLES
        ]
        for _, cells in rows
    ]
    axes.set_facecolor("#e4e4e4")
    image = axes.imshow(colours, cmap="RdBu_r", vmin=-_LIMIT, vmax=_LIMIT, aspect="auto")
    for row, (ticked, cells) in enumerate(rows):
        for column, name in enumerate(_TITLES):
            text = _paper_mark(ticked, name) + _ratio_text(cells[name]["ratio"])
            weight = "bold" if name in ticked else "normal"
            colour = "white" if abs(colours[row][column]) > 0.7 * _LIMIT else "black"
            style = {"ha": "center", "va": "center", "fontsize": 8, "fontweight": weight}
            axes.text(column, row, text, color=colour, **style)
    return image


TABLE_1_MEASURED: Final = Experiment(
    "table1", "Table 1, measured: what each method aligns", _present, {None: (_ERM, *_METHODS)}
)
