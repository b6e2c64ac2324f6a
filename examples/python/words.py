"""Nearest words: the table of a language model's word vectors stays on the workers, and only the best matches come back.

    python examples/python/words.py --local 2
    python examples/python/words.py --hosts 'pi[1-4]' --words king,paris --count 8

Shows `put` and `Cluster.topk`. The vectors are those of examples/words.py (30522 words, 384 numbers each; 84 MB from PyPI the
first time). `x @ W.T` has an element for each query and each word. `topk` reduces it at the workers, so it never travels.
"""

import json
import runpy
from pathlib import Path

import numpy as np

from common import cluster, fastest, options, print_times

OLDER = runpy.run_path(str(Path(__file__).resolve().parent.parent / "words.py"))


def load():
    """Unit vectors, one a row, and the word of each row."""
    model, vocabulary = OLDER["model_files"]()
    with open(model, "rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        tensor = json.loads(file.read(header_bytes))[OLDER["TENSOR"]]
    at = 8 + header_bytes + tensor["data_offsets"][0]
    vectors = np.memmap(model, dtype="<f4", mode="r", offset=at, shape=tuple(tensor["shape"]))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), vocabulary.read_text(encoding="utf-8").splitlines()


def topk_numpy(x, vectors, count):
    """What `Cluster.topk` does, with NumPy: columns and values of the largest elements of each row of the product."""
    scores = x @ vectors.T
    columns = np.argpartition(scores, -count, axis=1)[:, -count:]
    values = np.take_along_axis(scores, columns, axis=1)
    order = np.argsort(-values, axis=1)
    return np.take_along_axis(columns, order, axis=1), np.take_along_axis(values, order, axis=1)


def main():
    parser = options(__doc__)
    parser.add_argument("--words", default="king,paris,python,blue", help="words to look up")
    parser.add_argument("--count", type=int, default=5, help="neighbours of each word")
    parser.add_argument("--queries", type=int, default=512, help="random words that are looked up at once")
    args = parser.parse_args()
    vectors, words = load()
    row = {word: at for at, word in enumerate(words)}
    asked = args.words.split(",")
    if unknown := [word for word in asked if word not in row]:
        parser.error(f"not among the {len(words)} words: {', '.join(unknown)}")
    with cluster(args) as c:
        W = c.put(vectors, copy=False)
        print(f"{W!r}: {W.nbytes / 1e6:.1f} MB, placed in {c.last_report['seconds']:.2f} s")
        # The nearest word to each word is the word itself.
        nearest, cosine = c.topk(vectors[[row[word] for word in asked]], W.T, args.count + 1)
        for word, columns, values in zip(asked, nearest, cosine):
            print(f"{word}: " + ", ".join(f"{words[j]} {value:.3f}" for j, value in zip(columns[1:], values[1:])))

        x = vectors[np.random.default_rng(0).choice(len(words), args.queries, replace=False)]
        (nearest, cosine), cluster_s = fastest(lambda: c.topk(x, W.T, args.count))
        sent = c.last_report["bytes_sent"]
    (expected, expected_cosine), here_s = fastest(lambda: topk_numpy(x, vectors, args.count))
    product_bytes = args.queries * len(words) * vectors.itemsize
    print(f"{args.queries} words at once: {sent / 1e6:.1f} MB sent; the product of {product_bytes / 1e6:.0f} MB never travels")
    print(f"check: {(nearest == expected).mean():.2%} of the neighbours are NumPy's, cosines differ by at most "
          f"{np.abs(cosine - expected_cosine).max():.1e}")
    print_times(cluster_s, here_s, "NumPy")


if __name__ == "__main__":
    main()
