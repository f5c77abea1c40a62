"""Labels and features of nodes that are not what they should be."""

import numpy as np
import pyarrow as pa

from tests.battery.cases import Case
from tests.battery.makers import folder, gzip, parquet

CLASSES = """task: node_classification
device: cpu
threads: 1
data: {path: $graph, labels: l.tsv}
model: {dimension: 4}
encoder: {layers: [{kind: sage, neighbors: 2}]}
training: {epochs: 1, batch_size: 32}
"""
LABELS = "name\tlabel\tsplit\n1\ta\ttrain\n2\tb\ttrain\n3\ta\tvalid\n4\tb\ttest\n"


def labels(name: str, content, where: str = "", what: str = "", file: str = "l.tsv") -> Case:
    """`train` with one file of labels."""
    text = CLASSES.replace("l.tsv", file)
    return Case(name, "train c.yaml --out r", {"c.yaml": text, file: content}, where, what)


def features(name: str, content, where: str = "", what: str = "") -> Case:
    """`train` with one file of features."""
    text = CLASSES.replace("encoder: {", "encoder: {features: f.parquet, ")
    return Case(name, "train c.yaml --out r", {"c.yaml": text, "l.tsv": LABELS, "f.parquet": content}, where, what)


def of_all(**changed):
    """One number for each node of the graph, but for those that are changed."""
    rows = {str(number): [1.0] for number in range(200) if number != 87} | changed
    return parquet(name=list(rows), features=pa.array(list(rows.values()), pa.list_(pa.float64())))


