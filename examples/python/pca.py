"""Principal components of handwritten digits, by randomised subspace iteration with the products on the cluster.

    python examples/python/pca.py --local 2
    python examples/python/pca.py --hosts 'pi[1-4]' --components 20

`ClusterPCA` is an estimator like scikit-learn's. The pictures stay on the workers; blocks of a few vectors travel. The mean is
never subtracted from the placed matrix: (X - 1 mᵀ) Q = X Q - 1 (mᵀ Q).
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from common import cluster, fastest, options, print_times


class ClusterPCA:
    """Principal components of a matrix that is placed on a cluster.

    After N. Halko, P. G. Martinsson and J. A. Tropp, "Finding structure with randomness", SIAM Review 53 (2011), algorithm 4.4.
    """

    def __init__(self, n_components, rounds=8, oversampling=10, seed=0):
        self.n_components, self.rounds, self.oversampling, self.seed = n_components, rounds, oversampling, seed

    def fit(self, X):
        """`X`: a placed matrix with one sample a row."""
        rows, cols = X.shape
        self.mean_ = X.sum(axis=0) / rows
        width = min(self.n_components + self.oversampling, rows, cols)
        start = np.random.default_rng(self.seed).standard_normal((cols, width)).astype(X.dtype)
        basis, _ = np.linalg.qr(start)
        for _ in range(self.rounds):
            left, _ = np.linalg.qr(self._times(X, basis))
            basis, _ = np.linalg.qr(self._transposed_times(X, left))
        left, _ = np.linalg.qr(self._times(X, basis))
        _, values, components = np.linalg.svd(self._transposed_times(X, left).T, full_matrices=False)
        self.singular_values_ = values[:self.n_components]
        self.components_ = components[:self.n_components]
        self.explained_variance_ = self.singular_values_**2 / (rows - 1)
        return self

    def transform(self, X):
        """Coordinates of each row of `X` along the components."""
        return self._times(X, self.components_.T)

    def _times(self, X, block):
        return X @ block - self.mean_ @ block

    def _transposed_times(self, X, block):
        return X.T @ block - np.outer(self.mean_, block.sum(axis=0))


def main():
    parser = options(__doc__)
    parser.add_argument("--components", type=int, default=10)
    args = parser.parse_args()
    pictures = load_digits().data
    with cluster(args) as c:
        X = c.put(pictures)
        print(X)
        ours, cluster_s = fastest(lambda: ClusterPCA(args.components).fit(X))
        coordinates = ours.transform(X)
    theirs, here_s = fastest(lambda: PCA(args.components, svd_solver="full").fit(pictures))
    variance = ours.explained_variance_.sum() / pictures.var(axis=0, ddof=1).sum()
    print(f"{args.components} components of {pictures.shape[1]} explain {variance:.1%} of the variance")
    difference = np.abs(ours.singular_values_ / theirs.singular_values_ - 1).max()
    # The sign of a component is free.
    aligned = np.abs(np.sum(ours.components_ * theirs.components_, axis=1)).min()
    off = np.abs(np.abs(coordinates) - np.abs(theirs.transform(pictures))).max()
    print(f"check: singular values differ from scikit-learn's by at most {difference:.1e}, relatively; "
          f"cosine between components at least {aligned:.6f}; coordinates differ by at most {off:.1e}")
    print_times(cluster_s, here_s, "scikit-learn")


if __name__ == "__main__":
    main()
