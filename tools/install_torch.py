"""Install the torch that suits this machine, with the standard library alone.

A machine with an NVIDIA GPU gets pip's default build. Any other gets the CPU build: pip's own if its
configuration offers one, else the one of PyTorch's CPU index. Nothing happens when torch is already there.
"""

import importlib.util
import json
import platform
import shutil
import subprocess
import sys

VERSION = "2.13.0"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def has_gpu() -> bool:
    """True when the NVIDIA driver answers."""
    if shutil.which("nvidia-smi") is None:
        return False
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode == 0


def default_is_cpu_build() -> bool:
    """True when plain pip would take a CPU build: a wheel marked +cpu, or a platform that has no other."""
    if platform.system() != "Linux":
        return True
    command = [*PIP, "install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet", "--report", "-"]
    answer = subprocess.run([*command, f"torch=={VERSION}"], capture_output=True, text=True, check=False)
    if answer.returncode:
        return False
    url = json.loads(answer.stdout)["install"][0]["download_info"]["url"]
    return "%2Bcpu" in url or "+cpu" in url


def main() -> int:
    """Exit code of pip, or 0."""
    if importlib.util.find_spec("torch") is not None:
        return 0
    command = [*PIP, "install", f"torch=={VERSION}"]
    if not has_gpu() and not default_is_cpu_build():
        command += ["--index-url", CPU_INDEX]
    print("+", " ".join(command), flush=True)
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
