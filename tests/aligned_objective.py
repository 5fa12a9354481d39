"""The objective of an aligned head, densely and by `torch.func`."""

from types import SimpleNamespace

from tests import oracles
from tests.transfer_problems import classification, regression

QUANTITY = {"full": "hessian", "diagonal": "hessian_diagonal", "product": "hessian_gradient"}


def problem_of(loss, seed=0, sizes=(9, 14, 6)):
    if loss == "squared":
        return regression(seed, sizes=sizes)
    return classification(seed, loss, sizes=sizes)


def expected_objective(problem, head, kind, l2, bias=True, alpha=0.7, beta=0.4):
    """The definition, densely and by `torch.func`; differentiable in the head."""
    logits = oracles.augmented(problem.z, bias) @ head.T
    batch = Batch(problem.z, logits, problem.y, problem.domain)
    options = {"loss": problem.loss, "bias": bias}
    weights = head[:, :-1] if bias else head
    value = oracles.risk(batch, **options).mean() + l2 / 2 * weights.square().sum()
    if kind is not None:
        value = value + alpha * oracles.dispersion(
            oracles.quantity(QUANTITY[kind], batch, **options)
        )
    return value + beta * oracles.dispersion(oracles.gradient(batch, **options))


class Batch(SimpleNamespace):
    def __init__(self, z, logits, y, domain):
        super().__init__(z=z, logits=logits, y=y, domain=domain)

    def __iter__(self):
        return iter((self.z, self.logits, self.y, self.domain))
