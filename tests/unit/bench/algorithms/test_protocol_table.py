"""Defaults and ranges of every algorithm, against DomainBed's published ones written out."""

import math

import pytest

from hessalign.bench.algorithms import ALGORITHMS, Choice, Fixed, Power, Uniform, make_config
from hessalign.bench.algorithms.search import common_space, run_hyper_parameters, search_space

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
BOTTLENECK = {
    "ib_lambda": (100.0, Power(10, -1, 5)),
    "ib_penalty_anneal_iters": (500, Power(10, 0, 4, **WHOLE)),
}
CONTRAST = {
    "lmbda": (0.1, Choice((1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2))),
    "temperature": (0.1, Choice((0.05, 0.1))),
}
UNIFORM = {
    "urm_adv_lambda": (0.1, Uniform(0, 0.2)),
    "urm_generator_output": ("tanh", Choice(("tanh", "relu"))),
    "urm_discriminator_hidden_layers": (1, Choice((1, 2, 3))),
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
    "sd": {"sd_reg": (0.1, Power(10, -5, -1))},
    "eqrm": {
        "eqrm_quantile": (0.75, Uniform(0.5, 0.99)),
        "eqrm_burnin_iters": (2500, Power(10, 2.5, 3.5)),
        "eqrm_lr": (1e-6, Power(10, -7, -5)),
    },
    "rdm": {
        "rdm_lambda": (5.0, Uniform(0.1, 10)),
        "rdm_penalty_anneal_iters": (1500, Uniform(800, 2700, **WHOLE)),
        "variance_weight": (0.004, Uniform(0.001, 0.007)),
        "rdm_lr": (1.5e-5, Uniform(8e-6, 2e-5)),
    },
    "ib_erm": BOTTLENECK,
    "ib_irm": {
        "irm_lambda": (100.0, Power(10, -1, 5)),
        "irm_penalty_anneal_iters": (500, Power(10, 0, 4, **WHOLE)),
        **BOTTLENECK,
    },
    "cad": CONTRAST,
    "condcad": CONTRAST,
    "causirl_coral": {"mmd_gamma": (1.0, Power(10, -1, 1))},
    "causirl_mmd": {"mmd_gamma": (1.0, Power(10, -1, 1))},
    "urm": UNIFORM | {"urm_discriminator_lr": (5e-5, Power(10, -6, -4.5))},
    "hgp": {"penalty_alpha": (1e-4, Power(10, -3, -5)), "penalty_beta": (5e-3, Power(10, -1, -3))},
    "hutchinson": {
        "penalty_alpha": (1e-3, Power(10, -1, -3)),
        "penalty_beta": (5e-3, Power(10, -2, -4)),
    },
    # DomainBed's HEAD; the constant of ERM++'s averaging is no hyper-parameter there.
    "selfreg": {},
    "trm": {
        "cos_lambda": (1e-4, Power(10, -5, 0)),
        "iters": (200, Power(10, 0, 4, **WHOLE)),
        "groupdro_eta": (1e-2, Power(10, -3, -1)),
    },
    "transfer": {
        "t_lambda": (1.0, Power(10, -2, 1)),
        "delta": (2.0, Uniform(0.1, 3.0)),
        "d_steps_per_g": (10, Choice((1, 2, 5))),
        "lr_d": (1e-3, Power(10, -4.5, -2.5)),
    },
    "adrmx": {
        "cnt_lambda": (1.0, Fixed(1.0)),
        "dclf_lambda": (1.0, Fixed(1.0)),
        "disc_lambda": (0.75, Fixed(0.75)),
        "rmxd_lambda": (1.0, Fixed(1.0)),
        "d_steps_per_g_step": (2, Fixed(2)),
        "beta1": (0.5, Fixed(0.5)),
        "mlp_width": (256, Fixed(256)),
        "mlp_depth": (9, Choice((8, 9, 10))),
        "mlp_dropout": (0.0, Fixed(0.0)),
    },
    "ermplusplus": {
        "linear_lr": (5e-5, Power(10, -5, -3.5)),
        "linear_steps": (500, Fixed(500)),
        "sma_start_iter": (600, Fixed(600)),
    },
    # Of their authors' code on DomainBed.
    "agrsum": {},
    "agrrand": {},
    "cma": {
        "penalty_alpha": (316.0, Power(10, 1, 4)),
        "penalty_beta": (316.0, Power(10, 1, 4)),
    },
    "miro": {"ld": (0.1, Choice((1.0, 0.1, 0.01, 0.001))), "lr_mult": (10.0, Fixed(10.0))},
    "sagm": {
        "rho": (0.05, Choice((0.01, 0.02, 0.05, 0.1))),
        "alpha": (1e-3, Choice((0.01, 0.02, 0.05, 0.1))),
    },
}
OURS = {"gradient", "expected", "diagonal", "full", "ddc", "mdan"}
AS_THE_NETWORK = {
    "lr_g": "lr", "lr_d": "lr", "weight_decay_g": "weight_decay", "urm_discriminator_lr": "lr",
}  # fmt: skip
SMALL_ADVERSARIAL = {
    **ADVERSARIAL,
    "lr_g": SMALL_LR,
    "lr_d": SMALL_LR,
    "weight_decay_g": (0.0, Fixed(0.0)),
}
SMALL = {
    "dann": SMALL_ADVERSARIAL,
    "cdann": SMALL_ADVERSARIAL,
    "urm": UNIFORM | {"urm_discriminator_lr": (1e-3, Power(10, -5.5, -3.5))},
}
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
        assert found == value or math.isclose(found, value), key


