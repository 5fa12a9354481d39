r"""One batch in parts: what several processes have to tell each other for its penalty.

Under data-parallel training each process sees a part of the batch. A dispersion is no mean over
samples, so the mean of the parts' penalties is not the penalty. Here every process computes the
penalty P of the whole batch. Two forms of telling are exact:

- *samples*: every process gets the features, logits, targets, domains and weights of all samples.
  A process hands over n (d + k + …) numbers.
- *sums*: where all that enters are sums over the samples of a domain, $\sum r \otimes \tilde z$ and
  $\sum \operatorname{diag} S \otimes \tilde z^2$, these are added up. They are E k (d + 1) numbers
  for each quantity, whatever the size of the batch.

The backward pass tells nothing. Every process has the whole graph of P, but only its own samples
are connected to its network, and their slopes are multiplied by the number of processes R. The mean
over processes that data-parallel training takes of the slopes in a parameter θ is then that of one
process with the whole batch:

$$\frac1R \sum_{r=1}^R R \sum_{n \in r} \frac{\partial P}{\partial z_n}
\frac{\partial z_n}{\partial\theta} = \frac{\mathrm d P}{\mathrm d\theta}$$

Indices: e domain, n sample, k output of the head, d feature, p = (k, d) parameter, q quantity.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from hessalign._errors import InputError, InputTypeError
from hessalign._numbers import check_count
from hessalign._shapes import Float, Int
from hessalign.alignment.moments import Evaluation
from hessalign.alignment.penalties import HessianKind, check_hessian
from hessalign.curvature.domains import (
    DomainLike,
    Domains,
    accumulation_dtype,
    check_several,
    check_several_counted,
    make_domains,
)
from hessalign.curvature.factors import Features, Linear
from hessalign.curvature.fused import is_traced
from hessalign.curvature.inputs import (
    check_domain,
    check_features,
    check_is_tensor,
    check_logits,
    check_targets,
    check_weight,
    domain_ids,
    reads_values,
)
from hessalign.curvature.losses import CrossEntropy, HeadLoss
from hessalign.curvature.products import mean_outer

if TYPE_CHECKING or dist.is_available():
    from torch.distributed import ProcessGroup
else:

    class ProcessGroup:
        """There are none in a torch that was built without them."""


ProcessGroupLike = ProcessGroup | Literal["world"] | None
"""A group; "world" for all processes, if torch.distributed is initialised; None for one alone."""

_Quantity = Literal["hessian_diagonal", "gradient"]

_SUMS: dict[HessianKind | None, tuple[_Quantity, ...]] = {
    None: ("gradient",),
    "diagonal": ("hessian_diagonal", "gradient"),
}
"""The kinds of penalty that depend on sums over the samples of a domain, and on which."""

_COLUMNS = 3
"""Beside these, for each domain, what its samples count and how many they are."""


# --- a part of a batch ----------------------------------------------------------------------------


class Part(NamedTuple):
    """Some of the samples of a batch."""

    z: Float[Tensor, "n d"]
    logits: Tensor
    y: Tensor
    domain: Int[Tensor, " n"]  # the id of each one's domain
    weight: Float[Tensor, " n"] | None  # what each counts in its domain's mean; None if the same

    @property
    def outputs(self) -> int:
        """Outputs of the head; one if logits are a vector."""
        return self.logits.shape[1] if self.logits.ndim == 2 else 1

    @property
    def tensors(self) -> list[Tensor]:
        """Those that are there."""
        return [x for x in self if x is not None]

    def changed(self, change: Callable[[Tensor], Tensor]) -> Part:
        """The part with something done to each tensor."""
        weight = None if self.weight is None else change(self.weight)
        return Part(change(self.z), change(self.logits), change(self.y), self.domain, weight)


def make_part(
    z: Tensor,
    logits: Tensor,
    y: Tensor,
    domain: DomainLike,
    weight: Tensor | None,
    loss: HeadLoss,
    checks: bool | None = None,
) -> Part:
    """Samples that are known to suit the loss, with an id for each one's domain.

    There may be none of them, or none that counts: the others may have some.

    Returns:
        The part.
    """
    _check_devices(z, logits, y, weight)
    if isinstance(z, Tensor) and z.ndim == 2 and z.is_floating_point() and len(z) == 0:
        check_logits(logits, 0, values=False)
        check_domain(domain, 0)
        assert isinstance(domain, Tensor)
        check_is_tensor(y)
        check_weight(weight, 0, values=False)
        return Part(z, logits, y, domain.to(z.device, torch.int64), weight)
    values = reads_values(z, checks)
    check_features(z, values=values)
    columns = check_logits(logits, len(z), values=values)
    ids = domain_ids(domain, z)
    check_targets(y, columns, loss, values=values and not _all_ignored(y, loss))
    check_weight(weight, len(z), values=values)
    return Part(z, logits, y, ids, weight)


def _check_devices(*tensors: object) -> None:
    """Raise an InputError if tensors are not in one place."""
    places = sorted({str(x.device) for x in tensors if isinstance(x, Tensor)})
    if len(places) > 1:
        raise InputError(
            f"Expected all samples on one device, found {' and '.join(places)}. Use .to(z.device)."
        )


def _all_ignored(y: Tensor, loss: HeadLoss) -> bool:
    """Whether no sample of a part counts, which is no fault if there are others."""
    ignored = loss.ignore_index if isinstance(loss, CrossEntropy) else None
    return ignored is not None and isinstance(y, Tensor) and bool((y == ignored).all())


def joined(parts: Sequence[Part]) -> Part:
    """All samples of some parts, in order."""
    weights = [part.weight for part in parts if part.weight is not None]
    return Part(
        torch.cat([part.z for part in parts]),
        torch.cat([part.logits for part in parts]),
        torch.cat([part.y for part in parts]),
        torch.cat([part.domain for part in parts]),
        torch.cat(weights) if weights else None,
    )


def kinds_of(part: Part) -> dict[str, str]:
    """What must be the same in all parts, by name."""
    named = {
        "features z": part.z,
        "logits": part.logits,
        "targets y": part.y,
        "weights": part.weight,
    }
    return {
        name: "none" if x is None else f"{x.dtype} [{', '.join(['n', *map(str, x.shape[1:])])}]"
        for name, x in named.items()
    }


# --- bytes ----------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Communication:
    """What each process sends for one penalty, in bytes, and in which form.

    Counted as in a ring: of what is gathered, each process sends (R−1) times what one of R hands
    over; of what is added up, 2 (R−1)/R times.

    Attributes:
        processes: The number R of processes.
        agreement: What they send to agree on what follows.
        samples: What they would send of samples, or did.
        sums: What they would send of sums, or did; None if sums do not suffice.
    """

    processes: int
    agreement: int
    samples: int
    sums: int | None

    @property
    def form(self) -> Literal["samples", "sums"]:
        """The form that takes less."""
        return "sums" if self.sums is not None and self.sums <= self.samples else "samples"

    @property
    def bytes(self) -> int:
        """What is sent in this form, all in all."""
        sent = self.sums if self.sums is not None and self.form == "sums" else self.samples
        return self.agreement + sent


def communication(
    hessian: HessianKind | None,
    *,
    processes: int,
    samples: int,
    features: int,
    outputs: int,
    domains: int,
    dtype: torch.dtype = torch.float32,
    targets: int = 8,
    weighted: bool = False,
    bias: bool = True,
    unbiased: bool = False,
    evaluation: Evaluation = "auto",
) -> Communication:
    """What one penalty across processes sends, from the shapes alone.

    After a call, `HessianAlignment.sent` holds the same of that call.

    Args:
        hessian: The kind of penalty, as in `HessianAlignment`.
        processes: How many processes there are.
        samples: Samples of the process that has most.
        features: Features of a sample, d.
        outputs: Outputs of the head, k.
        domains: Domains of the whole batch; of those that a process has, the same many at most.
        dtype: Precision of features and logits.
        targets: Bytes of one sample's target: 8 for a label.
        weighted: Whether samples have weights, of this precision.
        bias: Whether the head has a bias.
        unbiased: As in `HessianAlignment`.
        evaluation: As in `HessianAlignment`; "dual" leaves no choice but samples.

    Returns:
        The bytes, and the form.

    Example:
        >>> shapes = {"processes": 4, "features": 512, "outputs": 7, "domains": 3}
        >>> sent = communication("diagonal", samples=96, **shapes)
        >>> sent.form, sent.bytes
        ('sums', 258948)
        >>> sent = communication("full", samples=96, **shapes)
        >>> sent.form, sent.bytes
        ('samples', 602712)
    """
    counts = {"processes": processes, "samples": samples, "features": features}
    for name, count in {**counts, "outputs": outputs, "domains": domains}.items():
        check_count(count, name)
    check_count(targets, "targets", least=0)
    check_hessian(hessian)
    row = dtype.itemsize * (features + outputs + weighted) + targets + 8
    quantities = quantities_summed(hessian, evaluation)
    width = None
    if quantities:
        width = _sums_width(len(quantities), outputs * (features + bias), unbiased)
    return _communication(processes, samples, row, domains, domains, width)


def quantities_summed(hessian: HessianKind | None, evaluation: Evaluation) -> tuple[_Quantity, ...]:
    """What sums suffice for the penalty; none if they do not."""
    return () if evaluation == "dual" else _SUMS.get(hessian, ())


def _sums_width(quantities: int, parameters: int, unbiased: bool) -> int:
    """Sums of each domain."""
    return quantities * (parameters + unbiased) + _COLUMNS


def _communication(
    processes: int, samples: int, row: int, most_domains: int, domains: int, width: int | None
) -> Communication:
    others = processes - 1
    listed = 0 if width is None else most_domains
    agreement = others * 8 * (_HEADER + listed)
    sums = None if width is None else -(-2 * others * 8 * domains * width // processes)
    return Communication(processes, agreement, others * samples * row, sums)


# --- processes ------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Processes:
    """The processes of a group."""

    group: ProcessGroup

    @property
    def count(self) -> int:
        """How many there are."""
        return dist.get_world_size(self.group)

    @property
    def own(self) -> int:
        """The place of this one among them."""
        return dist.get_rank(self.group)

    def gathered(self, own: Tensor) -> list[Tensor]:
        """The same tensor of all processes, this one's included; a constant."""
        found = [torch.empty_like(own) for _ in range(self.count)]
        dist.all_gather(found, own, group=self.group)
        return found

    def added(self, own: Tensor) -> Tensor:
        """The sum over processes, connected to this one's term."""
        total = own.detach().clone()
        dist.all_reduce(total, group=self.group)
        return total + self.count * (own - own.detach())

    def amplified(self, own: Tensor) -> Tensor:
        """The same values with slopes times the number of processes."""
        if not own.requires_grad:
            return own
        return own.detach() + self.count * (own - own.detach())


