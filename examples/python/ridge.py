"""Ridge regression by conjugate gradients: SciPy solves (XᵀX + αI) w = Xᵀy with products on the cluster.

    python examples/python/ridge.py --local 2
    python examples/python/ridge.py --hosts 'pi[1-4]' --alpha 100

The data: how far diabetes had progressed in 442 patients after a year, from 10 measurements and their squares and products (65
columns). XᵀX is never computed; each step of the solver multiplies by X and then by Xᵀ. Operators of SciPy can be added and
multiplied like matrices, and so can the operator of a placed matrix.
"""

import numpy as np
from scipy.sparse.linalg import aslinearoperator, cg
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from common import cluster, fastest, options, print_times


def ridge(X, y, alpha):
    """The coefficients w, and the steps of the solver. `X` is placed; its columns and `y` have mean 0."""
    steps = []
    x = X.as_linear_operator()
    normal = x.T @ x + alpha * aslinearoperator(np.eye(X.shape[1]))
    w, failed = cg(normal, X.T @ y, rtol=1e-10, callback=steps.append)
    if failed:
        raise ArithmeticError(f"cg did not converge in {len(steps)} steps")
    return w, len(steps)


def main():
    parser = options(__doc__)
    parser.add_argument("--alpha", type=float, default=30.0)
    args = parser.parse_args()
    data, progress = load_diabetes(return_X_y=True)
    features, test_features, y, test_y = train_test_split(data, progress, random_state=0)
    # Squares and products of the measurements, with mean 0 and variance 1: then the intercept is the mean of y.
    prepare = make_pipeline(PolynomialFeatures(include_bias=False), StandardScaler())
    features = prepare.fit_transform(features)
    test_features = prepare.transform(test_features)
    with cluster(args) as c:
        X = c.put(features)
        print(X)
        (w, steps), cluster_s = fastest(lambda: ridge(X, y - y.mean(), args.alpha))
    theirs, here_s = fastest(lambda: Ridge(alpha=args.alpha).fit(features, y))

    def r2(prediction):
        return 1 - np.sum((test_y - prediction) ** 2) / np.sum((test_y - test_y.mean()) ** 2)

    print(f"{steps} steps; R² on {len(test_y)} other patients: {r2(test_features @ w + y.mean()):.6f}, "
          f"with scikit-learn {r2(theirs.predict(test_features)):.6f}")
    difference = np.linalg.norm(w - theirs.coef_) / np.linalg.norm(theirs.coef_)
    print(f"check: coefficients differ from scikit-learn's by {difference:.1e}, relatively")
    print_times(cluster_s, here_s, "scikit-learn")


if __name__ == "__main__":
    main()
