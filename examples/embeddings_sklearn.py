"""Embeddings with labels and domains: AlignedClassifier, its weights chosen by leaving domains out.

Three classes seen by four cameras. Besides what shows the class, the embeddings hold the
background, which goes with the class: nearly always at the first camera, by chance at the fourth.
The fifth camera, unseen, has backgrounds of other classes.

    python examples/embeddings_sklearn.py --seeds 3
"""

import argparse

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import hessalign as ha
from hessalign.estimator import worst_domain

CAMERAS = {"gate": 0.95, "hall": 0.8, "yard": 0.6, "roof": 0.33}
"""How often the background goes with the class."""


def make_camera(
    rng: np.random.Generator, agrees: float, samples: int = 200
) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings of one camera, and their classes."""
    y = rng.integers(3, size=samples)
    same = rng.random(samples) < agrees
    background = np.where(same, y, (y + rng.integers(1, 3, size=samples)) % 3)
    what = 1.5 * np.eye(6)[y] + rng.normal(size=(samples, 6))
    where = 4.0 * np.eye(3)[background] + rng.normal(size=(samples, 3))
    return np.c_[what, where], y


def run(seed: int) -> tuple[dict[str, float], dict[str, float]]:
    """The chosen weights, and accuracies at the unseen camera."""
    rng = np.random.default_rng(seed)
    parts = [make_camera(rng, agrees) for agrees in CAMERAS.values()]
    X, y = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    domain = np.repeat(list(CAMERAS), [len(part[1]) for part in parts])
    X_new, y_new = make_camera(rng, agrees=0.0, samples=1000)

    search = GridSearchCV(
        ha.AlignedClassifier("full"),
        {"alpha": [0, 1], "beta": [0, 1, 10]},
        cv=LeaveOneGroupOut(),
        refit=worst_domain,  # without it, the best mean over the cameras left out
    )
    search.fit(X, y, groups=domain, domain=domain)
    plain = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    best_mean = search.cv_results_["params"][search.cv_results_["mean_test_score"].argmax()]
    chosen_by_mean = ha.AlignedClassifier("full", **best_mean).fit(X, y, domain)
    chosen = ha.AlignedClassifierCV().fit(X, y, domain)  # without a search of one's own
    models = {
        "logistic regression": plain,
        "best mean": chosen_by_mean,
        "best worst": search,
        "AlignedClassifierCV": chosen,
    }
    return search.best_params_, {name: model.score(X_new, y_new) for name, model in models.items()}


def main() -> None:
    """Several seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        weights, scores = run(seed)
        print(f"seed {seed}: alpha={weights['alpha']} beta={weights['beta']}")
        for name, score in scores.items():
            found.setdefault(name, []).append(100 * score)
    print(f"accuracy at the unseen camera in %, mean ± standard deviation over {seeds} seeds")
    for name, values in found.items():
        print(f"{name:20} {np.mean(values):5.1f} ± {np.std(values, ddof=1):.1f}")


if __name__ == "__main__":
    main()
