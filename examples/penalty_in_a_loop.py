"""The penalty in a plain PyTorch loop: three lines, marked below.

Three source domains and an unseen one. Features 5 to 9 follow the label in the sources, less so
from domain to domain, and its opposite in the unseen one; features 0 to 4 mean the same everywhere.

    python examples/penalty_in_a_loop.py --seeds 3
"""

import argparse
import statistics

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import hessalign as ha
from hessalign.bench.data import ShiftedData, SyntheticDomain, make_shifted_data


def train(data: ShiftedData, seed: int, alpha: float, beta: float, steps: int = 200) -> nn.Module:
    """An ordinary loop over batches that hold samples of every domain."""
    torch.manual_seed(seed)
    featurizer = nn.Sequential(nn.Linear(10, 16), nn.ReLU())
    head = nn.Linear(16, 2)
    model = nn.Sequential(featurizer, head)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-3)
    align = ha.HessianAlignment(alpha=alpha, beta=beta, hessian="full")  # 1
    for _ in range(steps):
        rows = [torch.randint(len(part), (64,)) for part in data.source]
        x = torch.cat([part.x[index] for part, index in zip(data.source, rows, strict=True)])
        y = torch.cat([part.y[index] for part, index in zip(data.source, rows, strict=True)])
        domain = torch.arange(len(data.source)).repeat_interleave(64)
        z = featurizer(x)
        logits = head(z)
        terms = align(z, logits, y, domain)  # 2
        loss = cross_entropy(logits, y) + terms.penalty  # 3
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def accuracy(model: nn.Module, domain: SyntheticDomain) -> float:
    """Share of right answers in per cent."""
    with torch.no_grad():
        return 100 * float((model(domain.x).argmax(1) == domain.y).double().mean())


def main() -> None:
    """Train with and without the penalty, for several seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    print(f"accuracy in %, mean ± standard deviation over {seeds} seeds")
    print(f"{'':10}{'sources':>14}{'unseen':>14}")
    for name, alpha, beta in (("plain", 0.0, 0.0), ("aligned", 1.0, 1000.0)):
        sources, unseen = [], []
        for seed in range(seeds):
            data = make_shifted_data("correlation", seed, domains=3)
            model = train(data, seed, alpha, beta)
            sources.append(statistics.mean(accuracy(model, part) for part in data.source))
            unseen.append(accuracy(model, data.target))
        shown = (
            f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"
            for values in (sources, unseen)
        )
        print(f"{name:10}" + "".join(f"{cell:>14}" for cell in shown))


if __name__ == "__main__":
    main()
