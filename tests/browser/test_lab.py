"""What a reader does in JupyterLab, done by a browser."""

import json
import re
import subprocess

import pytest
from lab import shown, source
from support import ROOT, all_gone, wait_until

NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
TRAINING = """
from ddp_tutorial import Config, LivePlot, launch, train
config = Config(epochs={epochs}, data=ROOT / "data")
history = launch(train, (config,), world_size=2, device="cpu", on_event=LivePlot())[0]
"""


def test_the_quickstart_moves_while_it_trains_and_learns(lab, project):
    lab.open("00_quickstart.ipynb")
    lab.menu("Edit", "Clear Outputs of All Cells")
    training = lab.index("on_event=LivePlot()")
    cell = lab.page.locator(".jp-Notebook-cell").nth(training)
    lab.run_all()
    steps, pictures = set(), 0

    def watch():
        nonlocal pictures
        state = cell.evaluate(
            """cell => [cell.querySelector('.jp-InputPrompt').textContent,
                cell.querySelector('progress')?.value, cell.querySelectorAll('.jp-OutputArea img').length]"""
        )
        if "*" in state[0] and state[1]:
            steps.add(state[1])
            pictures = max(pictures, state[2])
        return state[0].strip("[]: ").isdigit()

    assert wait_until(watch, 90)
    lab.picture("quickstart")
    assert len(steps) >= 3, "the bar stood still"
    assert pictures == 1, "no curve while it trained"
    assert cell.locator(".jp-OutputArea img").count() == 1, "one picture stays"
    assert lab.finished(120)
    assert not [output for one in lab.cells() for output in one.get("outputs", []) if output["output_type"] == "error"]
    text = "\n".join(shown(one) for one in lab.cells() if one["cell_type"] == "code")
    accuracy = float(re.search(r"([\d.]+)% of 360 held-out scans are right", text)[1])
    assert accuracy >= 96
    lab.page.keyboard.press("Control+s")
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=project, capture_output=True, text=True, check=True)
    assert changed.stdout.split() in ([], ["M", "notebooks/00_quickstart.ipynb"])


def test_stop_ends_the_ranks_and_the_next_run_works(lab):
    lab.write("stop.ipynb", TRAINING.format(epochs=2000), TRAINING.format(epochs=1) + "print(len(history['steps']))")
    lab.run(0)
    lab.select(1)
    lab.page.keyboard.press("Shift+Enter")
    cell = lab.page.locator(".jp-Notebook-cell").nth(1)
    assert wait_until(lambda: cell.locator("img").count(), 60)
    ranks = lab.ranks()
    assert len(ranks) >= 2
    lab.stop()
    assert all_gone(ranks, 15)
    assert lab.finished(15)
    assert "KeyboardInterrupt" in json.dumps(lab.cells()[1]["outputs"])
    assert (cell.locator("progress").count(), cell.locator("img").count()) == (1, 1), "what was there stays"
    lab.picture("stopped")
    assert lab.run(2).splitlines()[-1] == "12"
    assert not lab.ranks()


def test_a_restart_in_the_middle_ends_the_ranks_and_the_next_run_works(lab):
    lab.write("restart.ipynb", TRAINING.format(epochs=2000), TRAINING.format(epochs=1) + "print(len(history['steps']))")
    lab.run(0)
    lab.select(1)
    lab.page.keyboard.press("Shift+Enter")
    assert wait_until(lambda: lab.page.locator(".jp-Notebook-cell").nth(1).locator("img").count(), 60)
    ranks = lab.ranks()
    lab.menu("Kernel", "Restart Kernel…")
    lab.page.locator(".jp-Dialog .jp-mod-accept").click()
    assert all_gone(ranks, 15)
    assert lab.finished(60)
    lab.run(0)
    assert lab.run(2).splitlines()[-1] == "12"


def test_an_edited_module_is_what_the_ranks_run_next(lab):
    lab.open("03_ddp_wrap.ipynb")
    module = lab.index("%%writefile {ROOT}/ddp_tutorial/wrap.py")
    text = source(lab.cells()[module])
    assert lab.run(lab.index("ROOT = Path(")) == ""
    mine = "    print('my own wrap, on rank', env.rank)\n    model = model.to(env.device)\n"
    lab.edit(module, text.replace("    model = model.to(env.device)\n", mine))
    assert "Overwriting" in lab.run(module)
    use = """
import torch
from ddp_tutorial import launch, process_group
def use():
    from ddp_tutorial import wrap
    with process_group() as env:
        wrap(torch.nn.Linear(1, 1), env)
launch(use, world_size=2, device="cpu")
"""
    lab.edit(module + 2 if lab.cells()[module + 2]["cell_type"] == "code" else lab.index("ranks.close()"), use)
    said = lab.run(lab.index("def use():"))
    lab.edit(module, text)
    lab.run(module)
    assert {f"[rank {rank}] my own wrap, on rank {rank}" for rank in range(2)} <= set(said.splitlines())
    assert "my own wrap" not in lab.run(lab.index("def use():"))


