"""Heart disease in four hospitals: will a model hold in the one that it has not seen?

Each hospital is left out in turn. A model of the other three is compared with one of the hospital
itself, cross-validated, and with always saying what is commonest there. Missing values are filled
and marked, and columns scaled, by the patients a model is fitted to alone.

    python examples/four_hospitals.py --attributes 10
"""

import argparse

import numpy as np
import torch
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import hessalign as ha


def load(attributes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first attributes of all patients, who is sick, and the hospitals."""
    data = ha.load_heart()
    X = torch.cat([hospital.inputs for hospital in data.domains]).numpy()
    y = torch.cat([hospital.labels for hospital in data.domains]).numpy()
    return (
        X[:, :attributes],
        y,
        np.repeat(data.domain_names, [len(each) for each in data.domains]),
    )


def make_model(classifier: object) -> Pipeline:
    """A classifier of columns without gaps, with marks where they were."""
    imputer = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
    return make_pipeline(imputer, StandardScaler(), classifier)


def cells(y: np.ndarray, p: np.ndarray) -> str:
    """AUC and accuracy of the probabilities to be sick."""
    return f"{roc_auc_score(y, p):8.3f}{100 * np.mean((p > 0.5) == y):7.1f}"


def main() -> None:
    """A row for each hospital."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attributes", type=int, default=13)
    parser.add_argument("--strengths", type=float, nargs="*", default=[0.1, 1])
    options = parser.parse_args()
    X, y, hospital = load(options.attributes)
    models = ["itself", "others", *(f"aligned {strength:g}" for strength in options.strengths)]
    print(f"AUC and accuracy in % of models of the first {options.attributes} attributes:")
    print(f"{'':14}{'sick %':>7}{'always':>8}" + "".join(f"{name:>15}" for name in models))
    for name in dict.fromkeys(hospital):
        left = hospital == name
        plain = LogisticRegression(max_iter=1000)
        folds = StratifiedKFold(5, shuffle=True, random_state=0)
        own = cross_val_predict(
            make_model(plain), X[left], y[left], cv=folds, method="predict_proba"
        )
        shown = [cells(y[left], own[:, 1])]
        model = make_model(plain).fit(X[~left], y[~left])
        shown.append(cells(y[left], model.predict_proba(X[left])[:, 1]))
        for strength in options.strengths:
            aligned = ha.AlignedClassifier(alpha=strength, beta=strength)
            model = make_model(aligned)
            model.fit(X[~left], y[~left], alignedclassifier__domain=hospital[~left])
            shown.append(cells(y[left], model.predict_proba(X[left])[:, 1]))
        sick = 100 * y[left].mean()
        print(f"{name:14}{sick:7.0f}{max(sick, 100 - sick):8.1f}" + "".join(shown))
    print(
        "In Cleveland and Hungary a model of the other hospitals is nearly as good as their own.\n"
        "In Switzerland and VA Long Beach neither tells much. Accuracy in Switzerland is far less\n"
        "than by always saying sick: many more are sick there than where the model learned. An\n"
        "aligned model that says sick more often gains accuracy there, and no AUC."
    )


if __name__ == "__main__":
    main()
