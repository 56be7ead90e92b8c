"""Commands on models' files: what is downloaded, what is on this machine, what is deleted."""

import click

from lmx.supervisor.cli.command import command, json_option, place
from lmx.supervisor.cli.completion import MODEL, SHORT_NAME


def _names() -> list[str]:
    from lmx.supervisor.config.known_models import KNOWN_MODELS

    return [f"  {name:<22}{repository}" for name, repository in KNOWN_MODELS.items()]


@click.command(epilog="\b\nShort names:\n" + "\n".join(_names()))
@click.argument("repository", metavar="NAME|ORG/NAME[@REVISION]", required=False, type=SHORT_NAME)
@click.option("--file", "filename", metavar="NAME", help="This file of it alone, as a .gguf.")
@click.option(
    "--bits",
    type=click.Choice(["4", "8", "mixed"]),
    default=None,
    help="Quantize it: to 4 bits, 8, or 4 and 6 (mixed).",
)
@click.option("--search", metavar="WORDS", help="Find models on the hub by their names.")
@click.option("--cancel", metavar="ID", help="End a download; what is here is kept.")
@command
def download(
    repository: str | None,
    filename: str | None,
    bits: str | None,
    search: str | None,
    cancel: str | None,
) -> None:
    """Download a model from the hub, and serve it from then on.

    Shows first how large it is, whether the disk and the memory have room for it, the longest
    context that fits, and which models would be evicted. lmx need not run. If it does, Ctrl-C
    leaves the download running. An interrupted download resumes.

    With --bits the model is quantized once it is here, and the result is served as NAME-4bit,
    NAME-8bit or NAME-mixed; the original stays, and is not served. ORG/NAME is then also a folder
    or a .gguf file of this machine. How well it predicts a text before and after is measured, and
    `lmx show` says it.

    \b
    Examples:
      lmx pull qwen3-8b
      lmx pull mlx-community/Qwen3-8B-4bit
      lmx pull Qwen/Qwen3-8B --bits 4
      lmx pull --search "qwen3 coder"
    """
    from lmx.supervisor.cli.download import cancel_download, download_model, search_models
    from lmx.supervisor.sockets.remote import not_remote
    from lmx.supervisor.state.home import Home

    if (repository, search, cancel).count(None) != 2:
        raise click.UsageError(
            "give a model (a short name or ORG/NAME), --search WORDS or --cancel ID"
        )
    if bits is not None and repository is None:
        raise click.UsageError("--bits needs a model")
    if filename is not None and repository is None:
        raise click.UsageError("--file needs a model")
    if search is not None:
        here = place()
        if not isinstance(here, Home):
            raise not_remote("`lmx pull --search`")
        search_models(here, search)
    elif cancel is not None:
        cancel_download(place(), cancel)
    elif repository is not None:
        download_model(place(), repository, filename, bits)


@click.command()
@json_option
@command
def downloads(as_json: bool) -> None:
    """Show the downloads, the latest first. lmx need not run."""
    from lmx.supervisor.cli.download import show_downloads

    show_downloads(place(), as_json)


@click.command()
@json_option
@command
def available(as_json: bool) -> None:
    """Show the models whose files are whole on this machine. lmx need not run."""
    from lmx.supervisor.cli.download import show_available

    show_available(place(), as_json)


@click.command()
@click.argument("model", type=MODEL)
@click.option("--force", is_flag=True, help="Unload it first, once its streams have ended.")
@command
def delete(model: str, force: bool) -> None:
    """Delete MODEL's files: those in the hub's cache, and what lmx converted.

    MODEL is a model, or a name that `list` shows. lmx need not run.
    """
    from lmx.supervisor.cli.download import delete_model

    delete_model(place(), model, force=force)
