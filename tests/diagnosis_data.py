"""Samples of several domains for tests of diagnoses."""

from dataclasses import replace

import pytest
import torch

from hessalign.bench.data import make_shifted_data
from hessalign.diagnosis import diagnose
from hessalign.diagnosis.causes import CauseReport, Finding
from hessalign.diagnosis.explanations import CAUSES
from hessalign.diagnosis.remedies import REMEDIES, RemedyReport, Trial
from hessalign.diagnosis.scores import Estimate
from hessalign.diagnosis.transfer import SiteTransfer, TransferReport
from hessalign.diagnosis.verdict import make_verdict


def shifted(kind, *, domains=3, samples=300, seed=0, **options):
    """Sources and target of a synthetic shift as features, labels and domains."""
    data = make_shifted_data(kind, seed, domains=domains, samples=samples, **options)
    parts = (*data.source, data.target)
    return (
        torch.cat([part.x for part in parts]),
        torch.cat([part.y for part in parts]),
        torch.arange(len(parts)).repeat_interleave(samples),
    )


def alike(domains, samples, features, classes=3, *, seed=0, dtype=torch.float64):
    """Domains that are draws from one distribution."""
    generator = torch.Generator().manual_seed(seed)
    count = domains * samples
    y = torch.randint(classes, (count,), generator=generator)
    centres = torch.randn(classes, features, generator=generator, dtype=dtype)
    z = centres[y] + torch.randn(count, features, generator=generator, dtype=dtype)
    return z, y, torch.arange(domains).repeat_interleave(samples)


def estimate(value, half=0.05):
    """A value with an interval of this half width."""
    return Estimate(value, value - half, value + half)


def scores(accuracy, auc=True, half=0.05):
    """All metrics of a model that is right so often."""
    found = {
        "accuracy": estimate(accuracy, half),
        "balanced_accuracy": estimate(accuracy, half),
        "auc": estimate(min(0.99, accuracy + 0.05), half),
        "log_loss": estimate(1.2 - accuracy, half),
        "calibration_error": estimate((1 - accuracy) / 3, half / 3),
    }
    return found if auc else {name: each for name, each in found.items() if name != "auc"}


def transfer_report(unseen, within, *, auc=True, half=0.05, chance=0.5, guess=0.8):
    """Whether models hold that are right so often at each site, unseen and of its own."""

    def drops(one, other, half):
        return {
            name: estimate((other[name].value - one[name].value) * (1 if i < 3 else -1), half)
            for i, name in enumerate(one)
        }

    def mean(values, half):
        return scores(sum(values) / len(values), auc, half)

    less = half / len(unseen) ** 0.5
    sites = []
    for e, accuracy in enumerate(unseen):
        seen, own = scores(accuracy, auc, half), None
        drop = None
        if within is not None:
            own = scores(within[e], auc, half)
            drop = drops(seen, own, half)
        sites.append(SiteTransfer(e, 100 + 50 * e, seen, own, drop, 0.6, guess))
    average, own_average, drop = mean(unseen, less), None, None
    if within is not None:
        own_average = mean(within, less)
        drop = drops(average, own_average, less)
    how = "Every site was left out in turn, and all of a model fitted to the others."
    return TransferReport(tuple(sites), average, own_average, drop, chance, how)


def cause_report(*findings, odd=None):
    """What was found, each as cause, site and whether it costs; other tests found nothing."""
    units = {"label": "largest difference of class shares", "offset": "standard deviations"}
    found = tuple(
        Finding(cause, e, 0.003, 0.42, units.get(cause, "units"), costs, (2, 0))
        for cause, e, costs in findings
    )
    p_values = dict.fromkeys(CAUSES, 0.6) | {each.cause: each.p_value for each in found}
    return CauseReport(found, p_values, odd, "Permutation of the sites' names, 999 times.")


def remedy_report(plain, gains, recommended="nothing", left_out=None, half=0.03):
    """What remedies give that change the accuracy of every site by so much."""
    trials = []
    for remedy in REMEDIES:
        if remedy != "nothing" and remedy not in gains:
            continue
        gain = gains.get(remedy, 0.0)
        sites = tuple(value + gain * (0.5 + i % 2) for i, value in enumerate(plain))
        mean = sum(sites) / len(sites)
        choices = {"align": 0.1, "leave_out": 0}.get(remedy)
        trials.append(
            Trial(
                remedy,
                mean,
                estimate(gain, half if remedy != "nothing" else 0.0),
                sites,
                {"accuracy": mean, "balanced_accuracy": mean, "auc": mean, "log_loss": 1 - mean},
                () if choices is None else (choices,) * len(sites),
            )
        )
    how = "Each remedy under nested leave-one-site-out, compared in pairs."
    return RemedyReport(tuple(trials), recommended, left_out, how)


def evidence_only(*data, **options):
    """A diagnosis whose three answers are missing or empty, which takes less time."""
    nothing = CauseReport((), {}, None, "")
    answers = {"transfer_report": None, "cause_report": nothing, "remedy_report": None}
    with pytest.MonkeyPatch.context() as patch:
        for name, answer in answers.items():
            place = f"hessalign.diagnosis.diagnosis.{name}"
            patch.setattr(place, lambda *_, answer=answer, **__: answer)
        return diagnose(*data, **options)


def answered(diagnosis, transfer, causes, remedies):
    """A diagnosis with these answers."""
    verdict = make_verdict(diagnosis.domains, transfer, causes, remedies, diagnosis.feature_names)
    return replace(diagnosis, transfer=transfer, causes=causes, remedies=remedies, verdict=verdict)
