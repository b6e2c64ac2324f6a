"""Integer products: bramble in process against NumPy, which uses one thread and no fast path for integers."""

from common import SECONDS_HEAD, Side, arguments, bramble, compare, parse, scratch, table


def main():
    args = parse(arguments(__doc__, rounds=5))
    n = 128 if args.quick else 1024
    rows = []
    with scratch(args) as folder, Side("numpy_side.py", args.threads) as rival:
        for dtype in ("i32", "i64"):
            rival.ask(do="make", n=n, dtype=dtype, folder=folder)
            contestants = {"numpy": lambda dtype=dtype: rival.ask(do="product", n=n, dtype=dtype)}
            if args.bramble:
                words = ["multiply", folder / "A.npy", folder / "B.npy", "--threads", args.threads]
                contestants["bramble"] = lambda words=words: bramble(args, *words)["seconds"]
            rows += compare(args, "integers", f"product {dtype} n={n}", contestants, threads=args.threads)
    table(f"Integer product, {args.threads} threads", SECONDS_HEAD, rows)


if __name__ == "__main__":
    main()
