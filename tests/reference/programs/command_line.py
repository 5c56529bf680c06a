"""A walk through the command line: each line with its exit code, and the facts that its output states."""

import io
import os
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import entry_points

(SCRIPT,) = entry_points(group="console_scripts", name="zae-limiter")
COMMAND = SCRIPT.load()
STACK = ("--name", os.environ["ZAEL_STACK"])


def call(line: str, *facts: str) -> None:
    """Run a command; print whether it succeeds, and which of the facts its output states."""
    output, code = io.StringIO(), None
    with redirect_stdout(output), redirect_stderr(output):
        try:
            COMMAND([*shlex.split(line), *STACK])
        except SystemExit as end:
            code = end.code
    shown = " ".join(re.findall(r"[\w,./@-]+", output.getvalue()))
    print(f"zae-limiter {line}: {'failed' if code else 'done'}", [fact for fact in facts if fact in shown])


call("system set-defaults -l tpm:100000 -l rpm:1000 --on-unavailable allow", "tpm", "100,000/min", "rpm", "1,000/min")
call("system get-defaults", "tpm 100,000/min", "rpm 1,000/min", "allow")
call("resource set-defaults gpt-4 -l tpm:50000 -l rpm:500:750", "50,000/min", "500/min", "750")
call("resource get-defaults gpt-4", "tpm 50,000/min", "rpm 500/min")
call("resource list", "gpt-4")
call("entity create org-1", "org-1")
call('entity create user-123 --display-name "Ann" --parent org-1 --cascade', "user-123")
call("entity create user-123", "user-123")
call("entity show user-123", "user-123", "Ann", "org-1")
call("entity set-limits user-123 --resource gpt-4 -l rpm:1000 -l tph:50000/hour --soft tph", "rpm", "1,000/min")
call("entity get-limits user-123 --resource gpt-4", "rpm 1,000/min", "tph")
call("entity list --with-custom-limits gpt-4 --limit 10", "user-123")
call("entity list-resources", "gpt-4")
call("entity set-parent user-123 --none", "user-123")
call("entity set-parent user-123 --parent nobody", "nobody")
call("audit list -e user-123 -l 10", "limits_set", "entity_created")
call("usage list --entity-id user-123 -w hourly")
call("namespace register tenant-a tenant-b", "tenant-a", "tenant-b")
call("namespace list", "default", "tenant-a", "tenant-b")
call("entity create user-1 -N tenant-a", "user-1")
call("entity show user-1", "user-1")
call("namespace delete tenant-b --yes", "tenant-b")
call("entity delete-limits user-123 -r gpt-4 --yes", "user-123")
call("system set-defaults -l nonsense", "nonsense")
