"""Compression of a photograph by its largest singular values, which SciPy finds with products on the cluster.

    python examples/python/image.py --local 2
    python examples/python/image.py --hosts 'pi[1-4]' --rank 80 --output china-80.png

Shows `as_linear_operator`: `scipy.sparse.linalg.svds` never sees the elements of the placed matrix. The photograph is
china.jpg of scikit-learn, 427 rows of 640 pixels of 3 colours, as a matrix of 427 × 1920.
"""

import numpy as np
from PIL import Image
from scipy.sparse.linalg import svds
from sklearn.datasets import load_sample_image

from common import cluster, fastest, options, print_times


def psnr(picture, approximation):
    """Peak signal-to-noise ratio of brightnesses from 0 to 1, in dB."""
    return -10 * np.log10(np.mean((picture - np.clip(approximation, 0, 1)) ** 2))


def main():
    parser = options(__doc__)
    parser.add_argument("--rank", type=int, default=40)
    parser.add_argument("--output", metavar="PNG", help="write the compressed photograph here")
    args = parser.parse_args()
    photograph = load_sample_image("china.jpg")
    picture = photograph.reshape(len(photograph), -1) / 255
    rows, cols = picture.shape
    with cluster(args) as c:
        A = c.put(picture)
        print(A)
        # svds starts from a vector, here one that is the same in each run.
        start = np.ones(min(rows, cols))
        (u, values, vt), cluster_s = fastest(lambda: svds(A.as_linear_operator(), args.rank, v0=start))
    (all_u, all_values, all_vt), here_s = fastest(lambda: np.linalg.svd(picture, full_matrices=False))
    ours = (u * values) @ vt
    best = (all_u[:, :args.rank] * all_values[:args.rank]) @ all_vt[:args.rank]
    numbers = args.rank * (rows + cols + 1)
    print(f"rank {args.rank}: {numbers} numbers instead of {picture.size}, 1/{picture.size / numbers:.1f}")
    difference = np.abs(np.sort(values)[::-1] / all_values[:args.rank] - 1).max()
    print(f"check: PSNR {psnr(picture, ours):.4f} dB, with NumPy's SVD {psnr(picture, best):.4f} dB; "
          f"singular values differ by at most {difference:.1e}, relatively")
    print_times(cluster_s, here_s, "NumPy (all singular values)")
    if args.output:
        Image.fromarray(np.rint(np.clip(ours, 0, 1) * 255).astype(np.uint8).reshape(photograph.shape)).save(args.output)
        print(f"wrote {args.output}")


if __name__ == "__main__":
    main()
