"""What a user changes in each example: `python -m tests.examples.diffs` prints it as the page of examples has it."""

from difflib import SequenceMatcher

from tests.examples.running import EXAMPLES
from tests.house.test_house import ROOT

FOLDER = ROOT / "examples" / "own_loops"


def changes(before, after):
    """Pairs of lists of lines, those that go and those that come. Indentation does not count."""
    old, new = before.splitlines(), after.splitlines()
    matcher = SequenceMatcher(None, [line.strip() for line in old], [line.strip() for line in new], autojunk=False)
    return [(old[a:b], new[c:d]) for tag, a, b, c, d in matcher.get_opcodes() if tag != "equal"]


def of(name):
    """The changes of an example."""
    return changes(*((FOLDER / side / f"{name}.py").read_text("utf-8") for side in ("before", "after")))


def lines(found):
    """How many lines a user touches: of each change those that go or those that come, whichever are more."""
    return sum(max(map(len, pair)) for pair in found)


def shown(found):
    """The changes as a block of a page."""
    return "\n".join(
        [
            "```diff",
            *(sign + line for pair in found for sign, part in zip("-+", pair, strict=True) for line in part),
            "```",
        ]
    )


if __name__ == "__main__":
    for name in EXAMPLES:
        print(name, lines(of(name)), shown(of(name)), sep="\n")
