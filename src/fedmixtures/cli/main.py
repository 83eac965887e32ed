"""`fedmixtures`: the commands, loaded when they are called, and how errors are told."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts import App
    from rich.console import Console

# Command to the line `--help` shows: the modules, and with them JAX and scikit-learn,
# are imported only when the command runs. A command whose module is not there is not offered.
COMMANDS = {
    "demo": "Fit a small built-in network and open the report: the first thing to try.",
    "fit": "Fit one mixture per node of your own table.",
    "predict": "Assign new rows to components, with a fitted run.",
    "report": "Write the report page of a run again.",
    "compare": "Compare methods on the same splits and seeds.",
    "score": "Log-density of new rows, with a fitted run.",
    "explain": "One node of a run in words: whom it listens to, and why.",
    "adapt": "Make new rows a node of a fitted run.",
    "export": "Take one node's mixture elsewhere: JSON, scikit-learn, ONNX.",
    "methods": "List the methods there are.",
    "federate": "Run between silos.",
}
MODULES = {"demo": "compare", "methods": "compare"}
MODULES |= dict.fromkeys(("predict", "report", "export"), "finished")
MODULES |= dict.fromkeys(("score", "explain", "adapt"), "using")
"""Where a command is not in a module of its name."""
HELP = """One Gaussian mixture per node, coupled over a graph.

Rows stay where they are; nodes exchange model parameters with their neighbours.

Examples: `fedmixtures demo` shows it on built-in data.
`fedmixtures fit data.csv --nodes hospital --graph edges.csv --k 5 --out run/` fits your own.
`fedmixtures fit --help` explains every option."""


def begin(text: str) -> None:
    """The first sign of life of a command: what it needs is then imported for seconds."""
    print(text, flush=True)


@cache
def console(stderr: bool = False) -> Console:
    """Where everything is printed."""
    from rich.console import Console

    return Console(
        stderr=stderr, highlight=False, emoji=False
    )  # ":CD:" in a fingerprint is no disc


def say(text: str, style: str | None = None) -> None:
    """Print a line."""
    console().print(text, style=style, soft_wrap=True, markup=False)


def build_app(asked: str | None = None) -> App:
    """The command line with all commands there are; the one asked for brings its own help."""
    from cyclopts import App

    from fedmixtures import __version__

    app = App(
        name="fedmixtures",
        help=HELP,
        version=__version__,
        help_format="markdown",
        suppress_keyboard_interrupt=False,
    )
    for name, line in COMMANDS.items():
        module = f"fedmixtures.cli.{MODULES.get(name, name)}"
        if importlib.util.find_spec(module) is not None:
            help_line = {} if name == asked else {"help": line}
            app.command(f"{module}:{name}", name=name, **help_line)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code (0 well, 2 wrong input, 130 interrupted)."""
    try:
        from cyclopts import CycloptsError
    except ModuleNotFoundError:
        print('The command line needs more packages: pip install "fedmixtures[cli,report]"')
        return 2
    if arguments is None:
        arguments = sys.argv[1:]
        _collect_rarely()
    try:
        build_app(asked=arguments[0] if arguments else None)(
            list(arguments), exit_on_error=False, print_error=False, result_action="return_none"
        )
    except CycloptsError as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("jinja2", "pyarrow", "rich", "skl2onnx"):
            raise
        return _refuse(
            f"the package {error.name!r} is missing. Install it with the others: "
            'pip install "fedmixtures[cli,report]"'
        )
    except (ValueError, OSError) as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    return 0


def _collect_rarely() -> None:
    """In a process of our own: what libraries made when they were imported is no garbage.

    To look through it again and again, and at the end, takes a fifth of a small fit's time: of six
    hundred rows at six nodes 3.0 s of a processor, 2.3 s without.
    """
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)


def _refuse(message: str) -> int:
    """One paragraph on what was wrong; nothing else."""
    from rich.text import Text

    paragraph = " ".join(message.split())
    console(stderr=True).print(Text.assemble(("Error: ", "bold red"), paragraph), soft_wrap=True)
    return 2
