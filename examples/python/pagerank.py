"""PageRank by power iteration, with the link matrix on the cluster.

    python examples/python/pagerank.py --local 2
    python examples/python/pagerank.py --hosts 'pi[1-4]' --nodes 8000

Two graphs: Zachary's karate club (34 members, who was friends with whom), and a generated one whose links are as unequal as
those of web pages. The matrix is stored with all its zeros. NetworkX stores the links only, which is better while most are
missing; a dense matrix is worth its memory if most pairs have a weight, as similarities do.
"""

import networkx as nx
import numpy as np

from common import cluster, fastest, options, print_times


def pagerank(cluster, weights, damping=0.85, tolerance=1e-12):
    """Ranks of all nodes, and the number of rounds. `weights[i, j]` is the weight of the link from node i to node j."""
    count = len(weights)
    out = weights.sum(axis=1)
    # Row i: the probabilities of the next node after node i. A node without links leads to all nodes alike.
    step = cluster.put(weights / np.where(out > 0, out, 1)[:, np.newaxis])
    rank = np.full(count, 1 / count)
    for rounds in range(1, 1000):
        jumps = damping * rank[out == 0].sum() + 1 - damping
        new = damping * (rank @ step) + jumps / count
        change = np.abs(new - rank).sum()
        rank = new
        if change < tolerance:
            return rank, rounds
    raise ArithmeticError(f"the ranks still change by {change:.1e} after {rounds} rounds")


def compare(cluster, name, graph):
    """Computes the ranks of a graph on the cluster and with NetworkX, and prints both."""
    weights = nx.to_numpy_array(graph)
    (ours, rounds), cluster_s = fastest(lambda: pagerank(cluster, weights))
    theirs, here_s = fastest(lambda: nx.pagerank(graph, tol=1e-14, max_iter=1000))
    theirs = np.array([theirs[node] for node in graph])
    nodes = list(graph)
    best = np.argsort(-ours, kind="stable")[:5]
    print(f"{name}: {len(graph)} nodes, {graph.number_of_edges()} links, {np.mean(weights == 0):.1%} of the matrix is zero")
    print(f"highest ranks after {rounds} rounds: " + ", ".join(f"{nodes[at]} ({ours[at]:.4f})" for at in best))
    same = "the same" if np.array_equal(best, np.argsort(-theirs, kind="stable")[:5]) else "not the same"
    print(f"check: ranks differ from NetworkX's by at most {np.abs(ours - theirs).max():.1e}; the five highest are {same}")
    print_times(cluster_s, here_s, "NetworkX")


def main():
    parser = options(__doc__)
    parser.add_argument("--nodes", type=int, default=2000, help="nodes of the generated graph")
    args = parser.parse_args()
    with cluster(args) as c:
        compare(c, "karate club", nx.karate_club_graph())
        compare(c, "generated", nx.DiGraph(nx.scale_free_graph(args.nodes, seed=1)))


if __name__ == "__main__":
    main()
