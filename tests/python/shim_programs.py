# SPDX-License-Identifier: Apache-2.0
"""Programs that the tests of shims run, each in a process of its own."""

import os
import subprocess
import sys

_SPAWN = """
import multiprocessing, onehop.{name}

def child(queue):
    {importing}
    queue.put(found.__module__)

if __name__ == "__main__":
    onehop.{name}.install()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get(timeout=50))
    process.join(50)
"""


def python(code, **environment):
    """Run code in a fresh interpreter; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "no such variable" not in done.stderr
    return done.stdout


def found_by_spawned(folder, name, importing):
    """Return the module of `found` as a process imports it that is spawned after install()."""
    script = folder / "spawn.py"
    script.write_text(_SPAWN.format(name=name, importing=importing))
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True)
    return done.stdout.strip()


def check_without_numpy(name):
    """Without numpy onehop.name and its command say what to install."""
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        f"try:\n    import onehop.{name}\n"
        "except ImportError as failure:\n    print(failure)\n"
    )
    assert "pip install numpy" in python(code)
    code = (
        f"import sys; sys.modules['numpy'] = None; sys.argv = ['onehop', '{name}-path']\n"
        "import onehop.cli\n"
        "try:\n    onehop.cli.main()\nexcept SystemExit as end:\n    print(end.code)\n"
    )
    assert python(code).strip() == "1"
