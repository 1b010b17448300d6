"""What a worker may not do: the layers around untrusted candidate code.

Entering takes three steps, because a PID namespace and its /proc only exist for a child:
`separate` leaves the judge's namespaces, `furnish` (in the first process of the new ones) arranges the
mounts, `enter` (in the worker) gives up every right. `atrex.forkserver` calls them in that order. A step
that this kernel or user cannot take is reported as an inactive `Layer`, never skipped in silence.

What it is not: a virtual machine. The kernel is shared, and so are the GPU, its driver and its memory
bandwidth: a kernel bug, a driver bug or a side channel can still cross. Worker and candidate are one
process, so nothing a worker says about itself is evidence. A worker may fill its scratch directory up
to the limit, and read public parts of the system (/usr, /sys, the Python installation).

The scratch directory is a plain directory, bound onto itself, rather than a tmpfs: it holds the compile
cache, which the next worker of the same candidate finds again. Its size is bounded by the warden, and
its owner is the uid the worker runs under, so successive workers on one scratch share that uid.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import secrets
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from atrex import landlock, linux, seccomp
from atrex.environment import scratch_variables
from atrex.environment import scrubbed_environment as scrubbed_environment

PACKAGE = Path(__file__).resolve().parent
_WORKER_UIDS = range(0x4000_0000, 0x5000_0000)  # far above what people and distributions use
_HOME = Path(os.path.expanduser("~"))  # before any change of user
_OPEN_FILES = 4096
_SHARED_MEMORY_BYTES = 64 << 20  # the private /dev/shm


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings for one worker and everything it starts.

    `memory_bytes` counts resident anonymous and shared memory, the preloaded interpreter (about
    0.2 GB with torch) and mapped buffers included. `file_bytes` bounds one file, memory files too:
    larger results travel in buffers that the judge makes.
    """

    memory_bytes: int
    processes: int = 256
    file_bytes: int = 64 << 20
    cpu_seconds: int = 600
    scratch_bytes: int = 2 << 30


@dataclass(frozen=True, slots=True)
class SandboxPolicy:
    """What one worker gets: `scratch` is its only writable directory; `read_paths` are readable too.

    `instrumented` is for compute-sanitizer, which follows process ids and talks to its tool over the
    host's network and files: neither namespaces nor Landlock then, only another user and its limits.
    """

    scratch: Path
    limits: Limits
    read_paths: tuple[Path, ...] = field(default=())
    cuda: bool = False
    instrumented: bool = False

    def __post_init__(self) -> None:
        relative = [str(path) for path in (self.scratch, *self.read_paths) if not path.is_absolute()]
        if relative:
            raise ValueError(f"a sandbox path must be absolute: {', '.join(relative)}")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for the fork server."""
        paths = {"scratch": str(self.scratch), "read_paths": [str(path) for path in self.read_paths]}
        flags = {"cuda": self.cuda, "instrumented": self.instrumented}
        return {**paths, "limits": asdict(self.limits), **flags}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SandboxPolicy:
        """Inverse of `to_json`."""
        reads = tuple(Path(path) for path in data["read_paths"])
        limits = Limits(**data["limits"])
        return cls(Path(data["scratch"]), limits, reads, data["cuda"], data["instrumented"])


@dataclass(frozen=True, slots=True)
class Layer:
    """One wall of the sandbox, as it stands on this machine; `detail` says how, or why not."""

    name: str
    active: bool
    detail: str


Step = Callable[[SandboxPolicy], str]


def _take(name: str, step: Step, policy: SandboxPolicy) -> Layer:
    try:
        return Layer(name, True, step(policy))
    except OSError as error:
        return Layer(name, False, str(error))


# Step 1, in the launcher: leave the judge's namespaces.


def separate(policy: SandboxPolicy, *, wrapped: bool = False) -> tuple[Layer, ...]:
    """Unshare PID (for the next child), network, mount and IPC namespaces, each on its own.

    `wrapped`: a tool runs the server. compute-sanitizer knows processes by their ids, and CUDA under it
    does not start in another PID namespace, so there the worker stays in the judge's.
    """
    if policy.instrumented:
        return (Layer("namespaces", False, "shared with compute-sanitizer"),)
    if os.geteuid() != 0:
        with contextlib.suppress(OSError):  # without it the four below report why they fail
            _own_user_namespace()
    spaces = {
        "pid namespace": linux.CLONE_NEWPID,
        "network namespace": linux.CLONE_NEWNET,
        "mount namespace": linux.CLONE_NEWNS,
        "ipc namespace": linux.CLONE_NEWIPC,
    }
    if wrapped and policy.cuda:
        del spaces["pid namespace"]
    layers = [_take(name, partial(_unshare, flag), policy) for name, flag in spaces.items()]
    if "pid namespace" not in spaces:
        layers.append(Layer("pid namespace", False, "the tool around the fork server follows process ids"))
    return tuple(layers)


def _unshare(flag: int, policy: SandboxPolicy) -> str:
    del policy
    linux.unshare(flag)
    if flag == linux.CLONE_NEWNS:
        linux.mount("none", Path("/"), None, linux.MS_REC | linux.MS_PRIVATE)
    return "private"


def _own_user_namespace() -> None:
    """Be the same user in a namespace of its own, where the kernel lets it unshare the others."""
    uid, gid = os.getuid(), os.getgid()
    linux.unshare(linux.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


# Step 2, in the first process of the new namespaces: arrange the mounts.


def furnish(policy: SandboxPolicy, separated: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Make everything but scratch read-only, and mount a /proc that shows only this worker."""
    private = {layer.name for layer in separated if layer.active}
    if "mount namespace" not in private:  # a mount here would be the host's
        reason = "needs a mount namespace"
        return Layer("read-only mounts", False, reason), Layer("private /proc", False, reason)
    mounts = _take("read-only mounts", _read_only_mounts, policy)
    if "pid namespace" not in private:
        return mounts, Layer("private /proc", False, "needs a PID namespace")
    proc = _take("private /proc", _private_proc, policy)
    if proc.active and "ipc namespace" in private:
        with contextlib.suppress(OSError):  # System V memory is resident in no process
            for name in ("shmmni", "msgmni"):
                Path("/proc/sys/kernel", name).write_text("0")
    return mounts, proc


