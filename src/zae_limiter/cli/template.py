"""``zae-limiter cfn-template`` and ``zae-limiter lambda-export``: the parts of a deployment, for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from .commands import Command, Shell

_FILE = click.Path(dir_okay=False, path_type=Path)
_force_option = click.option("--force", "-f", is_flag=True, help="Overwrite an existing file.")


@click.command(cls=Command)
@click.option("--output", "-o", metavar="FILE", type=_FILE, help="Write it to a file instead.")
@_force_option
def cfn_template(shell: Shell, output: Path | None, force: bool) -> None:
    """Print the CloudFormation template.

    The stack's name becomes the name of the table. The aggregator's code is not in it: see lambda-export.

    Examples:
      zae-limiter cfn-template > template.yaml
      zae-limiter cfn-template --output template.yaml --force
    """
    from ..aws import template

    text = template.read_template()
    if output is None:
        shell.show({"template": text}, text.rstrip("\n"))
        return
    _write(output, text.encode(), force)
    shell.show({"path": str(output), "bytes": len(text.encode())}, f"The template is in {output}.")


@click.command(cls=Command)
@click.option("--output", "-o", metavar="FILE", type=_FILE, default="lambda.zip", show_default=True, help="The zip.")
@_force_option
def lambda_export(shell: Shell, output: Path, force: bool) -> None:
    """Write the aggregator's Lambda package.

    The same version of zae-limiter always makes the same bytes; the digest is the CodeSha256 that Lambda shows.

    Examples:
      zae-limiter lambda-export --output lambda.zip
      zae-limiter lambda-export --output lambda.zip --force --json
    """
    from ..aws import package

    content = package.build()
    _write(output, content, force)
    digest = package.sha256(content)
    shell.show(
        {"path": str(output), "bytes": len(content), "code_sha256": digest},
        f"The Lambda package is in {output}: {len(content):,} bytes, CodeSha256 {digest}.",
    )


def _write(path: Path, content: bytes, force: bool) -> None:
    """Write a file. Raise `BadParameter` if it exists, unless ``force`` is True."""
    try:
        with path.open("wb" if force else "xb") as file:
            file.write(content)
    except FileExistsError:
        raise click.BadParameter(f"{path} already exists; --force overwrites it", param_hint="--output") from None
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", param_hint="--output") from None
