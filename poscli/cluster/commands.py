"""`poscli run --ray`: the option, and what it makes of the number of workers, their threads and their memory."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from poscli.cli.commands import COMMANDS
from poscli.cli.commands.run_suite import OtherWorkers
from poscli.system.errors import UsageError

if TYPE_CHECKING:
    from poscli.sweep.crew import Crew

Ray = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="[ADDRESS]", show_default=False,
        help="Run on the Ray cluster at HOST:PORT (auto: the one of this machine); without an address, on one that is "
        "started here and stopped in the end. There are then as many workers as fit, each with one core, by default.",
    ),
]  # fmt: skip


@dataclass(frozen=True)
class OnRay(OtherWorkers):
    """The address of the cluster that runs a suite; None for none."""

    ray: Ray = None

    def crew(self, crew: Crew) -> Crew:
        from poscli.cluster.cluster import RayCrew

        return crew if self.ray is None else RayCrew(**asdict(crew), address=self.ray)

    @classmethod
    def arguments(cls, arguments: list[str]) -> list[str]:
        """The arguments with an address after --ray, which may stand alone.

        >>> OnRay.arguments(["--ray", "a.toml"]), OnRay.arguments(["a.toml", "--ray", "auto"])
        (['--ray=local', 'a.toml'], ['a.toml', '--ray=auto'])
        """
        written: list[str] = []
        for argument in arguments:
            if written and written[-1] == "--ray=local" and re.fullmatch(r"|auto|[^-].*:.*|[\d.]+", argument):
                written[-1] = f"--ray={argument}"
            else:
                written.append("--ray=local" if argument == "--ray" else argument)
        if "--ray=" in written:  # what a variable of a shell that is not set leaves
            raise UsageError("--ray has an empty address; give HOST:PORT, or --ray alone for a cluster started here")
        return written


COMMANDS.add("run.ray", OnRay)
