"""The snippet that is copied everywhere, with what it needs to run and to be measured.

torchrun usual.py EPOCHS DATA SEED DEVICE
"""

import sys
import time

import torch
import torch.distributed as dist
from measure import Probe
from network import Net
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms


def main():
    epochs, root, seed = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    on_gpu = torch.cuda.is_available() and sys.argv[4] != "cpu"
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    torch.manual_seed(seed)
    probe = Probe(rank)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    train_set = datasets.MNIST(root, train=True, transform=transform)
    test_set = datasets.MNIST(root, train=False, transform=transform)
    sampler = DistributedSampler(train_set, seed=seed)
    train_loader = DataLoader(train_set, batch_size=64, sampler=sampler)
    test_loader = DataLoader(test_set, batch_size=1000)
    model = DDP(Net().to(device), device_ids=[device] if on_gpu else None)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        model.train()
        begun = time.perf_counter()
        for step, (inputs, targets) in enumerate(train_loader):
            inputs, targets = inputs.to(device), targets.to(device)
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        rate = len(train_set) / (time.perf_counter() - begun)
        model.eval()
        correct = 0
        with torch.no_grad():
            for inputs, targets in test_loader:
                correct += (model.module(inputs.to(device)).argmax(dim=1) == targets.to(device)).sum().item()
        probe.epoch(rate, correct / len(test_set))
    probe.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
