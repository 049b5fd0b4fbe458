"""The folder is made to be copied, under any name and to any place."""

import ast
import importlib
import json
import shutil
import sys

import pytest
from support import PACKAGE, TORCHRUN, python

import ddp_tutorial

pytestmark = pytest.mark.launcher

# NAME stands for whatever the copy is called.
SCRIPT = """
import json, os, sys
import torch
from NAME import Config, launch, train

data = torch.utils.data.TensorDataset(torch.arange(60.0).view(20, 3) / 60, torch.arange(20) % 2)
model = torch.nn.Sequential(torch.nn.Linear(3, 2))
for parameter in model.parameters():
    torch.nn.init.constant_(parameter, 0.1)
arguments = (Config(epochs=2, batch_size=5, seed=1), model, (data, data))
if "RANK" in os.environ:
    history = train(*arguments)
else:
    history, _ = launch(train, arguments, world_size=2, device="cpu")
if os.environ.get("RANK", "0") == "0":
    print(json.dumps([step["train_loss"] for step in history["steps"]]))
"""


def copy(folder, name):
    """Copy the package to ``folder`` as ``name`` without its exercises, and nothing else."""
    shutil.copytree(PACKAGE, folder / name.replace(".", "/"), ignore=shutil.ignore_patterns("__pycache__", "exercises"))
    (folder / "script.py").write_text(SCRIPT.replace("NAME", name))
    return folder


@pytest.mark.parametrize("name", ["parallel", "project.tools.parallel"])
def test_a_copy_works_from_python_and_from_torchrun(name, tmp_path):
    folder = tmp_path / "a folder with spaces"
    folder.mkdir()
    copy(folder, name)
    alone = {"PYTHONPATH": "", "DDP_TUTORIAL_DEVICE": "cpu"}
    launched = python("script.py", cwd=folder, **alone)
    assert launched.returncode == 0, launched.stderr
    with_torchrun = python(*TORCHRUN, "script.py", cwd=folder, **alone)
    assert with_torchrun.returncode == 0, with_torchrun.stderr
    losses = json.loads(launched.stdout)
    assert len(losses) == 4
    assert losses == pytest.approx(json.loads(with_torchrun.stdout), abs=1e-6)


def test_a_copy_has_a_command_line(data, tmp_path):
    copy(tmp_path, "parallel")
    small = ("--epochs", "1", "--batch-size", "400", "--data", data, "--out", "run")
    result = python("-m", "parallel", *small, "--device", "cpu", "--world-size", "1", cwd=tmp_path, PYTHONPATH="")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "run" / "model.pt").exists()


def test_importing_takes_torch_and_the_standard_library_alone(tmp_path):
    code = """
import sys, torch
before = {name.split(".")[0] for name in sys.modules}
import ddp_tutorial
print(sorted({name.split(".")[0] for name in sys.modules} - before - sys.stdlib_module_names - {"ddp_tutorial"}))
"""
    result = python("-c", code, cwd=tmp_path)
    assert result.stdout == "[]\n", result.stderr


ABSENT = ("cloudpickle", "matplotlib", "sklearn", "torchvision", "tqdm", "IPython", "numpy")


def test_ranks_under_torchrun_need_torch_alone(data, tmp_path):
    """As in the image of a cluster job: nothing else is installed, and the data are prepared."""
    (tmp_path / "blocked").mkdir()
    for name in ABSENT:
        (tmp_path / "blocked" / f"{name}.py").write_text(f"raise ModuleNotFoundError('{name} is not installed here')")
    script = f"""
from ddp_tutorial import Config, train
history = train(Config(epochs=1, batch_size=400, data={str(data)!r}, out="run"))
"""
    (tmp_path / "script.py").write_text(script)
    path = f"{tmp_path / 'blocked'}:{PACKAGE.parent}"
    blocked = python("-c", "import cloudpickle", cwd=tmp_path, PYTHONPATH=path)
    assert "is not installed here" in blocked.stderr
    result = python(*TORCHRUN, "script.py", cwd=tmp_path, PYTHONPATH=path, DDP_TUTORIAL_DEVICE="cpu")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "run" / "model.pt").exists()


def imports(file):
    """Return the absolute and the relative imports of a module, those inside functions included."""
    absolute, relative = set(), set()
    text = file.read_text().replace("if TYPE_CHECKING:", "if False:")
    nodes = [node for part in ast.parse(text).body if "if False" not in ast.unparse(part) for node in ast.walk(part)]
    for node in nodes:
        if isinstance(node, ast.Import):
            absolute |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            absolute.add(node.module.split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            relative |= {node.module} if node.module else {alias.name for alias in node.names}
    return absolute, relative


MODULES = sorted(file.stem for file in PACKAGE.glob("*.py"))


@pytest.mark.parametrize("module", MODULES)
def test_modules_name_one_another_relatively_and_others_are_in_the_requirements(module):
    absolute, relative = imports(PACKAGE / f"{module}.py")
    assert PACKAGE.name not in absolute
    assert relative <= set(MODULES)
    requirements = (PACKAGE.parent / "requirements.txt").read_text().replace("scikit-learn", "sklearn")
    for name in absolute - sys.stdlib_module_names - {"IPython"}:  # comes with jupyterlab
        assert name in requirements


def test_modules_of_the_first_stages_stand_alone():
    assert imports(PACKAGE / "model.py")[1] == set()
    assert imports(PACKAGE / "environment.py")[1] <= {"rendezvous"}
    for module in ("cleanup", "wrap", "data"):
        assert imports(PACKAGE / f"{module}.py")[1] <= {"environment", "preparation"}


def test_no_two_modules_import_each_other():
    """Imports go downwards only."""
    left = {module: imports(PACKAGE / f"{module}.py")[1] for module in MODULES}
    while left:
        lowest = {module for module, needed in left.items() if not needed & left.keys()}
        assert lowest, f"a circle among {sorted(left)}"
        left = {module: needed for module, needed in left.items() if module not in lowest}


def test_every_public_name_is_there_and_explained():
    assert sorted(ddp_tutorial.__all__) == ddp_tutorial.__all__
    for name in ddp_tutorial.__all__:
        assert getattr(ddp_tutorial, name).__doc__
    for module in MODULES:
        if module != "__main__":
            assert importlib.import_module(f"ddp_tutorial.{module}" if module != "__init__" else "ddp_tutorial").__doc__
