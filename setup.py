"""What setup.cfg can't say: the README as it is shown elsewhere, where links to files of this folder lead nowhere."""

import re
from pathlib import Path

from setuptools import setup

text = Path(__file__).with_name("README.md").read_text("utf-8")
text = re.sub(r"\[([^]]+)\]\(\1\)", r"`\1`", text)
setup(long_description=re.sub(r"!?\[([^]]+)\]\((?!https?:)([^)]+)\)", r"\1 (`\2`)", text))
