"""What a user is told about a mistake, and the answers that are defined instead.

The calls run without the tests' type checks, so that the texts are those a user reads.
"""

import re

import pytest

SETUP = """
from torch import nn
torch.manual_seed(0)
z = torch.randn(6, 4)
logits = torch.randn(6, 3)
y = torch.tensor([0, 1, 2, 0, 1, 2])
domain = torch.tensor([0, 0, 0, 1, 1, 1])

def make(**options):
    return ha.HessianAlignment(**{"alpha": 1.0, "beta": 1.0, **options})

def changed(tensor, place, value):
    tensor = tensor.clone()
    tensor[place] = value
    return tensor

align = make()
distance, attributes = ha.hessian_distance, ha.attribute_distances

def same_penalty(*labels_and_domain):
    penalty = align(z, logits, *labels_and_domain).penalty
    return bool(penalty == align(z, logits, y, domain).penalty)

def place_of_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        eval("make()(z, logits, y, 0 * domain)")
    return caught[0].filename
"""

ERRORS = {
    # lengths and shapes
    "align(z[:5], logits, y, domain)": "InputError: Expected logits of shape [5, classes], one row "
    "per row of z, got [6, 3].",
    "align(z, logits[:5], y, domain)": "InputError: Expected logits of shape [6, classes], one row "
    "per row of z, got [5, 3].",
    "align(z, logits, y[:5], domain)": "InputError: Expected one target y per row of z, 6 in all, "
    "got shape [5].",
    "align(z, logits, y, domain[:5])": "InputError: Expected one domain id per row of z, shape "
    "[6], got [5].",
    "align(z, logits, y, domain.view(6, 1))": "InputError: Expected one domain id per row of z, "
    "shape [6], got [6, 1].",
    "align(z.view(6, 2, 2), logits, y, domain)": "InputError: Expected features z of shape [n, d], "
    "got [6, 2, 2]. Flatten what comes after the first axis.",
    "align(z, logits, nn.functional.one_hot(y), domain)": "InputError: Expected one label per row "
    "of logits, shape [6], got [6, 3].",
    "align(z[:0], logits[:0], y[:0], domain[:0])": "InputError: Expected at least one sample, got "
    "none: every domain is empty.",
    # types
    "align(z.long(), logits, y, domain)": "InputTypeError: Expected floating-point features z, got "
    "torch.int64. Use z.float().",
    "align(z, logits.long(), y, domain)": "InputTypeError: Expected floating-point logits, got "
    "torch.int64. Use logits.float().",
    "align(z, logits, y.float(), domain)": "InputTypeError: Expected integer class labels y, got "
    'dtype torch.float32. Use y.long() if the values are class indices, or loss="squared" for '
    "regression.",
    "align(z, logits, y, domain.float())": "InputTypeError: Expected domain as an integer tensor, "
    "one id per sample, got torch.float32. Use domain.long().",
    "align(z.numpy(), logits, y, domain)": "InputTypeError: Expected floating-point features z, "
    "got ndarray. Use torch.as_tensor(z).",
    "align(z, logits.tolist(), y, domain)": "InputTypeError: Expected floating-point logits, got "
    "list. Use torch.as_tensor(logits).",
    "align(z, logits, y.numpy(), domain)": "InputTypeError: Expected y as a tensor, got ndarray. "
    "Use torch.as_tensor(y).",
    "align(z, logits, y, domain.tolist())": "InputTypeError: Expected domain as an integer tensor, "
    "one id per sample, got list.",
    "align(z, logits, None, domain)": "InputError: Expected targets y: risk and gradient depend on "
    "them.",
    "align(z.to_sparse(), logits, y, domain)": "InputTypeError: Expected features z as a dense "
    "tensor, got torch.sparse_coo. Use to_dense().",
    "align(z, logits.to_sparse(), y, domain)": "InputTypeError: Expected logits as a dense tensor",
    "align(z, logits, y.to_sparse(), domain)": "InputTypeError: Expected y as a dense tensor, ",
    "align(z, logits, y, domain.to_sparse())": "InputTypeError: Expected domain as a dense tensor",
    "align(z, logits, y.to(torch.complex64), domain)": "InputTypeError: Expected y as a tensor, ",
    "ha.linear_head(z, logits, y, domain, bias='no')": "InputTypeError: Expected bias as True or "
    "False, got 'no'.",
    "ha.domain_layout(domain.float())": "InputTypeError: Expected domain as integers, one per "
    "sample, got torch.float32 of shape [6].",
    "ha.domain_layout(3)": "InputError: Expected sizes of domains of 1 or more, got 3.",
    "ha.autograd_head('head', z, y, domain)": "InputTypeError: Expected head as a torch.nn.Module, "
    "got str.",
    "ha.autograd_head(nn.Linear(5, 3), z, y, domain)": "InputError: Expected a head for features "
    "of shape [6, 4] and torch.float32, got Linear, which says: ",
    "ha.autograd_head(nn.Linear(4, 3), z, None, domain)": "InputTypeError: Expected y as a tensor",
    # values
    "align(z, logits, y + 1, domain)": "InputError: Expected labels from 0 to 2 (logits have 3 "
    "columns), found labels from 1 to 3.",
    "align(z, logits, y - 1, domain)": "InputError: Expected labels from 0 to 2 (logits have 3 "
    "columns), found labels from -1 to 1.",
    "align(changed(z, (4, 2), torch.nan), logits, y, domain)": "InputError: Expected finite "
    "features z, found 1 NaN or infinite values in 1 of 6 rows, the first in row 4.",
    "align(changed(z, 2, torch.inf), logits, y, domain)": "InputError: Expected finite features z, "
    "found 4 NaN or infinite values in 1 of 6 rows, the first in row 2.",
    "align(z, changed(logits, (5, 0), -torch.inf), y, domain)": "InputError: Expected finite "
    "logits, found 1 NaN or infinite values in 1 of 6 rows, the first in row 5.",
    "align(z, logits[:, :1], 0 * y, domain)": "InputError: Expected logits for at least 2 classes, "
    'got 1 column, on which softmax is constant. For a single logit use loss="binary".',
    "make(loss='binary')(z, logits, y, domain)": "InputError: Expected a single logit per sample, "
    'got 3 columns. For several classes use loss="cross_entropy", for labels that do not exclude '
    'each other loss="multilabel".',
    "make(loss='binary')(z, logits[:, 0], y, domain)": "InputError: Expected labels from 0 to 1, "
    "found labels from 0 to 2.",
    "make(loss='squared')(z, logits, y, domain)": "InputTypeError: Expected floating-point targets "
    "y for squared error, got dtype torch.int64.",
    "make(loss='squared')(z, logits, y.float(), domain)": "InputError: Expected y with one value "
    "per logit, shape [6, 3], got [6].",
    # the head as a module
    "align(z, logits, y, domain, head=nn.Identity())": "InputError: Expected a head with "
    "parameters, got Identity with none.",
    # names
    "make(hessian='ful')": "UnknownNameError: Unknown hessian kind 'ful'. Expected one of: 'full', "
    "'diagonal', 'sampled', 'expected', 'product', None. Did you mean 'full'?",
    "make(hessian='Diagonal')": "UnknownNameError: Unknown hessian kind 'Diagonal'. Expected one "
    "of: 'full', 'diagonal', 'sampled', 'expected', 'product', None. Did you mean 'diagonal'?",
    "make(hessian=3)": "UnknownNameError: Unknown hessian kind 3. Expected one of: 'full', ",
    "make(loss='crossentropy')": "UnknownNameError: Unknown loss 'crossentropy'. Expected one of: "
    "'cross_entropy', 'binary', 'squared', 'multilabel'. Did you mean 'cross_entropy'?",
    "make(loss='squared', activation='sigmoidal')": "UnknownNameError: Unknown activation "
    "'sigmoidal'. Expected one of: 'identity', 'sigmoid', 'tanh', 'softplus'. Did you mean "
    "'sigmoid'?",
    "make(activation='tanh')": "InputError: Expected no activation with loss='cross_entropy', "
    'which has its own; activation= goes with loss="squared".',
    "make(fidelity='release')": "UnknownNameError: Unknown fidelity 'release'. Expected one of: "
    "'paper', 'domainbed', 'released'. Did you mean 'released'?",
    "make(evaluation='duel')": "UnknownNameError: Unknown evaluation 'duel'. Expected one of: "
    "'auto', 'primal', 'dual'. Did you mean 'dual'?",
    "distance(z, logits, domain, norm='spectrum')": "UnknownNameError: Unknown norm 'spectrum'. "
    "Expected one of: 'fro', 'spectral'. Did you mean 'spectral'?",
    "distance(z, logits, domain, evaluation='primel')": "UnknownNameError: Unknown evaluation "
    "'primel'. Expected one of: 'auto', 'primal', 'dual'. Did you mean 'primal'?",
    "attributes(z, logits, y, domain, evaluation='primel')": "UnknownNameError: Unknown evaluation "
    "'primel'.",
    # numbers
    "make(alpha=-1)": "InputError: Expected a finite alpha of 0 or more, got -1.",
    "make(beta=float('nan'))": "InputError: Expected a finite beta of 0 or more, got nan.",
    "make(alpha=float('inf'))": "InputError: Expected a finite alpha of 0 or more, got inf.",
    "make(alpha=1e308)": "InputError: Expected a finite alpha of 0 or more, got 1e+308.",
    "ha.communication('full', processes=0, samples=1, features=1, outputs=1, domains=1)": "InputErr"
    "or: Expected processes of 1 or more, got 0.",
    "ha.communication('ful', processes=2, samples=1, features=1, outputs=2, domains=2)": "UnknownNa"
    "meError: Unknown hessian kind 'ful'. Expected one of: ",
    "ha.transfer_bound(z, y + 2**40, domain, source=0, target=1, tolerance=0.1, l2=0.1)": "InputErr"
    "or: Expected labels numbered from 0, got the label 1099511627778, for which a head would need",
    "ha.diagnose(z, y.to_sparse(), domain)": "InputTypeError: Expected y as a dense tensor, ",
    "ha.diagnose(z, y, domain, seed=[])": "InputError: Expected seed as a whole number of 0 or mo",
    "ha.diagnose(z, y + 2**40, domain)": "InputError: Expected labels numbered from 0, got the ",
    "make(probes=0)": "InputError: Expected at least 1 probe, got 0.",
    # the same checks guard the other functions
    "distance(z.long(), logits, domain)": "InputTypeError: Expected floating-point features z, got "
    "torch.int64.",
    "distance(z.long(), logits, domain, norm='spectral')": "InputTypeError: Expected "
    "floating-point features z, got torch.int64.",
    "distance(z.numpy(), logits, domain, norm='spectral')": "InputTypeError: Expected "
    "floating-point features z, got ndarray.",
    "distance(z, logits, domain[1:])": "InputError: Expected one domain id per row of z, shape "
    "[6], got [5].",
    "attributes(z, logits, None, domain)": "InputError: Expected targets y: risk and gradient "
    "depend on them.",
    "ha.autograd_head(nn.Linear(4, 3), z, y + 1, domain)": "InputError: Expected labels from 0 to "
    "2 (logits have 3 columns), found labels from 1 to 3.",
    "ha.autograd_head(nn.Linear(4, 3), z, y, domain[1:])": "InputError: Expected one domain id per "
    "row of z, shape [6], got [5].",
}