CASES = [
    Case("labels-missing", "train c.yaml --out r", {"c.yaml": CLASSES}, "l.tsv", "no such file"),
    labels("labels-empty", "", "l.tsv", "the file is empty"),
    labels("labels-only-header", "name\tlabel\tsplit\n", "l.tsv", "the file has no labels"),
    labels("labels-folder", folder, "l.tsv", "is a folder, not a file"),
    labels("labels-no-header", LABELS.partition("\n")[2],
         "l.tsv", "there is no column 'name'; there are '1', 'a', 'train'"),
    labels("labels-column-missing", LABELS.replace("split", "part", 1),
         "l.tsv", "there is no column 'split'; there are 'name', 'label', 'part'"),
    labels("labels-column-twice", LABELS.replace("label", "name", 1),
         "l.tsv", "there is no column 'label'; there are 'name', 'name', 'split'"),
    labels("labels-ragged", LABELS + "5\ta\n", "l.tsv:6", "3 columns are expected, 2 found"),
    labels("labels-split-unknown", LABELS + "5\ta\tdev\n",
         "l.tsv:6", "unknown split 'dev': train, valid, test are known"),
    labels("labels-split-capital", LABELS + "5\ta\tTrain\n",
         "l.tsv:6", "unknown split 'Train': train, valid, test are known; did you mean 'train'?"),
    labels("labels-empty-label", LABELS + "5\t\ttrain\n", "l.tsv:6", "the name in column 'label' is empty"),
    labels("labels-empty-name", LABELS + "\ta\ttrain\n", "l.tsv:6", "the name in column 'name' is empty"),
    labels("labels-node-unknown", LABELS + "nobody\ta\ttrain\n", "l.tsv:6", "unknown node 'nobody'"),
    labels("labels-node-twice", LABELS + "1\tb\ttrain\n", "l.tsv:6", "node '1' has a label already, in line 2"),
    labels("labels-class-unseen", LABELS + "5\tzzz\ttest\n",
         "l.tsv:6", "no node of train has the label 'zzz' of this one of test"),
    labels("labels-one-class", LABELS.replace("\tb\t", "\ta\t"),
         "l.tsv", "all labels are 'a': two classes are needed at least"),
    labels("labels-none-to-train", LABELS.replace("train", "test"), "l.tsv", "no node is in train"),
    labels("labels-utf16", LABELS.encode("utf-16"), "l.tsv:1", "a zero byte: this is a binary file, not text"),
    labels("labels-nul", LABELS.encode() + b"5\ta\x00\ttrain\n",
         "l.tsv:6", "a zero byte: this is a binary file, not text"),
    labels("labels-gz-named-tsv", gzip(LABELS),
         "l.tsv", "the file is compressed with gzip, but its name doesn't end in .gz"),
    labels("labels-suffix", LABELS,
         "l.lst", "unknown kind of file; labels come as .tsv, .csv, .tsv.gz, .csv.gz, .parquet", file="l.lst"),
    labels("labels-text-named-parquet", LABELS, "l.parquet", "not a Parquet file, or a", file="l.parquet"),
    labels("labels-parquet-null", parquet(name=["1", "2"], label=["a", None], split=["train", "train"]),
         "l.parquet", "row 2 has no value in column 'label'", file="l.parquet"),
    labels("labels-parquet-lists", parquet(name=["1"], label=[["a"]], split=["train"]),
         "l.parquet",
         "column 'label' holds list<element: string>: names (strings) or integers are needed", file="l.parquet"),
    labels("labels-quotes", 'name,label,split\n1,"a,train\n',
         "l.csv:2", "the quotes don't match (unexpected end of data); a name can't span lines", file="l.csv"),
    features("features-text", "name,features\n", "f.parquet", "not a Parquet file, or a"),
    features("features-empty", b"", "f.parquet", "the file is empty"),
    features("features-column-missing", parquet(name=["1"], vector=[[1.0]]),
         "f.parquet", "columns 'name' and 'features' (or 'embedding') are needed; there are 'name',"),
    features("features-name-missing", parquet(node=["1"], features=[[1.0]]),
         "f.parquet", "columns 'name' and 'features' (or 'embedding') are needed; there are 'node',"),
    features("features-no-rows", parquet(name=pa.array([], pa.string()), features=pa.array([], pa.list_(pa.float32()))),
         "f.parquet", "the file has no features"),
    features("features-of-few", parquet(name=["1"], features=[[1.0]]),
         "f.parquet", "198 of the graph's 199 nodes have no features: '0' for one"),
    features("features-node-twice", parquet(name=["1", "1"], features=[[1.0], [2.0]]),
         "f.parquet", "row 2: node '1' has features already, in row 1"),
    features("features-ragged", of_all(**{"7": [1.0, 2.0]}), "f.parquet", "row 8 has 2 features, those before have 1"),
    features("features-nan", of_all(**{"7": [float("nan")]}),
         "f.parquet", "row 8 has nan for feature 0 (counted from 0): a finite 32-bit float is needed"),
    features("features-infinite", of_all(**{"7": [float("inf")]}),
         "f.parquet", "row 8 has inf for feature 0 (counted from 0): a finite 32-bit float is needed"),
    features("features-null-row", of_all(**{"7": None}), "f.parquet", "row 8 has no features"),
    features("features-null-value", of_all(**{"7": [None]}),
         "f.parquet", "row 8 has no value for feature 0 (counted from 0)"),
    features("features-empty-row", of_all(**{"7": []}), "f.parquet", "row 8 has 0 features, those before have 1"),
    features("features-beyond-32-bits", of_all(**{"7": [1e300]}),
         "f.parquet", "row 8 has 1e+300 for feature 0 (counted from 0): a finite 32-bit float is needed"),
    features("features-integers", parquet(name=["1"], features=[[1]]),
         "f.parquet", "column 'features' holds list<element: int64>: lists of 32- or 64-bit floats are"),
    features("features-scalars", parquet(name=["1"], features=np.ones(1)),
         "f.parquet", "column 'features' holds double: lists of 32- or 64-bit floats are needed"),
    features("features-texts", parquet(name=["1"], features=[["x"]]),
         "f.parquet", "column 'features' holds list<element: string>: lists of 32- or 64-bit floats are"),
]  # fmt: skip
