"""The least code that could do it: raw tensors, DDP, no package of ours. torchrun bare.py EPOCHS DATA SEED DEVICE."""

import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from measure import Probe
from network import Net
from torch.nn.parallel import DistributedDataParallel as DDP
from torchvision.datasets import MNIST


def main():
    epochs, root, seed = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    on_gpu = torch.cuda.is_available() and sys.argv[4] != "cpu"
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    torch.manual_seed(seed)
    probe = Probe(rank)
    train, test = (MNIST(root, train=part) for part in (True, False))
    images, labels = train.data.unsqueeze(1).to(device), train.targets.to(device)
    test_images, test_labels = test.data.unsqueeze(1)[rank::ranks].to(device), test.targets[rank::ranks].to(device)
    model = Net().to(device, memory_format=torch.channels_last)
    model = DDP(model, device_ids=[device] if on_gpu else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)

    def floats(some):
        return some.float().div_(255).sub_(0.1307).div_(0.3081)

    for epoch in range(epochs):
        model.train()
        begun = time.perf_counter()
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed + epoch))[rank::ranks]
        for some in order.to(device).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(floats(images[some])), labels[some]).backward()
            optimizer.step()
        rate = len(labels) / (time.perf_counter() - begun)
        model.eval()
        correct = torch.zeros(1, device=device)
        with torch.no_grad():
            for some, right in zip(test_images.split(1000), test_labels.split(1000)):
                correct += (model.module(floats(some)).argmax(dim=1) == right).sum()
        dist.all_reduce(correct)
        probe.epoch(rate, correct.item() / len(test))
    probe.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