@pytest.mark.parametrize(
    ("family", "default", "values"),
    [("big", 3e-5, (2e-5, 3e-5, 4e-5, 5e-5)), ("small", 3e-3, (5e-4, 1e-3, 2e-3, 3e-3))],
)
def test_adrmx_has_learning_rates_of_its_own(family, default, values):
    assert common_space(family, "ADRMX")["lr"] == (default, Choice(values))
    assert common_space("features", "ADRMX")["lr"] == common_space("features")["lr"]


def test_what_sets_in_late_does_so_after_the_same_share_of_a_run_on_features():
    drawn = run_hyper_parameters(ALGORITHMS["ermplusplus"], "features", 0, 0, steps=501)
    assert (drawn.options["probe_steps"], drawn.options["sma_start"]) == (50, 60)
    drawn = run_hyper_parameters(ALGORITHMS["trm"], "features", 0, 0, steps=501)
    assert drawn.options["transfer_start"] == 20


def test_every_algorithm_of_domainbed_is_in_the_table():
    assert set(TABLE) | OURS == set(ALGORITHMS)


RDM = {
    "DomainNet": ((0.5, 0.1, 1), (2400, 1500, 3000), (0.0, 0.0, 0.0), (40, 30, 60)),
    "PACS": ((5.0, 1, 10), (1500, 800, 2700), (0.004, 0.001, 0.007), (88, 70, 100)),
    "TerraIncognita": ((5.0, 1, 10), (1500, 800, 2700), (0.0, 0.0, 0.0), (40, 30, 60)),
    "OfficeHome": ((5.0, 0.1, 10), (1500, 800, 2700), (0.0, 0.0, 0.0), (88, 70, 100)),
    "VLCS": ((5.0, 0.1, 10), (1500, 800, 2700), (0.004, 0.001, 0.007), (88, 70, 100)),
}
"""By data set the default, the least and the greatest of four hyper-parameters."""


@pytest.mark.parametrize("dataset", RDM)
def test_rdm_has_ranges_by_data_set(dataset):
    info, family = ALGORITHMS["rdm"], "DomainNet" if dataset == "DomainNet" else "big"
    keys = ("rdm_lambda", "rdm_penalty_anneal_iters", "variance_weight", "batch_size")
    draws = [run_hyper_parameters(info, family, k, 0, dataset=dataset) for k in range(200)]
    for key, (default, least, greatest) in zip(keys, RDM[dataset], strict=True):
        first, *others = [each.values[key] for each in draws]
        assert first == default
        assert least <= min(others) <= least + 0.1 * (greatest - least)
        assert greatest - 0.1 * (greatest - least) <= max(others) <= greatest
    plan = draws[7]
    assert plan.options["matching_weight"] == plan.values["rdm_lambda"]


def test_a_late_learning_rate_keeps_its_share_of_the_rate_on_features():
    for name, key in (("eqrm", "eqrm_lr"), ("rdm", "rdm_lr")):
        for seed in (0, 3):
            images, features = (
                run_hyper_parameters(ALGORITHMS[name], family, seed, 0).values
                for family in ("big", "features")
            )
            assert features[key] == pytest.approx(20 * images[key])
    rates = [
        run_hyper_parameters(ALGORITHMS["erm"], f, 0, 0).values["lr"] for f in ("big", "features")
    ]
    assert rates[1] == pytest.approx(20 * rates[0])


def test_the_constant_of_the_papers_code():
    drawn = run_hyper_parameters(ALGORITHMS["mixup"], "big", 3, 1, preset="hgp-2023")
    assert drawn.options["alpha"] == pytest.approx(0.1)


def test_domainbeds_implementation_may_be_asked_of_all():
    for info in ALGORITHMS.values():
        drawn = run_hyper_parameters(info, "big", 1, 0, overrides={"fidelity": "domainbed"})
        assert drawn.options.get("fidelity") == ("domainbed" if info.deviates else None)
    assert {name for name, info in ALGORITHMS.items() if info.deviates} == {
        "irm", "mixup", "mldg", "coral", "mtl", "sagnet", "andmask", "fish", "iga", "arm", "cdann",
        "gradient", "hgp", "hutchinson", "expected", "diagonal", "full", "sd", "eqrm", "ib_irm",
        "causirl_coral",
        "cma",
        "selfreg", "trm", "transfer", "adrmx", "ermplusplus", "sagm",
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