def make_processes(group: ProcessGroupLike) -> Processes | None:
    """The processes that a group names.

    Returns:
        The processes; None if there is no other than this one.

    Raises:
        InputError: If there is no group of this name, or a graph is to be made.
        InputTypeError: If it is something else, or this process is not a member.
    """
    if group is None:
        return None
    if isinstance(group, str):
        if group != "world":
            raise InputError(
                f'Expected group="world", a process group or None, got {group!r}. Make one with '
                "torch.distributed.new_group, or use all processes."
            )
        if not (dist.is_available() and dist.is_initialized()):
            return None
        group = dist.group.WORLD
    if not isinstance(group, ProcessGroup):
        raise InputTypeError(
            'Expected group="world", a process group of which this process is a member or None, '
            f"got {type(group).__name__}. Use torch.distributed.new_group, and call the penalty on "
            "its members alone."
        )
    processes = Processes(group)
    if processes.count == 1:
        return None
    if is_traced():
        raise InputError(
            "Expected a penalty of one process in a graph or under torch.func, got a group. "
            "Compile the network and leave the penalty outside."
        )
    return processes


_HEADER = 9
"""Numbers that processes begin with: all is well, seed, samples, domains, and what must agree."""


def _meet(
    processes: Processes, z: Tensor, read: Callable[[], Part], settings: str, seed: int
) -> tuple[Part, Domains, list[tuple[int, int, int]]]:
    """Own samples and their grouping; of each process its seed, and its samples and domains."""
    # It raises on all processes if one of them refuses its part, or parts do not match.
    part: Part | None = None
    domains, refusal = None, None
    told: list[int] = [0] * _HEADER
    own: dict[str, str] = {}
    try:
        part = read()
        domains = make_domains(part.domain)
        own = {**kinds_of(part), "settings of the penalty": settings}
        codes = [zlib.crc32(text.encode()) for text in own.values()]
        told = [1, seed, len(part.z), len(domains), *codes]
    except Exception as error:  # whatever it is, the others must not wait for ever
        refusal = error
    device = z.device if isinstance(z, Tensor) else torch.device("cpu")
    headers = [row.tolist() for row in processes.gathered(torch.tensor(told, device=device))]
    if part is None or domains is None:
        assert refusal is not None
        raise refusal
    for place, header in enumerate(headers):
        if not header[0]:
            raise InputError(
                f"Expected samples from every process, but process {place} of the group refused "
                "its own. Its message says why."
            )
    for place, header in enumerate(headers):
        for (name, text), mine, theirs in zip(own.items(), told[4:], header[4:], strict=True):
            if mine != theirs:
                raise InputError(
                    f"Expected the same {name} on all processes, found {text} on process "
                    f"{processes.own} of the group and others on process {place}. Only the number "
                    "of samples may differ."
                )
    return part, domains, [(header[1], header[2], header[3]) for header in headers]


