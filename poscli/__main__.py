"""`poscli` and `python -m poscli`. Signals are watched and streams are guarded before anything slow is imported."""

from __future__ import annotations

import os

from poscli.system import signals


def main() -> None:
    """Run the command line of this process."""
    signals.watch()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it would look for them in every installed package
    try:
        from poscli.system.streams import guard, settle

        guard()
        from poscli.cli import main as run

        try:
            run()
        finally:
            settle()
    except signals.Interruption as late:  # before or after the command, which has its own words for it
        signals.leave(late.exit_code)
    finally:
        signals.end_silently()


if __name__ == "__main__":
    main()
