"""`vitals ui`: the page that shows runs, live."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from torchvitals.cli.options import echo_json, json_option

EPILOG = """\b
Examples:
  vitals ui                         the runs under ./runs, in your browser
  vitals ui /data/runs --port 9000
  ssh -L 8765:localhost:8765 gpu-box vitals ui --no-browser
  vitals ui --prefix /user/me/proxy/8765 --allow-host hub.example.org

The page only reads. It listens on this machine alone unless --host says otherwise, and answers
only browsers that were opened with its token. Ctrl-C ends it.
"""


@click.command("ui", epilog=EPILOG)
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="[default: the first free one from 8765 on]"
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--prefix", default="", metavar="PATH", help="The path a proxy shows it below.")
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="Another host name browsers may use (a proxy's); may be repeated.",
)
@click.option("--token", help="Instead of a new one: 16 characters or more. Also: VITALS_TOKEN.")
@click.option("--embed", is_flag=True, help="Let notebooks on this machine show it in a frame.")
@json_option
@click.option("--parent", type=int, hidden=True, help="End when this process has ended.")
def command(
    *,
    folder: Path | None,
    host: str,
    port: int | None,
    no_browser: bool,
    prefix: str,
    allow_hosts: tuple[str, ...],
    token: str | None,
    embed: bool,
    as_json: bool,
    parent: int | None,
) -> None:
    """Show the runs below DIR (./runs, or this folder) in the browser, live."""
    try:
        from torchvitals.dashboard import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        from torchvitals.record.errors import MissingExtra

        raise MissingExtra(
            f"the page needs {error.name}, which is not installed here. Install it with: "
            "pip install 'torchvitals[ui]'"
        ) from error
    if not serve.is_local(host):
        click.echo(
            f"vitals: listening at {host}: everybody who can reach this machine and has the token "
            "can look at these runs, and the token travels unencrypted. An ssh tunnel is safer: "
            "ssh -L 8765:localhost:8765 …",
            err=True,
        )
    here = Path("runs") if Path("runs").is_dir() else Path()

    def ready(url: str) -> None:
        if as_json:
            echo_json({"url": url, "pid": os.getpid()})
        else:
            click.echo(url)
        sys.stdout.flush()
        if parent is None:
            click.echo("The page is there until Ctrl-C.", err=True)
        if not no_browser:
            serve.open_browser(url)

    serve.serve(
        serve.Settings(
            folder=folder if folder is not None else here,
            host=host,
            port=port,
            token=token or os.environ.get("VITALS_TOKEN") or None,
            prefix=prefix,
            allow_hosts=allow_hosts,
            embed=embed,
            parent=parent,
        ),
        ready,
    )
