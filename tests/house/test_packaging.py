"""What the project is built, tried and cited by."""

import re

import yaml

from tests.house.test_house import ROOT


def test_an_image_is_built_by_the_steps_that_the_wheel_is_tried_by():
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text("utf-8"))
    steps = workflow["jobs"]["wheel"]["steps"]
    text = (ROOT / "Containerfile").read_text("utf-8")
    assert re.findall(r"^RUN (.+)$", text, flags=re.M) == [step["run"] for step in steps if "run" in step] != []
    [python] = [step["with"]["python-version"] for step in steps if "setup-python" in step.get("uses", "")]
    assert set(re.findall(r"^FROM (\S+)", text, flags=re.M)) == {f"python:{python}-slim"}
    assert f"ARG PIP_EXTRA_INDEX_URL={workflow['env']['PIP_EXTRA_INDEX_URL']}\n" in text


def test_the_citation_has_what_its_format_needs_and_all_papers():
    """Citation File Format 1.2.0."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert cited["cff-version"] == "1.2.0" and cited["message"] and cited["title"] == "marius_oac"
    assert f"author = {cited['authors'][0]['name']}\nlicense = {cited['license']}\n" in (ROOT / "setup.cfg").read_text()
    papers = cited["references"]
    assert all(paper["type"] in ("article", "conference-paper") and paper["title"] for paper in papers)
    authors = [[f"{each['given-names']} {each['family-names']}" for each in paper["authors"]] for paper in papers]
    assert [each[0] for each in authors] == ["Roger Waleffe", "Weijie Zhao", "Qinqing Zheng", "Wenbo Su"]