SHAPES_WITHOUT_TARGETS = {
    # Unchecked they would give distances of 0, or of a head that does not exist.
    "distance(z, logits[:, :1], domain)": "InputError: Expected logits for at least 2 classes, got "
    "1 column",
    "distance(z, logits[:, 0], domain)": "InputError: Expected logits for at least 2 classes, got "
    "1 column",
    "distance(z, logits, domain, loss='binary')": "InputError: Expected a single logit per sample, "
    "got 3 columns.",
    "ha.linear_head(z, logits[:, :1], None, domain)": "InputError: Expected logits for at least 2 "
    "classes, got 1 column",
}

DEFINED = {
    "place_of_warning()": "'<string>'",
    "same_penalty(y, domain.to(torch.uint8))": "True",
    "same_penalty(y, domain.int())": "True",
    "same_penalty(y.to(torch.uint8), domain)": "True",
    "align(z, logits, y, domain * -(2**62)).penalty.isfinite().item()": "True",
    "align(z.half(), logits.half(), y, domain).penalty.isfinite().item()": "True",
    "align(z.bfloat16(), logits.bfloat16(), y, domain).penalty.isfinite().item()": "True",
    "make(alpha=0, beta=0)(z, logits, y, domain).penalty.item()": "0.0",
    "make(alpha=10**20)(z, logits, y, domain).penalty.isfinite().item()": "True",
    "distance(z, logits, 0 * domain).tolist()": "[[0.0]]",
}


@pytest.fixture(scope="module")
def outcomes(outcomes_without_type_checks):
    calls = {call: call for call in (*ERRORS, *SHAPES_WITHOUT_TARGETS, *DEFINED)}
    return outcomes_without_type_checks(SETUP, calls)


@pytest.mark.parametrize("call", ERRORS)
def test_the_text_of_an_error(outcomes, call):
    assert re.match(re.escape(ERRORS[call]), outcomes[call]), outcomes[call]


@pytest.mark.parametrize("call", SHAPES_WITHOUT_TARGETS)
def test_the_shape_of_logits_is_checked_without_targets_too(outcomes, call):
    assert re.match(re.escape(SHAPES_WITHOUT_TARGETS[call]), outcomes[call]), outcomes[call]


@pytest.mark.parametrize("call", DEFINED)
def test_a_defined_answer(outcomes, call):
    assert outcomes[call] == DEFINED[call]
