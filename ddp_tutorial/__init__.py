"""From one device to every GPU you have, with ``torch.nn.parallel.DistributedDataParallel``.

Each module is written and explained by one notebook in ``notebooks/``; ``notebooks/00_quickstart.ipynb`` has the whole
story on one page. The folder works under any name: copy it into a project of your own.
"""

from .checkpoint import Checkpoints
from .cleanup import process_group
from .data import eval_loader, load_dataset, train_loader
from .environment import Environment, init_environment
from .evaluation import evaluate
from .failures import LaunchError
from .history import History
from .launch import launch
from .live import LivePlot
from .model import Net
from .plots import plot_losses
from .ranks import Ranks
from .reporting import report
from .training import Config, train
from .wrap import assert_replicas_agree, wrap

__all__ = [
    "Checkpoints",
    "Config",
    "Environment",
    "History",
    "LaunchError",
    "LivePlot",
    "Net",
    "Ranks",
    "assert_replicas_agree",
    "eval_loader",
    "evaluate",
    "init_environment",
    "launch",
    "load_dataset",
    "plot_losses",
    "process_group",
    "report",
    "train",
    "train_loader",
    "wrap",
]