def assemble(
    processes: Processes,
    part: tuple[Tensor, Tensor, Tensor, DomainLike, Tensor | None],  # what `make_part` takes
    *,
    loss: HeadLoss,
    bias: bool,
    quantities: Sequence[_Quantity],  # what sums suffice for; none if samples are needed
    unbiased: bool,  # whether sums of squares are needed, too
    checks: bool | None,  # whether to look at values; see `reads_values`
    settings: str,  # what else must be the same everywhere
    seed: int,  # of this process; that of the first one counts
) -> tuple[Part | DomainSums, int, Communication]:
    """Put the parts of all processes together, in the form that sends less.

    All processes must call this. What does not suit, in one of the parts or between them, is an
    error on all of them.

    Returns:
        The batch, as samples or as sums over its domains, connected to what this process gave; a
        seed that all processes have; and what was sent.

    Raises:
        InputError: If no process has samples; and for whatever else does not suit.
    """
    z = part[0]
    read = partial(make_part, *part, loss, checks)
    own, domains, met = _meet(processes, z, read, settings, seed)
    (seed, *_), samples, counts = zip(*met, strict=True)
    if not max(samples):
        raise InputError("Expected at least one sample in all processes together, got none.")
    ids, width = domains.ids, None
    if quantities:
        width = _sums_width(len(quantities), own.outputs * (own.z.shape[1] + bias), unbiased)
        ids = _all_ids(processes, ids, counts)
    row = sum(map(_width, own.tensors))
    sent = _communication(processes.count, max(samples), row, max(counts), len(ids), width)
    if sent.form == "samples":
        return _all_samples(processes, own, samples), seed, sent
    sums = _own_sums(own, domains, loss, quantities, bias=bias, unbiased=unbiased)
    places = torch.searchsorted(ids, domains.ids)
    spread = sums.new_zeros((len(ids), sums.shape[1])).index_add(0, places, sums)
    if not len(own.z):  # nothing, but of the network
        spread = spread + 0 * (own.z.sum() + own.logits.sum()).to(spread.dtype)
    total = processes.added(spread)
    return DomainSums(total, len(quantities), unbiased=unbiased), seed, sent


