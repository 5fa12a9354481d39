r"""What every quantity should be, from its definition and `torch.func` alone.

Nothing here knows a closed form of the library, nor imports it. A head maps features z to logits
a. Moving its parameters by δ moves the logits by z̃ δᵀ, so the derivatives of the risk in the
parameters are those of

    δ ↦ mean over the domain of ℓ(a + z̃ δᵀ, y)   at δ = 0,

for any z and a. Parameters are ordered by output: its weights, then its bias. Domains are ordered
by id, samples inside a domain as they come.
"""

import torch
from torch.func import functional_call, grad, hessian
from torch.nn import functional

ACTIVATIONS = {
    "identity": lambda a: a,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": functional.softplus,
}


def losses(logits, y, loss, activation="identity"):
    """The loss of each sample, for logits [n, k]."""
    if loss == "cross_entropy":
        return torch.logsumexp(logits, 1) - logits.gather(1, y.long().unsqueeze(1)).squeeze(1)
    if loss == "binary":
        a = logits.squeeze(1)
        return -(y * functional.logsigmoid(a) + (1 - y) * functional.logsigmoid(-a))
    function = activation if callable(activation) else ACTIVATIONS[activation]
    return ((function(logits) - y.reshape(logits.shape)) ** 2).sum(1) / 2


def augmented(z, bias):
    """The features as the head sees them."""
    return torch.cat([z, torch.ones_like(z[:, :1])], 1) if bias else z


def matrix(logits):
    """Logits as a matrix."""
    return logits.reshape(len(logits), -1)


def groups(domain):
    """The rows of each domain."""
    ids = sorted(set(domain.tolist()))
    return [(domain == value).nonzero().squeeze(1) for value in ids]


def risks(batch, *, loss, activation="identity", bias=True):
    """Each domain's risk as a function of δ, and δ = 0."""
    z, logits, y, domain = batch
    logits = matrix(logits)
    origin = torch.zeros(logits.shape[1] * (z.shape[1] + bias), dtype=z.dtype)

    def make(rows):
        def risk(delta):
            shift = augmented(z[rows], bias) @ delta.reshape(logits.shape[1], -1).T
            return losses(logits[rows] + shift, y[rows], loss, activation).mean()

        return risk

    return [make(rows) for rows in groups(domain)], origin


def risk(batch, **options):
    """Risk of each domain [e]."""
    functions, origin = risks(batch, **options)
    return torch.stack([function(origin) for function in functions])


def gradient(batch, **options):
    """Gradient of each risk [e, p]."""
    functions, origin = risks(batch, **options)
    return torch.stack([grad(function)(origin) for function in functions])


def dense_hessian(batch, **options):
    """Hessian of each risk [e, p, p]."""
    functions, origin = risks(batch, **options)
    return torch.stack([hessian(function)(origin) for function in functions])


def diagonal(batch, **options):
    """Hessian diagonals [e, p]."""
    return dense_hessian(batch, **options).diagonal(dim1=1, dim2=2)


def hgp(batch, **options):
    """Hessian-gradient products [e, p]."""
    return torch.einsum("epq,eq->ep", dense_hessian(batch, **options), gradient(batch, **options))


def gradient_logits(batch, *, bias=True, **options):
    """What a head with the domain's gradient as parameters makes of each sample, by domain."""
    gradients = gradient(batch, bias=bias, **options)
    parts = []
    for rows, g in zip(groups(batch.domain), gradients, strict=True):
        z = augmented(batch.z[rows], bias)
        parts.append(z @ g.reshape(-1, z.shape[1]).T)
    return torch.cat(parts)


def hvp(function, origin, vector):
    """Product of the Hessian of a function with a vector, by two rounds of backpropagation."""
    point = origin.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(point), point, create_graph=True)
    (product,) = torch.autograd.grad(slope @ vector, point, create_graph=True)
    return product


def hutchinson(functions, origin, signs):
    """Eq. 19 as a plain loop, with signs [m, e, p] or [m, 1, p] for all domains."""
    estimates = []
    for e, function in enumerate(functions):
        total = torch.zeros_like(origin)
        for probes in signs.to(origin.dtype):
            r = probes[e if len(probes) > 1 else 0]
            total = total + r * hvp(function, origin, r)
        estimates.append(total / len(signs))
    return torch.stack(estimates)


