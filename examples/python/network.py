"""A neural network with one hidden layer learns handwritten digits; the products with the pictures run on the cluster.

    python examples/python/network.py --local 2
    python examples/python/network.py --hosts 'pi[1-4]' --hidden 256

The same function trains twice: with the pictures placed on the cluster, and with them as an array of NumPy. `X @ W1` and
`X.T @ error` are most of the arithmetic. The products with the hidden layer are small, both operands are here, and NumPy
multiplies them in both cases.

With pictures this small, one machine is faster. In a round each number of the hidden layer comes from the cluster and its error
goes there, for four operations a pixel. So a cluster pays if the inputs are wide (thousands of numbers each) or the network is
fast. The program prints what one product moves, and how long that takes at 1 Gbit/s.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from common import cluster, fastest, options, print_times

GIGABIT_BYTES_PER_S = 125e6


def train(X, labels, hidden, rounds, rate=0.5, momentum=0.9):
    """Gradient descent with all samples in each round. Returns the weights of the two layers."""
    rng = np.random.default_rng(0)
    samples, inputs = X.shape
    classes = labels.max() + 1
    layers = [rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(shape[0]))
              for shape in ((inputs, hidden), (hidden, classes))]
    speeds = [np.zeros_like(layer) for layer in layers]
    target = np.eye(classes, dtype=np.float32)[labels]
    for _ in range(rounds):
        active = np.maximum(X @ layers[0], 0)
        error = (softmax(active @ layers[1]) - target) / np.float32(samples)
        hidden_error = (error @ layers[1].T) * (active > 0)
        for layer, speed, gradient in zip(layers, speeds, (X.T @ hidden_error, active.T @ error)):
            speed *= momentum
            speed -= rate * gradient
            layer += speed
    return layers


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def accuracy(layers, X, labels):
    return np.mean(np.argmax(np.maximum(X @ layers[0], 0) @ layers[1], axis=1) == labels)


def main():
    parser = options(__doc__)
    parser.add_argument("--hidden", type=int, default=64, help="units of the hidden layer")
    parser.add_argument("--rounds", type=int, default=100)
    args = parser.parse_args()
    data, digits = load_digits(return_X_y=True)
    X, test_X, labels, test_labels = train_test_split((data / 16).astype(np.float32), digits, test_size=0.2, random_state=0)
    with cluster(args) as c:
        placed = c.put(X)
        print(placed)
        ours, cluster_s = fastest(lambda: train(placed, labels, args.hidden, args.rounds))
        layer = ours[0]
        _, product_s = fastest(lambda: placed @ layer)
        primary = c.last_report["product"]["primary"]
        moved_bytes = primary["bytes_sent"] + primary["bytes_received"]
    theirs, here_s = fastest(lambda: train(X, labels, args.hidden, args.rounds))
    _, product_here_s = fastest(lambda: X @ layer)
    print(f"check: {accuracy(ours, test_X, test_labels):.2%} of {len(test_labels)} other digits are right after {args.rounds} "
          f"rounds; trained with NumPy alone, {accuracy(theirs, test_X, test_labels):.2%}")
    print_times(cluster_s, here_s, "NumPy")
    wire_s = moved_bytes / GIGABIT_BYTES_PER_S
    print(f"one product with the pictures: {1e3 * product_s:.2f} ms on the cluster, {1e3 * product_here_s:.2f} ms with NumPy. "
          f"Its {moved_bytes / 1e3:.0f} kB alone take {1e3 * wire_s:.2f} ms at 1 Gbit/s")
    if wire_s > product_here_s:
        print("so over 1 Gbit/s this machine alone is faster, however many machines the cluster has")


if __name__ == "__main__":
    main()