def _all_ids(
    processes: Processes, own: Int[Tensor, " e"], counts: Sequence[int]
) -> Int[Tensor, " e"]:
    """The ids of the domains of all processes, ascending."""
    found = processes.gathered(functional.pad(own, (0, max(counts) - len(own))))
    ids: Tensor = torch.cat([x[:count] for x, count in zip(found, counts, strict=True)]).unique()
    return ids


def _width(x: Tensor) -> int:
    """How many bytes one sample's row has."""
    return x.element_size() * math.prod(x.shape[1:])


def _bytes(x: Tensor) -> Tensor:
    """The bytes of each sample's row."""
    return _packed(x.detach().unsqueeze(1).flatten(1)).view(torch.uint8)


def _packed(x: Tensor) -> Tensor:
    """A copy without gaps, whose bytes can be taken for others also where it has a row or none."""
    return x.clone(memory_format=torch.contiguous_format)


def _all_samples(processes: Processes, own: Part, counts: Sequence[int]) -> Part:
    """The samples of all processes, in the order of these; one's own connected and amplified."""
    rows = torch.cat([_bytes(x) for x in own.tensors], dim=1)
    found = processes.gathered(functional.pad(rows, (0, 0, 0, max(counts) - len(rows))))
    parts = [
        own.changed(processes.amplified) if place == processes.own else _read(rows[:count], own)
        for place, (rows, count) in enumerate(zip(found, counts, strict=True))
    ]
    return joined(parts)


