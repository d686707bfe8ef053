"""A PostgreSQL server of one's own, on a socket in a temporary directory; no port is opened."""

import contextlib
import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from pathlib import Path

import pytest


def program(name):
    """A program of the server, from PATH or from Debian's package; None where there is none."""
    places = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return shutil.which(name) or (places[-1] if places else None)


def why_not():
    """Why no server can be started here; None where it can."""
    if os.name != "posix":
        return "needs PostgreSQL on a socket"
    missing = [name for name in ("initdb", "pg_ctl", "pg_basebackup") if program(name) is None]
    if missing:
        return f"needs a PostgreSQL server: there is no {missing[0]} (Debian: postgresql)"
    try:
        import psycopg  # noqa: F401
        import sqlalchemy  # noqa: F401
    except ImportError:
        return "needs the extra postgres"
    return None


def somebody():
    """Who the server runs as: root may not start one."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise AssertionError("nobody but root is here")


class Server:
    """A server in a directory of its own, owned by the user ``postgres``, who trusts everybody."""

    def __init__(self, folder=None, settings=()):
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(folder or tempfile.mkdtemp(prefix="pg", dir=memory))
        self.folder.chmod(0o755)
        self.who = somebody()
        if self.who:
            os.chown(self.folder, self.who["user"], self.who["group"])
        self.data, self.socket = self.folder / "data", self.folder
        self.settings = [
            "listen_addresses=''", f"unix_socket_directories='{self.socket}'", "shared_buffers=8MB",
            "max_connections=60",
            "dynamic_shared_memory_type=mmap",  # in its own directory: a kill leaves nothing
            "log_min_messages=warning", "max_wal_size=64MB", *settings,
        ]  # fmt: skip

    def run(self, name, *arguments, check=True):
        done = subprocess.run(
            [program(name), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            **self.who,
        )
        assert done.returncode == 0 or not check, done.stdout
        return done

    def initialise(self, *more):
        self.run(
            "initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale",
            "--no-sync", *more,
        )  # fmt: skip
        with (self.data / "postgresql.conf").open("a") as file:
            file.write("".join(f"{line}\n" for line in self.settings))

    def control(self, *arguments, check=True):
        return self.run(
            "pg_ctl", "-D", self.data, "-l", self.folder / "log", "-s", "-w", *arguments,
            check=check,
        )  # fmt: skip

    def start(self):
        command = [program("pg_ctl"), "-D", self.data, "-l", self.folder / "log", "-s", "-w"]
        with (self.folder / "ctl").open("w") as log:  # a pipe would be held open by the server
            subprocess.run(
                [*command, "start"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", check=True, **self.who,
            )  # fmt: skip

    def stop(self, how="immediate"):
        self.control("-m", how, "stop", check=False)

    def restart(self, how):
        """Go away as by ``how``, and come back."""
        self.stop(how)
        self.start()

    def follow(self, primary):
        """Be the synchronous standby of a server: what it answers is here, too, and visible."""
        self.run(
            "pg_basebackup", "-D", self.data, "-R", "-X", "stream", "--no-sync", "-c", "fast",
            "-h", primary.socket, "-U", "postgres",
        )  # fmt: skip
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(f"unix_socket_directories='{self.socket}'\n")
        self.start()
        primary.execute(
            "ALTER SYSTEM SET synchronous_standby_names = '*'",
            "ALTER SYSTEM SET synchronous_commit = remote_apply",
            "SELECT pg_reload_conf()",
        )

    def remove(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, user="postgres", database="postgres", schema=None, **more):
        """The URL of a database, or of one schema in it."""
        query = f"host={self.socket}"
        if schema is not None:
            query += f"&options=-csearch_path%3D{schema}"
        query += "".join(f"&{name}={value}" for name, value in more.items())
        return f"postgresql://{user}@/{database}?{query}"

    def execute(self, *statements, schema=None, user="postgres"):
        """Run statements, each by itself; the rows of the last one."""
        import psycopg

        with psycopg.connect(self.url(user, schema=schema), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else None

    def new_schema(self):
        name = f"s{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE SCHEMA {name}")
        return name

    def new_url(self):
        """A place where no ledger is yet."""
        return self.url(schema=self.new_schema())


@contextlib.contextmanager
def serving(**how):
    """A server that is removed at the end; the test is skipped where there can be none."""
    if why := why_not():
        pytest.skip(why)
    server = Server(**how)
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        server.remove()


def schema_of(url):
    return url.partition("search_path%3D")[2].partition("&")[0]


def stop_process(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
