"""Logs and graphs as a stranger might bring them: each of another make, seeded, with structure to be found."""

import csv
import gzip
from collections.abc import Callable
from dataclasses import dataclass
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


def ratings(path: Path, rows: int, seed: int = 0) -> Path:
    """Users who rate films from 1 to 5 as both their tastes go, each at some second of 2015 to 2020. CSV."""
    draw = np.random.default_rng(seed)
    users, films = 300, 200
    taste, kind = draw.normal(size=(users, 2)), draw.normal(size=(films, 2))
    user, film = draw.integers(users, size=rows), (draw.zipf(1.2, rows) - 1) % films
    liked = 3.4 + 0.9 * (taste[user] * kind[film]).sum(1) + draw.normal(0, 0.5, rows)
    stars = np.clip(np.round(liked), 1, 5).astype(int)
    when = np.sort(draw.integers(1_420_000_000, 1_600_000_000, rows))
    with _text(path) as file:
        write = csv.writer(file)
        write.writerow(("userId", "movieId", "rating", "timestamp"))
        write.writerows(zip(user + 1, 10 * film + 7, stars, when, strict=True))
    return path


def advertising(path: Path, rows: int, seed: int = 0) -> Path:
    """As Criteo's log: no names, tabs, a label, counts with gaps and some of -1, ids in hexadecimal with gaps."""
    draw = np.random.default_rng(seed)
    counts = np.floor(np.exp(draw.normal((0.5, 2.0, 3.0, 5.0), (1.0, 1.5, 1.2, 2.0), (rows, 4)))) - 1
    ids = (draw.zipf(1.3, (rows, 5)) - 1) % np.array((20, 60, 200, 1000, 3000))
    effect = np.random.default_rng(77).normal(0, 0.8, (5, 3000))
    logit = (
        effect[np.arange(5), ids].sum(1) - 1.2 + 0.9 * np.log1p(np.maximum(counts[:, 0], 0)) - 0.2 * (counts[:, 1] < 0)
    )
    click = (draw.random(rows) < 1 / (1 + np.exp(-logit))).astype(int)
    gaps = draw.random((rows, 9)) < np.array((0.4, 0.0, 0.2, 0.03, 0, 0, 0.05, 0, 0.1))
    with _text(path) as file:
        for i in range(rows):
            numbers = ["" if gap else str(int(each)) for each, gap in zip(counts[i], gaps[i], strict=False)]
            keys = [
                "" if gap else f"{(each * 2654435761 + 97) % 2**32:08x}"
                for each, gap in zip(ids[i], gaps[i, 4:], strict=True)
            ]
            file.write("\t".join([str(click[i]), *numbers, *keys]) + "\n")
    return path


def links(path: Path, edges: int, seed: int = 0) -> Path:
    """Pages of 30 sites that link to pages of their own site, mostly. Comments above, tabs, ids, no relations."""
    draw = np.random.default_rng(seed)
    sites, pages = 30, 20
    source = draw.integers(sites * pages, size=edges)
    site = np.where(draw.random(edges) < 0.9, source // pages, draw.integers(sites, size=edges))
    target = site * pages + (draw.zipf(1.5, edges) - 1) % pages
    with _text(path) as file:
        file.write("# Links between pages\n# FromNodeId\tToNodeId\n")
        file.writelines(f"{one}\t{other}\n" for one, other in _once(zip(source, target, strict=True)))
    return path


def facts(path: Path, edges: int, seed: int = 0) -> Path:
    """Persons, towns, firms and trades, whose relations follow hidden groups. CSV with a header; all names stand in
    quotes, and have commas and quotes in them."""
    draw = np.random.default_rng(seed)
    persons, towns = 300, 12
    home, trade = np.arange(persons) % towns, draw.integers(4, size=persons)
    names = [f'Meier "{number}", Anna' for number in range(persons)]
    drawn = []
    for one in draw.integers(persons, size=edges).tolist():
        known = np.flatnonzero((home == home[one]) & (trade // 2 == trade[one] // 2))
        drawn.append(
            (
                (names[one], "lives in", f"Town {home[one]}, North"),
                (names[one], "works for", f"Firm {home[one]} & {trade[one] // 2}"),
                (names[one], "has trade", f"Trade {trade[one]}"),
                *([(names[one], "knows", names[draw.choice(known)])] * 4),
            )[draw.integers(7)]
        )
    with _text(path) as file:
        write = csv.writer(file, quoting=csv.QUOTE_ALL)
        write.writerow(("subject", "predicate", "object"))
        write.writerows(_once(drawn))
    return path


def _once(edges):
    """Each edge once, where it comes first."""
    return list(dict.fromkeys(edges))


def _text(path: Path):
    return gzip.open(path, "wt", newline="") if path.suffix == ".gz" else open(path, "w", newline="")


@dataclass(frozen=True)
class Own:
    """A file of so many rows or edges, the metric of what is trained on it, what that must exceed, and why so much: by
    what simple ways reach on the same splits (`benchmarks.data.own_data`)."""

    make: Callable[..., Path]
    file: str
    rows: int
    metric: str
    more_than: float
    simple: str


OWN = {
    "census": Own(census, "adult.csv", 12_000, "test.auc", 0.917, "logistic regression has 0.917: ages and gains bend"),
    "ratings": Own(ratings, "ratings.csv", 20_000, "test.auc", 0.85, "it has 0.554: tastes are products"),
    "advertising": Own(advertising, "train.txt", 20_000, "test.auc", 0.81, "it has 0.835: the log is made by one"),
    "links": Own(links, "links.txt", 4_000, "test.filtered.mrr", 0.117, "10 times random; popularity has 0.021"),
    "facts": Own(facts, "facts.csv", 8_000, "test.filtered.mrr", 0.194, "10 times random; popularity has 0.041"),
}
