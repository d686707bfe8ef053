"""Between a client and a PostgreSQL server: loses a connection at a chosen message."""

import contextlib
import select
import socket
import tempfile
import threading
from pathlib import Path


class Proxy:
    """A socket that leads to a server, for one client at a time.

    ``cut(n)`` drops the connection once, at the n-th message that the client sends from now on:
    before the server has it, or with ``answered`` when the server has answered it, which the client
    never learns. With ``always``, every connection is dropped from there on.
    """

    def __init__(self, server):
        self.server, self.folder = server, tempfile.TemporaryDirectory(prefix="px")
        self.cut(None)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(Path(self.folder.name) / ".s.PGSQL.5432"))
        self.listener.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, url):
        """The same place by way of here."""
        return url.replace(f"host={self.server.socket}", f"host={self.folder.name}")

    def cut(self, number, *, answered=False, always=False):
        self.number, self.answered, self.always = number, answered, always
        self.messages, self.cuts = 0, 0

    def close(self):
        self.listener.close()
        self.folder.cleanup()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.socket(socket.AF_UNIX)
                with contextlib.suppress(OSError), client, server:
                    server.connect(str(self.server.socket / ".s.PGSQL.5432"))
                    self._forward(client, server)

    def _forward(self, client, server):
        doomed = False
        while True:
            for end in select.select([client, server], [], [])[0]:
                content = end.recv(1 << 20)
                if not content or (doomed and end is server):
                    return
                if end is server:
                    client.sendall(content)
                    continue
                self.messages += 1
                due = self.number is not None and self.messages >= self.number
                if due and (self.cuts == 0 or self.always):
                    self.cuts += 1
                    if not self.answered:
                        return
                    doomed = True
                server.sendall(content)
