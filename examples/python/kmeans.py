"""k-means on handwritten digits: the pictures stay on the workers.

    python examples/python/kmeans.py --local 2
    python examples/python/kmeans.py --hosts 'pi[1-4]' --clusters 20

The centre c that is nearest to x has the largest x·c - |c|²/2. With a column of ones beside the pictures this is one product,
and `topk` with k = 1 tells the centre of each picture. So in a round the centres go out, and an index and a number for each picture
come back. This process has the pictures, too, and adds up those of each centre: 2 operations for each element, against 2 k for the
product. As a product, X.T @ B, they would take a matrix B of 0 and 1 that goes out, k elements for each picture, and sums of all
clusters from each worker.
"""

import numpy as np
from scipy.sparse import csr_array
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.datasets import load_digits

import bramble
from common import cluster, fastest, options, print_times


class ClusterKMeans:
    """Lloyd's algorithm on a cluster, until no sample changes its centre. `init`: the first centres, one a row."""

    def __init__(self, cluster, init, max_iter=300):
        self.cluster, self.init, self.max_iter = cluster, init, max_iter

    def place(self, samples):
        """The samples, one a row, with a column of ones beside them, on the workers."""
        return self.cluster.put(np.hstack([samples, np.ones((len(samples), 1), samples.dtype)]), bramble.Shard(0), copy=False)

    def fit(self, samples, placed=None):
        """Moves the centres. `placed`: the result of `place`, if the samples are on the workers already."""
        X = self.place(samples) if placed is None else placed
        self.cluster_centers_ = np.array(self.init)
        self.labels_ = None
        for self.n_iter_ in range(1, self.max_iter + 1):
            labels, scores = self._nearest(X)
            if self.labels_ is not None and np.array_equal(labels, self.labels_):
                break
            self.labels_ = labels
            self._move(samples)
        else:
            self.labels_, scores = self._nearest(X)
        squares = np.einsum("ij,ij->i", samples, samples)
        self.inertia_ = squares.sum(dtype=np.float64) - 2 * scores.sum(dtype=np.float64)
        return self

    def _nearest(self, X):
        """The centre of each sample x, and its x·c - |c|²/2."""
        centres = self.cluster_centers_
        operand = np.vstack([centres.T, -np.sum(centres**2, axis=1) / 2])
        labels, scores = self.cluster.topk(X, operand, 1)
        return labels[:, 0], scores[:, 0]

    def _move(self, samples):
        """Each centre becomes the mean of its samples."""
        count, clusters = len(samples), len(self.cluster_centers_)
        ones = np.ones(count, samples.dtype)
        belongs = csr_array((ones, self.labels_, np.arange(count + 1)), shape=(count, clusters))
        sizes = np.bincount(self.labels_, minlength=clusters)[:, np.newaxis].astype(samples.dtype)
        # An empty cluster keeps its centre. scikit-learn moves it to a far sample; neither happens with the digits.
        self.cluster_centers_ = np.where(sizes > 0, belongs.T @ samples / np.maximum(sizes, 1), self.cluster_centers_)


def main():
    parser = options(__doc__)
    parser.add_argument("--clusters", type=int, default=10)
    args = parser.parse_args()
    samples, digits = load_digits(return_X_y=True)
    init, _ = kmeans_plusplus(samples, args.clusters, random_state=0)
    with cluster(args) as c:
        ours, cluster_s = fastest(lambda: ClusterKMeans(c, init).fit(samples))
    theirs, here_s = fastest(lambda: KMeans(args.clusters, init=init, n_init=1, tol=0).fit(samples))
    same_digit = sum(np.bincount(digits[ours.labels_ == k]).max(initial=0) for k in range(args.clusters)) / len(digits)
    print(f"{len(samples)} pictures, {args.clusters} clusters: {ours.n_iter_} rounds (scikit-learn: {theirs.n_iter_})")
    print(f"{same_digit:.1%} of the pictures show the most frequent digit of their cluster")
    difference = abs(ours.inertia_ / theirs.inertia_ - 1)
    print(f"check: inertia {ours.inertia_:.6f}, scikit-learn's {theirs.inertia_:.6f}, relative difference {difference:.1e}; "
          f"{(ours.labels_ == theirs.labels_).mean():.2%} of the labels are equal")
    print_times(cluster_s, here_s, "scikit-learn")


if __name__ == "__main__":
    main()