def _read(rows: Tensor, like: Part) -> Part:
    """Samples from their bytes."""
    widths = list(map(_width, like.tensors))
    found = [
        _packed(piece).view(x.dtype).view(len(rows), *x.shape[1:])
        for piece, x in zip(rows.split(widths, dim=1), like.tensors, strict=True)
    ]
    z, logits, y, domain, *weight = found
    return Part(z, logits, y, domain, weight[0] if weight else None)


# --- sums over domains ----------------------------------------------------------------------------


@final
@dataclass(frozen=True, eq=False)
class DomainSums:
    r"""Sums over the samples of each domain that a dispersion is made of.

    With weights ω and shares c of the loss the moment of a domain is $\sum ω m / \sum ω c$.

    Attributes:
        values: For each domain Σ ω m of each quantity, Σ ω c, the number of samples, Σ (ω c)², and
            Σ ω² ‖m‖² of each quantity where an unbiased dispersion is wanted.
        quantities: How many quantities there are.
        unbiased: Whether an unbiased dispersion is wanted.
    """

    values: Float[Tensor, "e w"]
    quantities: int
    unbiased: bool

    def __len__(self) -> int:
        return self.values.shape[0]

    def _check(self) -> None:
        """Raise an InputError if a domain does not count, or has too few samples."""
        columns = self.values[:, self._start : self._start + _COLUMNS].detach().cpu()
        counted, sizes, squared = columns.T
        if not bool(counted.all()):
            raise InputError(
                "Expected a sample that counts in each domain, found a domain whose weights are "
                "all 0 or whose labels are all ignored. Leave it out of the batch."
            )
        if self.unbiased:
            check_several([round(size) for size in sizes.tolist()])
            check_several_counted(squared / counted.square())

    @property
    def _start(self) -> int:
        """Where the columns after the moments begin."""
        return self.values.shape[1] - _COLUMNS - self.unbiased * self.quantities

    def dispersions(self) -> Float[Tensor, " q"]:
        """Mean squared distance of each quantity of the domains to its mean; see `Moment`."""
        self._check()
        count, start = len(self), self._start
        counted, _, squared = self.values[:, start : start + _COLUMNS].T.unsqueeze(2)
        means: Tensor = (self.values[:, :start] / counted).unflatten(1, (self.quantities, -1))
        found: Tensor = (means - means.mean(0)).square().sum((0, 2)) / count
        if not self.unbiased:
            return found
        own = squared / counted.square()
        squares = self.values[:, start + _COLUMNS :] / counted.square()
        within: Tensor = (squares - own * means.square().sum(2)) / (1 - own)
        return found - (count - 1) / count**2 * within.sum(0)


def _own_sums(
    part: Part,
    domains: Domains,
    loss: HeadLoss,
    quantities: Sequence[_Quantity],
    *,
    bias: bool,
    unbiased: bool,
) -> Float[Tensor, "e w"]:
    """What `DomainSums` holds, of the samples of one process."""
    dtype = accumulation_dtype(part.z.device)
    if not len(part.z):
        width = _sums_width(len(quantities), part.outputs * (part.z.shape[1] + bias), unbiased)
        return part.z.new_zeros((0, width), dtype=dtype)
    z, logits, y = (domains.arrange(x) for x in (part.z, part.logits, part.y))
    features = Features(z if z.dtype == torch.float64 else z.float())
    logits = logits.to(dtype).reshape(len(z), part.outputs)
    prediction = loss.predict(logits)
    weight = logits.new_ones(len(z)) if part.weight is None else domains.arrange(part.weight)
    weight = weight.to(dtype)
    sizes = torch.tensor(domains.sizes, dtype=dtype, device=z.device).unsqueeze(1)
    share = loss.share(y)
    counted = weight if share is None else weight * share.to(dtype)
    columns = [counted, torch.ones_like(weight), counted.square()]
    sums = []
    for quantity in quantities:
        if quantity == "gradient":
            rows = loss.error(prediction, logits, y)
        else:
            rows = loss.curvature(prediction, logits, y).diagonal()
        squared = quantity == "hessian_diagonal"
        rows = weight.unsqueeze(1) * rows
        means = mean_outer(rows, features.z, domains, bias=bias, squared=squared)
        sums.append(means.flatten(1) * sizes)
        if unbiased:
            right = Linear(features, bias, squared)
            columns.append(rows.square().sum(1) * right.squared_norms())
    return torch.cat([*sums, domains.weights.membership.mT @ torch.stack(columns, dim=1)], dim=1)
