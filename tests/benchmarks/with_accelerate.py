"""As accelerate's documentation advises: prepare, backward, gather_for_metrics.

torchrun with_accelerate.py EPOCHS DATA SEED DEVICE; accelerate's own command starts several ranks on GPUs only.
"""

import sys
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from measure import Probe
from network import Net
from torch import nn, optim
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def main():
    epochs, root, seed = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    accelerator = Accelerator(cpu=sys.argv[4] == "cpu")
    set_seed(seed)
    probe = Probe(accelerator.process_index)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    train_set, test_set = (datasets.MNIST(root, train=part, transform=transform) for part in (True, False))
    train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=1000)
    model, criterion = Net(), nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    model, optimizer, train_loader, test_loader = accelerator.prepare(model, optimizer, train_loader, test_loader)
    for _ in range(epochs):
        model.train()
        begun = time.perf_counter()
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
        rate = len(train_set) / (time.perf_counter() - begun)
        model.eval()
        correct = 0
        for inputs, targets in test_loader:
            with torch.no_grad():
                guesses = model(inputs).argmax(dim=1)
            guesses, targets = accelerator.gather_for_metrics((guesses, targets))
            correct += (guesses == targets).sum().item()
        probe.epoch(rate, correct / len(test_set))
    probe.finish()
    accelerator.end_training()


if __name__ == "__main__":
    main()
