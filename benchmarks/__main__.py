"""``python -m benchmarks run|scale|limits|cores|cold|...``: tables, and JSON of them."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def main() -> None:
    """Read the command line; fix threads and core before JAX, NumPy or PyTorch are imported."""
    args = _parser().parse_args()
    flags = [os.environ.get("XLA_FLAGS", "")]
    if args.command is _spread:
        os.environ["JAX_NUM_CPU_DEVICES"] = "4"
    if args.command is _cores:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(len(os.sched_getaffinity(0)))
    elif not args.all_cores and args.command not in (_cold, _rows, _uneven):
        for name in ("OMP", "MKL", "OPENBLAS"):
            os.environ[f"{name}_NUM_THREADS"] = "1"
        flags.append("--xla_cpu_multi_thread_eigen=false")
        from benchmarks.timing import one_core

        one_core()
    os.environ["XLA_FLAGS"] = " ".join(flags).strip()
    sys.path.insert(0, str(Path(__file__).parents[1] / "src"))  # the package of this checkout
    args.command(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--all-cores", action="store_true", help="leave threads and cores alone")
    parser.add_argument("--name", help="file name of the result, without .json")
    commands = parser.add_subparsers(required=True)
    couplings, times = _couplings(), _times()
    run = commands.add_parser(
        "run", help="the package against its peers", parents=[couplings, times]
    )
    run.add_argument("--problems", default="S1,S2,S3,S4")
    run.add_argument("--peers", default="P1,P2,P3")
    run.set_defaults(command=_run)
    about = "S5 and time against the number of nodes"
    scale = commands.add_parser("scale", help=about, parents=[couplings])
    scale.add_argument("--nodes", default="1000,10000,100000")
    scale.add_argument("--rounds", type=int, default=5)
    scale.set_defaults(command=_scale)
    union = commands.add_parser("union", help="twenty seeds as one program")
    union.add_argument("--couplings", default="euclidean,mmd")
    union.add_argument("--seeds", type=int, default=20)
    union.set_defaults(command=_union)
    starts = commands.add_parser("starts", help="k-means starts of many nodes")
    starts.add_argument("--nodes", default="10,30,100,300,1000")
    starts.set_defaults(command=_starts)
    fits = commands.add_parser("fits", help="1,000 local EM fits")
    fits.add_argument("--nodes", type=int, default=1000)
    fits.set_defaults(command=_fits)
    about = "distance from what one core could do"
    limits = commands.add_parser("limits", help=about, parents=[couplings, times])
    limits.add_argument("--problems", default="S2,S4")
    limits.set_defaults(command=_limits)
    cores = commands.add_parser("cores", help="what more cores add", parents=[couplings, times])
    cores.add_argument("--problems", default="S2,S4,S4@10000")
    cores.set_defaults(command=_cores)
    about = "a round against degree, components and features"
    model = commands.add_parser("model", help=about, parents=[couplings, times])
    model.set_defaults(command=_model)
    cold = commands.add_parser("cold", help="new processes: help, first and second fit")
    cold.add_argument("--repetitions", type=int, default=3)
    cold.set_defaults(command=_cold)
    about = "a million rows by the default method and the command line"
    commands.add_parser("rows", help=about).set_defaults(command=_rows)
    about = "the default method on one device and on several that share a core"
    spread = commands.add_parser("spread", help=about)
    spread.add_argument("--nodes", type=int, default=1000)
    spread.add_argument("--repetitions", type=int, default=3)
    spread.set_defaults(command=_spread)
    about = "memory of reading a Parquet file of one and of ten million rows"
    commands.add_parser("reading", help=about).set_defaults(command=_reading)
    about = "the default method on nodes of 20 to 5,000 rows, first and second fit"
    uneven = commands.add_parser("uneven", help=about)
    uneven.add_argument("--repetitions", type=int, default=3)
    uneven.set_defaults(command=_uneven)
    points = commands.add_parser("sigma-points", help="error of KL without sampling")
    points.set_defaults(command=_sigma_points)
    return parser


def _couplings() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--couplings", default="euclidean,kl,mmd")
    return shared


def _times() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--dtype", default="float64", choices=("float64", "float32"))
    shared.add_argument("--repetitions", type=int, default=3)
    return shared


def _run(args) -> None:
    from benchmarks import report
    from benchmarks.side_by_side import compare, line, load_peers

    peers = load_peers(args.peers.split(","))
    print("CPU seconds: smallest (median / smallest); ratio of CPU seconds to ours")
    results = []
    for name in args.problems.split(","):
        for coupling in args.couplings.split(","):
            results.append(compare(name, coupling, peers, args.dtype, args.repetitions))
            print(line(results[-1]), flush=True)
    print(report.write(args.name or f"side-by-side-{args.dtype}", results))


def _scale(args) -> None:
    from benchmarks import report
    from benchmarks.scale import scale

    nodes = [int(n) for n in args.nodes.split(",")]
    print(report.write(args.name or "scale", scale(nodes, args.couplings.split(","), args.rounds)))


def _union(args) -> None:
    from benchmarks import report
    from benchmarks.many import union

    results = union(args.couplings.split(","), args.seeds)
    print(report.write(args.name or "union", results))


def _starts(args) -> None:
    from benchmarks import report
    from benchmarks.many import starts

    results = starts([int(n) for n in args.nodes.split(",")])
    print(report.write(args.name or "starts", results))


def _fits(args) -> None:
    from benchmarks import report
    from benchmarks.many import fits

    print(report.write(args.name or "fits", fits(args.nodes)))


def _limits(args) -> None:
    from benchmarks import report
    from benchmarks.limits import limits

    what = args.problems.split(","), args.couplings.split(","), args.dtype, args.repetitions
    print(report.write(args.name or f"limits-{args.dtype}", limits(*what)))


def _cores(args) -> None:
    from benchmarks import report
    from benchmarks.cores import cores

    what = args.problems.split(","), args.couplings.split(","), args.dtype, args.repetitions
    print(report.write(args.name or f"cores-{args.dtype}", cores(*what)))


def _model(args) -> None:
    from benchmarks import report
    from benchmarks.model import model

    results = model(args.couplings.split(","), args.dtype, args.repetitions)
    print(report.write(args.name or "model", results))


def _cold(args) -> None:
    from benchmarks import report
    from benchmarks.cold import cold

    print(report.write(args.name or "cold", cold(args.repetitions)))


def _rows(args) -> None:
    from benchmarks import report
    from benchmarks.cold import rows

    print(report.write(args.name or "rows", rows()))


def _spread(args) -> None:
    from benchmarks import report
    from benchmarks.spread import spread

    print(report.write(args.name or "spread", spread(args.nodes, args.repetitions)))


def _reading(args) -> None:
    from benchmarks import report
    from benchmarks.reading import reading

    print(report.write(args.name or "reading", reading([1_000_000, 10_000_000])))


def _uneven(args) -> None:
    from benchmarks import report
    from benchmarks.cold import uneven

    print(report.write(args.name or "uneven", uneven(args.repetitions)))


def _sigma_points(args) -> None:
    from benchmarks import report
    from benchmarks.sigma_points import errors

    print(report.write(args.name or "sigma-points", errors()))


main()