def test_an_exercise_is_checked(lab):
    lab.open("04_sampler.ipynb")
    cells = lab.cells()
    exercise, check, solution = (
        next(i for i, cell in enumerate(cells) if tag in cell["metadata"].get("tags", []))
        for tag in ("exercise", "check", "solution")
    )
    for index, cell in enumerate(cells[:exercise]):
        if cell["cell_type"] == "code" and re.search(r"^(import|from) ", source(cell), re.MULTILINE):
            if "%%writefile" not in source(cell):
                lab.run(index)
    skeleton, name = source(cells[exercise]), r"def (\w+)\("
    lab.run(exercise)
    assert lab.run(check).startswith("not yet")
    lab.edit(exercise, re.sub(r"raise NotImplementedError.*", "return list(range(100))", skeleton))
    lab.run(exercise)
    lab.run(check)
    (wrong,) = (output for output in lab.cells()[check]["outputs"] if output["output_type"] == "error")
    assert wrong["ename"] == "Hint" and len(wrong["evalue"]) > 20
    lab.picture("hint")
    answer = source(cells[solution]).replace(re.search(name, source(cells[solution]))[1], re.search(name, skeleton)[1])
    lab.edit(exercise, answer)
    lab.run(exercise)
    assert lab.run(check).startswith("right: ")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_opens_without_a_fault(lab, name):
    lab.open(name)
    for cell in lab.cells():
        for output in cell.get("outputs", []):
            assert output["output_type"] != "error" or "raises-exception" in cell["metadata"].get("tags", [])
            assert not any("widget" in kind for kind in output.get("data", {})), "a widget needs an extension"
    faults = lab.page.evaluate(
        """() => [...document.querySelectorAll('.jp-Notebook img')].flatMap(image => {
            const area = image.closest('.jp-OutputArea-output, .jp-RenderedHTMLCommon');
            const box = image.getBoundingClientRect(), found = [];
            if (!image.complete || !image.naturalWidth) found.push('not shown');
            if (box.width > area.getBoundingClientRect().width + 1) found.push('wider than its cell');
            if (area.scrollWidth > area.clientWidth + 1) found.push('clipped');
            const words = image.closest('.jp-OutputArea').innerText;
                if (words.split(' ').length < 8) found.push('no words for it: ' + words);
            return found;
        })"""
    )
    assert faults == []
    wide = lab.page.evaluate(
        """() => [...document.querySelectorAll('.jp-RenderedMarkdown table')].filter(
            table => table.scrollWidth > table.closest('.jp-RenderedMarkdown').clientWidth + 1).length"""
    )
    assert wide == 0, "a table is cut at the edge"
    lab.picture(name.removesuffix(".ipynb"))


def test_the_side_bar_lists_the_contents_of_the_quickstart(lab):
    lab.open("00_quickstart.ipynb")
    contents = next(source(cell) for cell in lab.cells() if "**On this page:**" in source(cell))
    lab.page.locator('.lm-TabBar-tab[title^="Table of Contents"]').click()
    entries = lab.page.locator(".jp-TableOfContents-tree .jp-tocItem-content")
    entries.first.wait_for()
    listed = [entry.strip() for entry in entries.all_inner_texts()]
    assert listed[1:] == re.findall(r"\[([^\]]+)\]\(#", contents), "below the title"
    lab.page.locator(".jp-RenderedMarkdown a", has_text="Taking it along").first.click()
    assert wait_until(lambda: lab.page.locator("h2", has_text="Taking it along").first.is_visible(), 10)
    lab.picture("contents")


def test_the_keyboard_is_enough_to_run_a_cell(lab):
    lab.write("keys.ipynb", "print('pressed')")
    lab.select(0)
    for _ in range(2):
        lab.page.keyboard.press("Shift+Enter")
    assert lab.finished(30)
    assert shown(lab.cells()[1]).strip() == "pressed"


def test_pictures_and_the_bar_are_readable_in_the_dark_theme(lab):
    lab.open("00_quickstart.ipynb")
    lab.menu("Settings", "Theme", "JupyterLab Dark")
    assert wait_until(lambda: lab.page.locator("body").get_attribute("data-jp-theme-light") == "false", 20)
    darkest = lab.page.evaluate(
        """async () => {
            const found = [];
            for (const image of document.querySelectorAll('.jp-OutputArea img')) {
                const canvas = document.createElement('canvas'); canvas.width = canvas.height = 4;
                const context = canvas.getContext('2d');
                context.drawImage(image, 0, 0);
                found.push(Math.min(...context.getImageData(0, 0, 4, 4).data));
            }
            return found;
        }"""
    )
    assert wait_until(lambda: lab.page.locator("#jupyterlab-splash").count() == 0, 20)
    lab.page.locator(".jp-OutputArea img").nth(1).scroll_into_view_if_needed()
    lab.picture("dark")
    lab.menu("Settings", "Theme", "JupyterLab Light")
    assert darkest and all(value == 255 for value in darkest), "a corner is dark or transparent: black text on black"
