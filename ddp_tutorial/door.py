"""A port for scripts that call ``init_process_group("gloo")`` themselves. Taught in ``07_launch_and_plot.ipynb``."""

from __future__ import annotations

import socket
import threading

import torch.distributed as dist


class Door:
    """A listening socket on a port that the system chose; a ``TCPStore`` moves in when somebody knocks.

    Making a store looks the loopback address up in the DNS, which takes seconds where names resolve slowly. The
    helper's own ranks meet in a file and never knock, so they never wait for that.
    """

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._stores: list[dist.TCPStore] = []

    def waitables(self) -> list[socket.socket]:
        """Return what ``multiprocessing.connection.wait`` has to watch: the socket, until it is opened."""
        return [self._socket] if self._socket.fileno() >= 0 else []

    def open(self) -> None:
        """Put the store behind the port, on a thread, since that may take seconds."""
        listening = self._socket.detach()

        def make() -> None:
            store = dist.TCPStore(
                "127.0.0.1", self.port, is_master=True, wait_for_workers=False, master_listen_fd=listening
            )
            self._stores.append(store)

        threading.Thread(target=make, daemon=True).start()

    def close(self) -> None:
        self._socket.close()
        self._stores.clear()
