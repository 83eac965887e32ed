"""What the front page shows must be so."""

from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.slow
def test_the_numbers_that_the_lines_of_python_print_show_a_gain(capsys):
    lines = README.read_text().split("```python\n")[1].split("```")[0]
    exec(lines, {})
    first, *rest = capsys.readouterr().out.splitlines()
    alone, together = map(float, first.split())
    assert together > alone + 0.1
    assert len(rest) == 5  # the means of five components
