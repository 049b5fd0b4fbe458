"""JupyterLab, started as the README says, and a real browser in front of it. Pictures of it go to ``runs/browser/``."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from lab import Lab
from support import OF_A_LAUNCHER, ROOT, all_gone, free_port, wait_until

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# All cells are in the page, not only those in view, and no panel asks anything.
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "apputils-extension/themes": {"theme": "JupyterLab Light", "adaptive-theme": False},
}


def pytest_collection_modifyitems(items):
    reason = None
    if sync_playwright is None:
        reason = "playwright is not installed (pip install -r tests/browser/requirements.txt)"
    elif CHROMIUM is None:
        reason = "there is no Chromium (on Debian: apt-get install chromium)"
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("browser")
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """A fresh copy of what is committed or about to be, in a folder with a space, as a git repository of its own."""
    folder = tmp_path_factory.mktemp("browser") / "my project"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    git = ["git", "-c", "user.name=reader", "-c", "user.email=reader@localhost"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "as it came"]):
        subprocess.run([*git, *arguments], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="session")
def server(project, tmp_path_factory) -> Iterator[str]:
    """The address of a JupyterLab that shows the project, with its token."""
    home = tmp_path_factory.mktemp("jupyter")
    for name, values in SETTINGS.items():
        file = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    port, token = free_port(), secrets.token_hex(16)
    surroundings = {name: value for name, value in os.environ.items() if name not in (*OF_A_LAUNCHER, "PYTHONPATH")}
    surroundings |= {
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "spaces"),
    }
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        f"--port={port}",
        f"--IdentityProvider.token={token}",
    ]
    command += ["--ServerApp.port_retries=0", "--expose-app-in-browser", *["--allow-root"] * (os.name == "posix")]
    log = (home / "log.txt").open("w")
    process = subprocess.Popen(
        [*command, "--ServerApp.root_dir=.", "notebooks/00_quickstart.ipynb"],
        cwd=project,
        env=surroundings,
        stdout=log,
        stderr=log,
    )
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/api?token={token}", timeout=2):
            return True
        assert process.poll() is None, (home / "log.txt").read_text()
        return False

    assert wait_until(answers, 60), (home / "log.txt").read_text()
    yield f"{address}/lab/tree/notebooks/%s?token={token}&reset"
    kernels = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    process.wait(30)
    assert all_gone([kernel.pid for kernel in kernels])


@pytest.fixture(scope="session")
def chromium():
    with sync_playwright() as playwright:
        # Root may not use the sandbox; and the browser shall ask nothing of any other machine.
        arguments = ["--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-component-update"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def lab(chromium, server, project) -> Iterator[Lab]:
    context = chromium.new_context(viewport={"width": 1300, "height": 1000})
    page = context.new_page()
    lab = Lab(page, server, project)
    yield lab
    if page.url.startswith("http"):
        page.evaluate("() => window.jupyterapp?.serviceManager.sessions.shutdownAll()")
        assert wait_until(lambda: not lab.kernels(), 20)
    context.close()
