"""Defaults and ranges of every algorithm, against DomainBed's published ones written out."""

import math

import pytest

from hessalign.bench.algorithms import ALGORITHMS, Choice, Fixed, Power, Uniform, make_config
from hessalign.bench.algorithms.search import run_hyper_parameters, search_space

WHOLE = {"integer": True}
BIG_LR, SMALL_LR = (5e-5, Power(10, -5, -3.5)), (1e-3, Power(10, -4.5, -2.5))
ADVERSARIAL = {
    "lambda": (1.0, Power(10, -2, 2)),
    "weight_decay_d": (0.0, Power(10, -6, -2)),
    "d_steps_per_g_step": (1, Power(2, 0, 3, **WHOLE)),
    "grad_penalty": (0.0, Power(10, -2, 1)),
    "beta1": (0.5, Choice((0.0, 0.5))),
    "mlp_width": (256, Power(2, 6, 10, **WHOLE)),
    "mlp_depth": (3, Choice((3, 4, 5))),
    "mlp_dropout": (0.0, Choice((0.0, 0.1, 0.5))),
    "lr_g": BIG_LR,
    "lr_d": BIG_LR,
    "weight_decay_g": (0.0, Power(10, -6, -2)),
}
TABLE = {
    "erm": {},
    "arm": {},
    "irm": {
        "irm_lambda": (100.0, Power(10, -1, 5)),
        "irm_penalty_anneal_iters": (500, Power(10, 0, 4, **WHOLE)),
    },
    "vrex": {
        "vrex_lambda": (10.0, Power(10, -1, 5)),
        "vrex_penalty_anneal_iters": (500, Power(10, 0, 4, **WHOLE)),
    },
    "groupdro": {"groupdro_eta": (1e-2, Power(10, -3, -1))},
    "mixup": {"mixup_alpha": (0.2, Power(10, -1, 1))},
    "mldg": {"mldg_beta": (1.0, Power(10, -1, 1)), "n_meta_test": (2, Choice((1, 2)))},
    "coral": {"mmd_gamma": (1.0, Power(10, -1, 1))},
    "mmd": {"mmd_gamma": (1.0, Power(10, -1, 1))},
    "dann": ADVERSARIAL,
    "cdann": ADVERSARIAL,
    "mtl": {"mtl_ema": (0.99, Choice((0.5, 0.9, 0.99, 1.0)))},
    "sagnet": {"sag_w_adv": (0.1, Power(10, -2, 1))},
    "rsc": {
        "rsc_f_drop_factor": (1 / 3, Uniform(0, 0.5)),
        "rsc_b_drop_factor": (1 / 3, Uniform(0, 0.5)),
    },
    "andmask": {"tau": (1.0, Uniform(0.5, 1))},
    "sandmask": {"tau": (1.0, Uniform(0, 1)), "k": (10.0, Power(10, -3, 5))},
    "fish": {"meta_lr": (0.5, Choice((0.05, 0.1, 0.5)))},
    "fishr": {
        "lambda": (1000.0, Power(10, 1, 4)),
        "penalty_anneal_iters": (1500, Uniform(0, 5000, **WHOLE)),
        "ema": (0.95, Uniform(0.90, 0.99)),
    },
    "iga": {"penalty": (1000.0, Power(10, 1, 5))},
    "hgp": {"penalty_alpha": (1e-4, Power(10, -3, -5)), "penalty_beta": (5e-3, Power(10, -1, -3))},
    "hutchinson": {
        "penalty_alpha": (1e-3, Power(10, -1, -3)),
        "penalty_beta": (5e-3, Power(10, -2, -4)),
    },
}
OURS = {"gradient", "expected", "diagonal", "full"}
AS_THE_NETWORK = {"lr_g": "lr", "lr_d": "lr", "weight_decay_g": "weight_decay"}
SMALL_ADVERSARIAL = {
    **ADVERSARIAL,
    "lr_g": SMALL_LR,
    "lr_d": SMALL_LR,
    "weight_decay_g": (0.0, Fixed(0.0)),
}
SMALL = {"dann": SMALL_ADVERSARIAL, "cdann": SMALL_ADVERSARIAL}
RELEASED = {
    "mixup": {"mixup_alpha": (0.2, Power(10, -1, -1))},
    "hutchinson": {
        "penalty_alpha": (1e-3, Power(10, 4, 1)),
        "penalty_beta": (5e-3, Power(10, 6, 2)),
    },
}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize(
    ("family", "preset", "special"),
    [("big", "domainbed-2022", {}), ("small", "domainbed-2022", SMALL),
     ("big", "hgp-2023", RELEASED)],
)  # fmt: skip
def test_defaults_and_ranges(name, family, preset, special):
    info = ALGORITHMS[name]
    expected = special.get(name, TABLE[name])
    ranges = dict(search_space(info, family, preset).values())
    assert ranges == {key: distribution for key, (_, distribution) in expected.items()}
    defaults = run_hyper_parameters(info, family, 0, 0, preset=preset).values
    for key, (value, _) in expected.items():
        found = defaults[key] if key in defaults else defaults[AS_THE_NETWORK[key]]
        assert math.isclose(found, value), key


def test_every_algorithm_of_domainbed_is_in_the_table():
    assert set(TABLE) | OURS == set(ALGORITHMS)


def test_the_constant_of_the_papers_code():
    drawn = run_hyper_parameters(ALGORITHMS["mixup"], "big", 3, 1, preset="hgp-2023")
    assert drawn.options["alpha"] == pytest.approx(0.1)


def test_domainbeds_implementation_may_be_asked_of_all():
    for info in ALGORITHMS.values():
        drawn = run_hyper_parameters(info, "big", 1, 0, overrides={"fidelity": "domainbed"})
        assert drawn.options.get("fidelity") == ("domainbed" if info.deviates else None)
    assert {name for name, info in ALGORITHMS.items() if info.deviates} == {
        "irm", "mixup", "mldg", "coral", "mtl", "sagnet", "andmask", "fish", "iga", "arm", "cdann",
        "gradient", "hgp", "hutchinson", "expected", "diagonal", "full",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "probes"),
    [({}, 100), ({"fidelity": "domainbed"}, 300), ({"fidelity": "domainbed", "probes": 7}, 7)],
)
def test_the_probes_of_domainbed_are_used_and_recorded_only_if_given(overrides, probes):
    found = run_hyper_parameters(ALGORITHMS["hutchinson"], "big", 1, 0, overrides=overrides)
    assert make_config("hutchinson", found.options).probes == probes
    plain = run_hyper_parameters(ALGORITHMS["hutchinson"], "big", 1, 0)
    assert found.values == {**plain.values, **overrides}
    assert {"probes", "fidelity"}.isdisjoint(plain.values)


def test_drawing_by_class_is_refused():
    with pytest.raises(ValueError, match="Expected class_balanced as false"):
        run_hyper_parameters(ALGORITHMS["erm"], "big", 0, 0, overrides={"class_balanced": True})
