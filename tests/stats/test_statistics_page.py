"""The page on statistics: its examples run and print what it says, and it names all that is public."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from evalharness import stats

PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"


def test_examples_print_what_the_page_says():
    text = "\n".join(re.findall(r"(?ms)^```pycon\n(.*?)^```$", PAGE.read_text()))
    test = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    runner = doctest.DocTestRunner(verbose=False)
    report: list[str] = []
    runner.run(test, out=report.append)

    assert len(test.examples) > 40
    assert not runner.failures, "".join(report)


def test_page_names_every_function():
    text = PAGE.read_text()
    types = {name for name in stats.__all__ if name[0].isupper()}

    assert sorted(name for name in set(stats.__all__) - types if f"`{name}" not in text and f"stats.{name}" not in text) == []
