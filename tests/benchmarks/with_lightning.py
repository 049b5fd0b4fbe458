"""As Lightning's documentation advises: a module, a Trainer with strategy ddp.

python with_lightning.py EPOCHS DATA SEED DEVICE RANKS
"""

import sys
import time

import lightning as L
import torch
import torch.nn.functional as F
from measure import Probe
from network import Net
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, _):
        inputs, targets = batch
        return F.cross_entropy(self.net(inputs), targets)

    def validation_step(self, batch, _):
        inputs, targets = batch
        right = (self.net(inputs).argmax(dim=1) == targets).float().mean()
        self.log("accuracy", right, sync_dist=True, batch_size=len(targets))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.5)


class Watch(L.Callback):
    """Times the training part of each epoch."""

    def __init__(self, samples):
        self.samples, self.probe = samples, None

    def on_train_start(self, trainer, module):
        self.probe = Probe(trainer.global_rank)

    def on_train_epoch_start(self, trainer, module):
        self.begun = time.perf_counter()

    def on_validation_start(self, trainer, module):
        if self.probe:
            self.rate = self.samples / (time.perf_counter() - self.begun)

    def on_train_epoch_end(self, trainer, module):
        self.probe.epoch(self.rate, trainer.callback_metrics["accuracy"].item())

    def on_train_end(self, trainer, module):
        self.probe.finish()


def main():
    epochs, root, seed, device, ranks = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
    L.seed_everything(seed)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    train_set, test_set = (datasets.MNIST(root, train=part, transform=transform) for part in (True, False))
    trainer = L.Trainer(
        accelerator="cpu" if device == "cpu" else "gpu",
        devices=ranks,
        strategy="ddp",
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[Watch(len(train_set))],
    )
    loaders = DataLoader(train_set, batch_size=64, shuffle=True), DataLoader(test_set, batch_size=1000)
    trainer.fit(Digits(), *loaders)


if __name__ == "__main__":
    main()
