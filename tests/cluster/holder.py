"""PID 1 of one host of the test cluster: builds the host's own root file system, then only reaps and waits.

Run as ``unshare --fork --pid --mount ... python3 -ISE holder.py PLAN.json`` where the plan (see ``host_root.py``) holds

    {"hostname": str, "root": str, "steps": [[verb, ...], ...], "lifeline": bool}

Every path in a step is relative to the new root, except the source of a bind, which is a path of the outer machine.
When ``lifeline`` is true the holder ends at end-of-file on its stdin. As the kernel ends a PID namespace with its
PID 1, that takes every process of the host along, and for the controller those of every node too.

Standard library only and no imports from the package: this also runs under ``-ISE``.
"""

import ctypes
import json
import os
import select
import signal
import stat
import subprocess
import sys

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE, MS_BIND, MNT_DETACH = 2, 4, 8, 0x4000, 0x40000, 0x1000, 2

libc = ctypes.CDLL(None, use_errno=True)


def mount(source, target, fstype, flags, data=""):
    args = [None if text is None else os.fsencode(text) for text in (source, target, fstype)]
    if libc.mount(args[0], args[1], args[2], ctypes.c_ulong(flags), os.fsencode(data)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount {fstype or 'bind'} {source}: {os.strerror(code)}", target)


class Root:
    """The verbs of a plan. Each makes one thing below the new root."""

    def __init__(self, top):
        self.top = top
        mount("none", "/", None, MS_REC | MS_PRIVATE)
        mount("tmpfs", top, "tmpfs", MS_NOSUID, "mode=0755,size=64m")

    def at(self, path):
        return self.top + path

    def dir(self, path, mode=0o755, owner=(0, 0)):
        os.makedirs(self.at(path), exist_ok=True)
        os.chmod(self.at(path), mode)
        os.chown(self.at(path), *owner)

    def symlink(self, path, target):
        os.symlink(target, self.at(path))

    def file(self, path, text, mode=0o644):
        os.makedirs(os.path.dirname(self.at(path)), exist_ok=True)
        with open(self.at(path), "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(self.at(path), mode)

    def device(self, path, major, minor, mode=0o666):
        os.mknod(self.at(path), stat.S_IFCHR, os.makedev(major, minor))
        os.chmod(self.at(path), mode)

    def bind(self, path, source):
        if os.path.isdir(source):
            os.makedirs(self.at(path), exist_ok=True)
        elif not os.path.exists(self.at(path)):
            os.makedirs(os.path.dirname(self.at(path)), exist_ok=True)
            with open(self.at(path), "w", encoding="utf-8"):
                pass
        mount(source, self.at(path), None, MS_BIND | MS_REC)

    def tmpfs(self, path, options="mode=0755"):
        os.makedirs(self.at(path), exist_ok=True)
        mount("tmpfs", self.at(path), "tmpfs", MS_NOSUID | MS_NODEV, options)

    def devtmpfs(self, path):
        """A /dev of our own: a tmpfs that allows device nodes, with a private devpts."""
        os.makedirs(self.at(path), exist_ok=True)
        mount("tmpfs", self.at(path), "tmpfs", MS_NOSUID, "mode=0755,size=4m")
        self.dir(path + "/pts")
        mount("devpts", self.at(path + "/pts"), "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")

    def proc(self, path):
        os.makedirs(self.at(path), exist_ok=True)
        mount("proc", self.at(path), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)

    def enter(self):
        """Make the new root `/` and let go of the outer one."""
        os.mkdir(self.at("/.outer"))
        os.chdir(self.top)
        subprocess.run(["pivot_root", ".", ".outer"], check=True)
        os.chdir("/")
        if libc.umount2(b"/.outer", MNT_DETACH) != 0:
            raise OSError(ctypes.get_errno(), "umount /.outer")
        os.rmdir("/.outer")


def wait_for_ever(lifeline):
    """Reap orphans until the lifeline (stdin) is at its end."""
    wake_out, wake_in = os.pipe()
    os.set_blocking(wake_in, False)
    signal.set_wakeup_fd(wake_in)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    sources = [wake_out] + ([0] if lifeline else [])
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        ready, _, _ = select.select(sources, [], [])
        if wake_out in ready:
            os.read(wake_out, 4096)
        if 0 in ready and not os.read(0, 4096):
            os._exit(0)


def main():
    with open(sys.argv[1], encoding="utf-8") as source:
        plan = json.load(source)
    os.umask(0o022)
    name = plan["hostname"].encode()
    if libc.sethostname(name, len(name)) != 0:
        raise OSError(ctypes.get_errno(), "sethostname")
    root = Root(plan["root"])
    for verb, *args in plan["steps"]:
        getattr(root, verb)(*args)
    root.enter()
    os.write(1, b"ready\n")
    wait_for_ever(plan["lifeline"])


main()