def _read_only_mounts(policy: SandboxPolicy) -> str:
    linux.mount(str(policy.scratch), policy.scratch, None, linux.MS_BIND)
    linux.set_read_only(Path("/"), True, recursive=True)
    for path in (policy.scratch, Path("/proc")):  # each process guards its own files in /proc
        linux.set_read_only(path, False)
    options = f"size={_SHARED_MEMORY_BYTES},mode=1777"
    linux.mount("tmpfs", Path("/dev/shm"), "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    return f"all but {policy.scratch}"


def _private_proc(policy: SandboxPolicy) -> str:
    del policy
    linux.mount("proc", Path("/proc"), "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    return "shows only this worker"


# Step 3, in the worker: give up every right.


def enter(policy: SandboxPolicy) -> tuple[Layer, ...]:
    """Give up, for good, what untrusted code must not have; the last step before it runs.

    Changes the calling process: uid, capabilities, rlimits, Landlock domain, environment, directory.
    """
    steps: dict[str, Step] = {
        "session": _own_session,
        "no new privileges": _forbid_new_privileges,
        "system calls": _refuse_system_calls,
        "unprivileged user": _drop_user,
        "limits": _set_limits,
        "landlock files": _restrict_files,
    }
    if policy.instrumented:
        del steps["system calls"], steps["landlock files"]
    layers = [_take(name, step, policy) for name, step in steps.items()]
    if policy.instrumented:
        return (*layers, _take("environment", _settle, policy))
    fenced = layers[-1].active
    version = landlock.abi() if fenced else 0
    for name, since in (("landlock tcp", landlock.NETWORK_ABI), ("landlock scope", landlock.SCOPE_ABI)):
        layers.append(Layer(name, version >= since, f"ABI {version}; needs {since}"))
    layers.append(_take("environment", _settle, policy))
    return tuple(layers)


def _own_session(policy: SandboxPolicy) -> str:
    del policy
    os.setsid()
    # When memory runs out, the kernel takes this process before any other.
    Path("/proc/self/oom_score_adj").write_text("1000")
    return "own session; first to go when memory runs out"


def _drop_user(policy: SandboxPolicy) -> str:
    if os.geteuid() != 0:
        linux.retain_capabilities()
        return f"uid {os.geteuid()}, no capability"
    try:
        return _become_nobody(policy)
    except OSError:  # root of a namespace without other users: at least without root's rights
        linux.retain_capabilities()
        raise


def _become_nobody(policy: SandboxPolicy) -> str:
    owner = os.stat(policy.scratch).st_uid
    uid = owner if owner in _WORKER_UIDS else secrets.choice(_WORKER_UIDS)
    # Reading what a closed home directory hides (the interpreter may live there) is then up to Landlock,
    # and to the filter that forbids reading by handle.
    kept = (linux.CAP_DAC_READ_SEARCH,) if seccomp.active() and _hidden_paths(policy) else ()
    os.chown(policy.scratch, uid, uid)
    linux.clear_capability_bounds(*kept)
    linux.keep_capabilities_over_setuid()
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    linux.retain_capabilities(*kept)
    return f"uid {uid}, {'CAP_DAC_READ_SEARCH alone' if kept else 'no capability'}"


def _hidden_paths(policy: SandboxPolicy) -> list[Path]:
    """Needed paths that another user could not reach for a closed directory above them."""
    needed = [policy.scratch, *(path for path in readable(policy) if os.path.exists(path))]
    return [path for path in needed if any(not p.stat().st_mode & 0o001 for p in path.resolve().parents)]


def _set_limits(policy: SandboxPolicy) -> str:
    limits = policy.limits
    # Root's drop left a uid that runs nothing else; any other user already runs something.
    running = 0 if os.geteuid() in _WORKER_UIDS else _tasks_of(os.geteuid())
    ceilings = {
        resource.RLIMIT_NPROC: running + limits.processes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
    }
    maps = Path("/proc/self/maps").read_text()
    bound_data = not policy.cuda and "libasan" not in maps  # both reserve far more than they use
    if bound_data:
        match = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
        ceilings[resource.RLIMIT_DATA] = limits.memory_bytes + (int(match[1]) << 10 if match else 0)
    for name, value in ceilings.items():
        _, hard = resource.getrlimit(name)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # One second of grace between SIGXCPU and SIGKILL tells the two apart.
        resource.setrlimit(name, (value, value + (name == resource.RLIMIT_CPU and value != hard)))
    return f"{limits.processes} processes" + ("" if bound_data else "; memory by the warden alone")


def _tasks_of(uid: int) -> int:
    tasks = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry.stat().st_uid == uid:
                tasks += sum(1 for _ in (entry / "task").iterdir())
    return tasks


def _forbid_new_privileges(policy: SandboxPolicy) -> str:
    del policy
    linux.forbid_new_privileges()
    return "execve gains nothing"


def _refuse_system_calls(policy: SandboxPolicy) -> str:
    del policy
    return f"{len(seccomp.restrict())} refused"


def _restrict_files(policy: SandboxPolicy) -> str:
    devices = ["null", "zero", "full", "random", "urandom"]
    if policy.cuda:
        devices += [entry for entry in os.listdir("/dev") if entry.startswith("nvidia")]
    rules = dict.fromkeys(readable(policy), landlock.READ)
    rules[Path("/dev")] = landlock.Access.READ_DIR
    rules |= {Path("/dev", name): landlock.DEVICE | landlock.READ for name in devices}
    shared = os.statvfs("/dev/shm")
    if shared.f_blocks * shared.f_frsize == _SHARED_MEMORY_BYTES:  # the private one, not the host's
        rules[Path("/dev/shm")] = landlock.WRITE
    if policy.cuda:  # the driver names its threads there, and gives up if it cannot (error 304)
        names = landlock.Access.WRITE_FILE | landlock.Access.TRUNCATE
        rules[Path("/proc/self/task")] = landlock.READ | names
    rules[policy.scratch] = landlock.WRITE
    return f"ABI {landlock.restrict(rules)}"


def _settle(policy: SandboxPolicy) -> str:
    os.chdir(policy.scratch)
    os.environ.update(scratch_variables(policy.scratch))
    Path(os.environ["TMPDIR"]).mkdir(exist_ok=True)
    return "allow-listed; caches and temporary files in scratch"


_TOOLS = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")  # files that a worker has to run
# Not all of /etc: a worker that may search closed directories must not find the password hashes.
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/opt", "/proc", "/sys")
_CONFIGURATION = (
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "passwd",
    "group",
    "nsswitch.conf",
    "hosts",
    "host.conf",
    "localtime",
    "os",
    "debian_version",
    "python3",
    "python3.11",
    "python3.12",
    "OpenCL",
    "vulkan",
    "nvidia",
)  # below /etc


def readable(policy: SandboxPolicy) -> tuple[Path, ...]:
    """What a worker may read and run: the system, the Python installation, our packages, and `read_paths`.

    An import path that is a source checkout (it holds a pyproject.toml or .git) is not opened as a
    whole: of our own only the packages `atrex` and `bench` are.
    """
    installation = [sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")]
    libraries = [
        *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep),
        *(os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH", *_TOOLS)),
    ]
    checkout = ("pyproject.toml", ".git")
    imports = [p for p in sys.path if not any(os.path.exists(os.path.join(p, mark)) for mark in checkout)]
    system = [*_SYSTEM, *(f"/etc/{name}" for name in _CONFIGURATION)]
    paths = [Path(path) for path in (*system, *installation, *libraries, *imports) if path]
    paths = [path for path in paths if path.is_absolute() and path not in (_HOME, Path("/"))]
    return tuple(dict.fromkeys((*paths, PACKAGE, PACKAGE.parent / "bench", *policy.read_paths)))


def probe(*, cuda: bool = False) -> tuple[Layer, ...]:
    """The layers that a worker would have here, as a real worker reports them.

    Raises EnvironmentProblem where no worker can start at all.
    """
    from atrex.process import ForkServer  # the one upward import: what doctor shows must not be a copy

    with tempfile.TemporaryDirectory(prefix="atrex-probe-") as scratch:
        policy = SandboxPolicy(Path(scratch), Limits(memory_bytes=1 << 30), cuda=cuda)
        with (
            ForkServer(preload=(), environment={}) as server,
            server.spawn("atrex.worker:idle", policy) as worker,
        ):
            return worker.layers
