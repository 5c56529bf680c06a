"""``make release-check``: build what would be released, check it, install it where nothing else is, and try it.

With ``TAG=v1.0.0`` also check that the tag is the version and that the changelog has notes for it. The files stay in
``dist``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from tools.changelog import CHANGELOG, notes

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
DIST = ROOT / "dist"


def version() -> str:
    """Return the version that the source says it is."""
    scope: dict[str, str] = {}
    exec((SOURCE / "zae_limiter" / "_version.py").read_text(encoding="utf-8"), scope)
    return scope["__version__"]


def check_tag(tag: str, released: str, changelog: str) -> None:
    """Raise ``ValueError`` unless the tag is that of the version, and the version can be released."""
    if tag != f"v{released}":
        raise ValueError(f"the tag is {tag}, but the version is {released}")
    if "dev" in released:
        raise ValueError(f"{released} is a version of development; set the one to release in _version.py")
    notes(released, changelog)


def build() -> tuple[Path, Path]:
    """Build an sdist, and a wheel from that sdist. Return both."""
    shutil.rmtree(DIST, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    _run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    return sdist, wheel


def missing_in(wheel: Path) -> set[str]:
    """Return the files of the source that a wheel does not have."""
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    kept = {path.relative_to(SOURCE) for path in SOURCE.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    return {path.as_posix() for path in kept} - packed


def try_out(wheel: Path, released: str) -> None:
    """Install a wheel in an empty environment and run `tools.smoke` there, away from the repository."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        venv.create(home / "env", with_pip=True)
        python = home / "env" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
        _run(python, "-m", "pip", "check", "--disable-pip-version-check")
        shutil.copy(ROOT / "tools" / "smoke.py", home)
        _run(python, "-I", home / "smoke.py", released, cwd=home)


def _run(*command: str | Path, cwd: Path = ROOT) -> None:
    subprocess.run([str(part) for part in command], cwd=cwd, check=True)


def main(tag: str) -> int:
    """Check everything. Return 1 and say why if it cannot be released so."""
    released = version()
    try:
        if tag:
            check_tag(tag, released, CHANGELOG.read_text(encoding="utf-8"))
        _, wheel = build()
        missing = missing_in(wheel)
        if missing:
            raise ValueError(f"the wheel lacks {', '.join(sorted(missing))}")
        try_out(wheel, released)
    except (ValueError, subprocess.CalledProcessError) as error:
        print(f"not ready to be released: {error}", file=sys.stderr)
        return 1
    print(f"{released} can be released: {', '.join(sorted(path.name for path in DIST.iterdir()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
