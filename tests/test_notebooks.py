"""What a notebook says must be what the package does: checked without running one (``pytest notebooks`` runs them)."""

import json
import re
from pathlib import Path

import pytest
from support import PACKAGE, ROOT, python

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
WRITES = re.compile(r"%%writefile \{ROOT\}/ddp_tutorial/(\S+)\n")
A_MACHINES_PATH = re.compile(r"/(?:root|home|tmp|work|Users|private/var)/[\w.-]+")
NOISE = re.compile(r"Warning:|\[[WE]\d+|debug_logger|IProgress not found", re.IGNORECASE)


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def code_cells(path):
    return [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]


def source(cell):
    return "".join(cell["source"])


def tags(cell):
    return cell["metadata"].get("tags", [])


def texts(cell):
    """Return all that the outputs of ``cell`` show as text."""
    for output in cell["outputs"]:
        data = output.get("data", {})
        for part in (output.get("text", ""), *(data.get(kind, "") for kind in data if kind.startswith("text/"))):
            yield "".join(part)
        yield "\n".join(output.get("traceback", []))


def written():
    """Return ``[(module, its text, notebook)]`` of all cells that write a module."""
    found = []
    for path in NOTEBOOKS:
        for cell in code_cells(path):
            if match := WRITES.match(source(cell)):
                found.append((match[1], source(cell)[match.end() :] + "\n", path.name))
    return found


def test_each_module_is_written_by_one_cell():
    modules = sorted(module for module, *_ in written())
    files = [file.relative_to(PACKAGE) for file in PACKAGE.rglob("*") if file.is_file()]
    assert modules == sorted(file.as_posix() for file in files if "__pycache__" not in file.parts)


@pytest.mark.parametrize(("module", "text", "notebook"), written())
def test_a_cell_writes_the_module_as_it_is(module, text, notebook):
    assert (PACKAGE / module).read_text(encoding="utf-8") == text


@pytest.mark.parametrize(("module", "text", "notebook"), written())
def test_a_module_names_the_notebook_that_writes_it(module, text, notebook):
    if module != "__init__.py":
        assert re.search(rf"\b{Path(notebook).stem}\b", text)


every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@every_notebook
def test_any_python_can_run_it(path):
    metadata = read(path)["metadata"]
    assert metadata["kernelspec"]["name"] == "python3"
    assert not metadata.get("execution", {}).get("allow_errors"), "it would hide failures"
    identifiers = [cell["id"] for cell in read(path)["cells"]]
    assert len(set(identifiers)) == len(identifiers)


@every_notebook
def test_every_cell_was_run_in_order(path):
    counts = [cell["execution_count"] for cell in code_cells(path)]
    assert counts == list(range(1, len(counts) + 1))


@every_notebook
def test_errors_are_the_intended_ones(path):
    for cell in code_cells(path):
        failed = any(output["output_type"] == "error" for output in cell["outputs"])
        assert failed == ("raises-exception" in tags(cell)), source(cell)


@every_notebook
def test_outputs_hold_no_path_of_a_machine_and_no_noise(path):
    for cell in code_cells(path):
        for text in texts(cell):
            assert not A_MACHINES_PATH.search(text), source(cell)
            assert "raises-exception" in tags(cell) or not NOISE.search(text), source(cell)


@every_notebook
def test_pictures_are_small(path):
    for cell in code_cells(path):
        for output in cell["outputs"]:
            assert len("".join(output.get("data", {}).get("image/png", ""))) < 130_000, source(cell)


@every_notebook
def test_every_picture_says_in_words_what_it_shows(path):
    for cell in code_cells(path):
        for output in cell["outputs"]:
            for kind in output.get("data", {}):
                if kind.startswith("image/"):
                    alt = output["metadata"].get(kind, {}).get("alt", "")
                    assert len(alt.split()) >= 8, source(cell)
        assert "![](" not in source(cell)


def headings(path):
    """Return ``[(level, text)]`` of all headings, without those inside code."""
    found = []
    for cell in read(path)["cells"]:
        if cell["cell_type"] == "markdown":
            text = re.sub(r"```.*?```", "", source(cell), flags=re.DOTALL)
            found += [(len(marks), title) for marks, title in re.findall(r"^(#+) (.+)$", text, re.MULTILINE)]
    return found


@every_notebook
def test_headings_go_down_without_a_gap(path):
    levels = [level for level, _ in headings(path)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(level <= before + 1 for before, level in zip(levels, levels[1:]))


@every_notebook
def test_links_have_words_and_lead_somewhere(path):
    anchors = {text.replace(" ", "-") for _, text in headings(path)}
    for cell in read(path)["cells"]:
        if cell["cell_type"] != "markdown":
            continue
        text = re.sub(r"```.*?```|`[^`]*`", "code", source(cell), flags=re.DOTALL)
        for words, target in re.findall(r"\[([^\]]*)\]\(([^)]+)\)", text):
            assert words.strip() and words.lower() not in ("here", "this", "link") and "://" not in words, words
            if target.startswith("#"):
                assert target[1:] in anchors, target
            elif "://" not in target:
                assert (path.parent / target).exists(), target


def test_the_contents_of_the_quickstart_are_its_headings():
    # What the side bar of JupyterLab lists is made from the headings.
    (contents,) = (source(cell) for cell in read(NOTEBOOKS[0])["cells"] if "**On this page:**" in source(cell))
    listed = re.findall(r"\[([^\]]+)\]\(#", contents)
    assert listed == [text for level, text in headings(NOTEBOOKS[0]) if level == 2]


README = ROOT / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL) if README.exists() else []


@pytest.mark.parametrize("block", BLOCKS)
def test_the_programs_of_the_readme_run(block, tmp_path):
    (tmp_path / "program.py").write_text(block)
    result = python("program.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout


@pytest.mark.skipif(not README.exists(), reason="there is no README yet")
def test_the_files_that_the_readme_names_are_there():
    for link in re.findall(r"\]\(([^)#:]+)\)", README.read_text(encoding="utf-8")):
        assert (ROOT / link).exists(), link
