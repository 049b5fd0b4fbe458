"""One notebook in JupyterLab, and what a reader does with it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from support import ROOT, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

PICTURES = ROOT / "runs" / "browser"


class Lab:
    """A page of JupyterLab that shows one notebook of ``project``; ``server`` is the address, with ``%s`` in it."""

    def __init__(self, page: Page, server: str, project: Path) -> None:
        self.page, self.server, self.project = page, server, project

    def open(self, name: str) -> None:
        self.page.goto(self.server % name)
        self.page.locator(".jp-Notebook").wait_for(timeout=60_000)
        self.page.locator(".jp-NotebookPanel-toolbar").wait_for()
        assert wait_until(lambda: self.state() == "idle", 60)

    def write(self, name: str, *cells: str) -> None:
        """Write a notebook of these code cells to the project and open it."""
        first = json.loads((self.project / "notebooks" / "00_quickstart.ipynb").read_text())
        code = next(cell for cell in first["cells"] if cell["cell_type"] == "code")
        sources = ["".join(code["source"]), *cells]
        first["cells"] = [
            {**code, "id": f"cell-{number}", "source": text, "outputs": [], "execution_count": None, "metadata": {}}
            for number, text in enumerate(sources)
        ]
        (self.project / "notebooks" / name).write_text(json.dumps(first))
        self.open(name)

    def state(self) -> str:
        """Return what the kernel is doing: idle, busy, starting, restarting ..."""
        return self.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status ?? 'none'"
        )

    def menu(self, *entries: str) -> None:
        """Choose an entry of a menu, with the mouse."""
        first, *others = entries
        self.page.locator(".lm-MenuBar-item", has_text=first).first.click()
        for entry in others:
            self.page.locator(".lm-Menu-item", has_text=entry).first.click()

    def run_all(self) -> None:
        self.menu("Run", "Run All Cells")

    def finished(self, seconds: float) -> bool:
        """Wait until no cell waits or runs any more."""
        busy = lambda: self.page.locator(".jp-InputPrompt").filter(has_text="*").count()  # noqa: E731
        return wait_until(lambda: not busy() and self.state() == "idle", seconds)

    def cells(self) -> list[dict]:
        """Return the cells with their sources and outputs, as the page holds them."""
        return self.page.evaluate("() => window.jupyterapp.shell.currentWidget.content.model.toJSON().cells")

    def index(self, text: str) -> int:
        """Return the number of the only code cell whose source contains ``text``."""
        (found,) = (i for i, cell in enumerate(self.cells()) if cell["cell_type"] == "code" and text in source(cell))
        return found

    def run(self, index: int, seconds: float = 60) -> str:
        """Run one cell with Shift and Enter, as a reader does, and return what it shows as text."""
        self.select(index)
        widget = f"window.jupyterapp.shell.currentWidget.content.widgets[{index}].model"
        self.page.evaluate(f"() => {{ {widget}.sharedModel.execution_count = null }}")
        self.page.keyboard.press("Shift+Enter")
        # Its number comes when it has ended. That nothing is busy is also true before the kernel has heard of it.
        assert wait_until(lambda: self.page.evaluate(f"() => {widget}.executionCount") is not None, seconds)
        assert self.finished(seconds)
        return shown(self.cells()[index])

    def select(self, index: int) -> None:
        self.page.evaluate(
            """(index) => {
                const panel = window.jupyterapp.shell.currentWidget;
                panel.content.activeCellIndex = index; panel.content.mode = 'command'; panel.content.node.focus();
            }""",
            index,
        )

    def edit(self, index: int, text: str) -> None:
        """Put ``text`` into a cell."""
        self.page.evaluate(
            """([index, text]) => window.jupyterapp.shell.currentWidget.content.widgets[index]
                .model.sharedModel.setSource(text)""",
            [index, text],
        )

    def stop(self) -> None:
        """Press the button with the square."""
        self.page.locator('[data-command="notebook:interrupt-kernel"]').first.click()

    def kernels(self) -> list[psutil.Process]:
        """Return the processes of the kernels of this project's JupyterLab."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if "ipykernel_launcher" in " ".join(process.info["cmdline"] or []):
                with contextlib.suppress(psutil.Error):
                    if str(self.project) in process.cwd():
                        found.append(process)
        return found

    def ranks(self) -> list[int]:
        """Return the process ids of everything that the kernels have started."""
        started = []
        for kernel in self.kernels():
            with contextlib.suppress(psutil.NoSuchProcess):
                children = kernel.children(recursive=True)
                # multiprocessing's own helper belongs to the kernel, and stays as long as it.
                started += [child.pid for child in children if "resource_tracker" not in " ".join(child.cmdline())]
        return started

    def picture(self, name: str) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png")


def source(cell: dict) -> str:
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def shown(cell: dict) -> str:
    """Return all text that a cell's outputs show."""
    parts = []
    for output in cell["outputs"]:
        parts += [output.get("text", ""), output.get("data", {}).get("text/plain", ""), output.get("evalue", "")]
    return "\n".join(part if isinstance(part, str) else "".join(part) for part in parts if part).strip()
