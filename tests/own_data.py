"""Logs and graphs as a stranger might bring them: each of another make, seeded, with structure to be found."""

import csv
import gzip
from pathlib import Path

import numpy as np

CENSUS = (
    "age", "workclass", "weight", "education", "education_num", "marital", "occupation", "sex", "capital_gain",
    "capital_loss", "hours", "country", "income",
)  # fmt: skip
SCHOOLS = ("none", "primary", "some high school", "high school", "college", "bachelor", "master", "doctor")
JOBS = ("farming", "service", "craft", "clerical", "sales", "technical", "professional", "managerial")


def census(path: Path, rows: int, seed: int = 0) -> Path:
    """Persons with ages, hours, weights of 10^5, gains that are nearly always 0 and have a heavy tail; a quarter of
    them has an income of `>50K`. CSV with a header, texts with blanks, incomes as texts."""
    draw = np.random.default_rng(seed)
    age = np.clip(17 + draw.gamma(2.4, 9.5, rows), 17, 90).astype(int)
    school = np.clip(np.round(draw.normal(3.6, 1.6, rows)), 0, 7).astype(int)
    job = np.clip(np.round(school + draw.normal(0, 2.2, rows)), 0, 7).astype(int)
    married = draw.random(rows) < 1 / (1 + np.exp(-(age - 31) / 6)) * 0.72
    male = draw.random(rows) < 0.5 + 0.25 * married
    hours = np.clip(np.round(np.where(draw.random(rows) < 0.45, 40, draw.normal(40 + job, 12, rows))), 1, 99).astype(
        int
    )
    gains = draw.random(rows) < 0.05 + 0.06 * (school > 4)
    gain = np.where(gains, np.minimum(np.round(np.exp(draw.normal(8.3, 1.1, rows))), 99_999), 0).astype(int)
    losses = (draw.random(rows) < 0.05) & ~gains
    loss = np.where(losses, np.round(draw.normal(1870, 330, rows)), 0).astype(int)
    weight = np.round(np.exp(draw.normal(12.0, 0.55, rows))).astype(int)
    logit = (
        -5.3 + 2.6 * married + 0.45 * school + 0.28 * job - 0.0035 * (age - 50) ** 2 / 2 + 0.035 * (hours - 40)
        + np.where(gain > 5000, 5.0, np.where(gain > 0, -1.5, 0.0)) + np.where((loss > 1750) & (loss < 2000), 2.5, 0.0)
    )  # fmt: skip
    rich = draw.random(rows) < 1 / (1 + np.exp(-1.4 * logit))
    work = draw.choice(
        ["Private", "State gov", "Local gov", "Self employed", "?"], rows, p=[0.7, 0.08, 0.08, 0.09, 0.05]
    )
    country = draw.choice(["United States", "Mexico", "India", "Cuba"], rows, p=[0.9, 0.05, 0.03, 0.02])
    with _text(path) as file:
        write = csv.writer(file)
        write.writerow(CENSUS)
        for i in range(rows):
            write.writerow((
                age[i], work[i], weight[i], SCHOOLS[school[i]], 2 * school[i] + 1,
                "married" if married[i] else "single", JOBS[job[i]], "Male" if male[i] else "Female", gain[i], loss[i],
                hours[i], country[i], ">50K" if rich[i] else "<=50K",
            ))  # fmt: skip
    return path


def _text(path: Path):
    return gzip.open(path, "wt", newline="") if path.suffix == ".gz" else open(path, "w", newline="")
