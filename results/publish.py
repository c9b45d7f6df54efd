"""Make the published results: run suites and a task, verify what they left, and write README.md from the files alone.

python results/publish.py run       runs the suites into this folder (needs EVALHARNESS_MIRROR; about 15 minutes on two cores)
python results/publish.py readme    writes README.md from the folders
python results/publish.py check     verifies every record and says whether README.md is what `readme` would write
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
MINILM = "examples/minilm.py"
IMAGE = ["pixels", "random-conv", "colour-histogram", "random-projection?dim=64"]
TEXT = ["hashed-ngrams", "wordllama"]
RUNS = {
    "quick": [*IMAGE[:3], "colour-words", *TEXT, "minilm", "identity", "random-projection?dim=8"],
    "text-basic": [*TEXT, "minilm"],
    "image-basic": IMAGE[:2],
    "few-shot-omniglot": IMAGE,
    "sentence-factors": ["minilm", "minilm?untrained=true"],
}
LEDGERS = {"image-basic": None, "text-basic": None, "sentence-factors": "minilm?untrained=true"}  # with the encoder to differ from
PAIRS = {"text-basic": ("minilm", "wordllama"), "image-basic": ("random-conv", "pixels"), "few-shot-omniglot": ("random-conv", "pixels")}


def command(suite: str) -> list[str]:
    """Return the command line that makes one suite's results."""
    encoders = [word for encoder in RUNS[suite] for word in ("-e", encoder)]
    plugins = ["-p", MINILM] if "minilm" in RUNS[suite] else []
    return ["evalharness", "run", suite, *plugins, *encoders, "--out", f"results/{suite}"]


def evalharness(*words: str) -> str:
    """Run a command of the harness in the repository's root and return what it prints."""
    return subprocess.run(["evalharness", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.rstrip()


def folders() -> list[str]:
    """Return the result folders, as a reader of the repository names them."""
    return [f"results/{suite}" for suite in RUNS]


def write_readme() -> str:
    """Return the page: how the results were made, the tables, and what may be claimed."""
    lines = [
        "# Published results",
        "",
        "This page is made by `python results/publish.py readme` from the folders beside it; nothing on it is typed.",
        "",
        "## How they were made",
        "",
        "```",
        *[" ".join(f"'{word}'" if "?" in word else word for word in command(suite)) for suite in RUNS],
        "```",
        "",
        f"with {_versions()}.",
        "Data of `text-basic`, `image-basic` and `few-shot-omniglot` come from a mirror folder named by `EVALHARNESS_MIRROR`; those of `quick` are built in.",
        "`minilm` is all-MiniLM-L6-v2, registered by the plugin file `examples/minilm.py`.",
        "",
        "## How to check them",
        "",
        "```",
        f"evalharness verify {' '.join(folders())}",
        "```",
        "",
        f"> {evalharness('verify', *folders()).splitlines()[-1]}",
        "",
        "Every value, interval and p value is computed again from the stored items; [docs/verify.md](../docs/verify.md) says what that proves.",
        "",
        "## Leaderboards",
        "",
        evalharness("leaderboard", *folders(), "--format", "markdown"),
        "",
        "## What can be read out",
        "",
        "`minilm?untrained=true` has random weights: the differences to it are what training has added, and what it has removed.",
        "",
        *[_ledger(suite, reference) + "\n" for suite, reference in LEDGERS.items()],
        "## What may be claimed",
        "",
        *[line for suite, pair in PAIRS.items() for line in (f"- {suite}: {_claim(suite, pair)}",)],
        "",
        "## Costs",
        "",
        evalharness("leaderboard", *folders(), "--by", "cost", "--format", "markdown").partition("\n")[2].strip(),
    ]
    return "\n".join(lines) + "\n"


def _versions() -> str:
    facts = json.loads(next((HERE / "text-basic").glob("*/run.json")).read_text(encoding="utf-8"))
    versions = ", ".join(f"{name} {version}" for name, version in sorted(facts["versions"].items()))
    return f"{versions} on {facts['hardware']['cores']} cores ({facts['hardware']['machine']})"


def _ledger(suite: str, reference: str | None) -> str:
    apart = [] if reference is None else ["--reference", reference]
    return evalharness("leaderboard", f"results/{suite}", "--by", "target", *apart, "--format", "markdown")


def _claim(suite: str, pair: Sequence[str]) -> str:
    return str(json.loads(evalharness("compare", *pair, f"results/{suite}", "--json"))["sentence"])


def main() -> None:
    """Do what the command line asks."""
    what = sys.argv[1] if len(sys.argv) == 2 else ""
    page = HERE / "README.md"
    if what == "run":
        for suite in RUNS:
            subprocess.run(command(suite), cwd=ROOT, check=True)
    elif what == "readme":
        page.write_text(write_readme(), encoding="utf-8")
    elif what == "check":
        if page.read_text(encoding="utf-8") != write_readme():
            sys.exit("results/README.md is not what the folders beside it give; run `python results/publish.py readme`")
        print("results hold what they claim, and README.md is made from them")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