def mean_function(functions):
    """The mean of several risks."""
    return lambda delta: torch.stack([function(delta) for function in functions]).mean()


def per_sample(batch, *, loss, activation="identity"):
    """Loss [n], its error r [n, k] and its curvature S [n, k, k] in the logits of each sample."""

    def function(a, y):
        return losses(a.unsqueeze(0), y.unsqueeze(0), loss, activation).squeeze(0)

    samples = list(zip(matrix(batch.logits), batch.y, strict=True))
    return tuple(
        torch.stack([derivative(a, y) for a, y in samples])
        for derivative in (function, grad(function), hessian(function))
    )


def quantity(name, batch, *, bias=True, **options):
    """Each domain's mean of a quantity of `hessalign.alignment.QUANTITIES`, densely [e, ...]."""
    derivatives = {
        "loss": risk,
        "gradient": gradient,
        "hessian": dense_hessian,
        "hessian_diagonal": diagonal,
        "hessian_gradient": hgp,
    }
    if name in derivatives:
        return derivatives[name](batch, bias=bias, **options)
    z = batch.z
    _, r, S = per_sample(batch, **options)
    each = {
        "feature": lambda: z,
        "covariance": lambda: torch.einsum("nd,nc->ndc", z, z),
        "error": lambda: r,
        "error_feature": lambda: torch.einsum("nk,nd->nkd", r, z),
        "logit": lambda: S,
        "logit_feature": lambda: torch.einsum("nkl,nd->nkld", S, z),
        "logit_covariance": lambda: torch.einsum("nkl,nd,nc->nkldc", S, z, z),
    }[name]()
    return torch.stack([each[rows].mean(0) for rows in groups(batch.domain)])


def inner_products(values):
    """Inner products of all pairs of domains [e, e]."""
    flat = values.flatten(1) if values.ndim > 1 else values.unsqueeze(1)
    return flat @ flat.T


def distances(values):
    """Frobenius distances of all pairs of domains [e, e]."""

    def distance(e, f):
        if e == f:
            return torch.zeros((), dtype=values.dtype)
        return (values[e] - values[f]).square().sum().sqrt()

    ids = range(len(values))
    return torch.stack([torch.stack([distance(e, f) for f in ids]) for e in ids])


def spectral_distances(hessians):
    """Spectral distances of all pairs of Hessians [e, e]."""
    return torch.stack(
        [torch.stack([torch.linalg.matrix_norm(a - b, 2) for b in hessians]) for a in hessians]
    )


def deviation(values, target):
    """Mean over domains of the squared distance to a target."""
    return torch.stack([(value - target).square().sum() for value in values]).mean()


def dispersion(values):
    """Mean over domains of the squared distance to their mean."""
    return deviation(values, values.mean(0))


def off(H):
    """Sum of the squared off-diagonal entries of a matrix."""
    return (H - torch.diag(H.diagonal())).square().sum()


# --- any module -----------------------------------------------------------------------------------


def module_risks(module, z, y, domain, *, loss, activation="identity"):
    """Each domain's risk as a function of the module's parameters (a dictionary)."""

    def make(rows):
        def risk(parameters):
            logits = functional_call(module, parameters, (z[rows],))
            return losses(matrix(logits), y[rows], loss, activation).mean()

        return risk

    return [make(rows) for rows in groups(domain)]


def module_gradient(module, *data, **options):
    """Gradients [e, p], parameters flattened in the order of `named_parameters`."""
    parameters = dict(module.named_parameters())
    result = []
    for function in module_risks(module, *data, **options):
        slopes = grad(function)(parameters)
        result.append(torch.cat([slopes[name].flatten() for name in parameters]))
    return torch.stack(result)


def module_hessian(module, *data, **options):
    """Dense Hessians [e, p, p], assembled block by block."""
    parameters = dict(module.named_parameters())
    result = []
    for function in module_risks(module, *data, **options):
        blocks = hessian(function)(parameters)
        rows = [
            torch.cat(
                [
                    blocks[a][b].reshape(parameters[a].numel(), parameters[b].numel())
                    for b in parameters
                ],
                1,
            )
            for a in parameters
        ]
        result.append(torch.cat(rows))
    return torch.stack(result)
