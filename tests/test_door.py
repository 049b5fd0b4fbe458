import os
import socket

import torch
import torch.distributed as dist
from support import all_gone

from ddp_tutorial.door import Door


def script(backend):
    """Written for torchrun: it makes the group by itself, from the variables alone."""
    dist.init_process_group(backend)
    total = torch.tensor(int(os.environ["RANK"]) + 1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.item()


def test_a_script_that_makes_its_own_group_runs_again_and_again(two):
    assert [two.run(script, ("gloo",)) for _ in range(3)] == [[3, 3]] * 3


def test_a_door_that_nobody_knocks_at_holds_a_port_until_it_is_closed():
    door = Door()
    (waitable,) = door.waitables()
    assert waitable.getsockname() == ("127.0.0.1", door.port)
    door.close()
    assert door.waitables() == []
    with socket.create_server(("127.0.0.1", door.port)):
        pass


def test_behind_an_opened_door_is_a_store():
    door = Door()
    door.open()
    first, second = (dist.TCPStore("127.0.0.1", door.port, is_master=False) for _ in range(2))
    first.set("key", "value")
    assert second.get("key") == b"value"
    assert door.waitables() == []
    door.close()


def test_the_port_is_free_after_the_run(two):
    (port, pid), _ = two.run(lambda: (script("gloo"), (int(os.environ["MASTER_PORT"]), os.getpid()))[1])
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0
    assert not all_gone([pid], seconds=0), "the rank itself stays up"
