"""How much device memory a step on clicks takes beside the rows and arrays that it is given; see `runs.memory.plan`.

Sums of what is held at once where that is the most, as a dry run of the step shows it (docs/gpu.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from marius_oac.config.ctr import CtrConfig
from marius_oac.data.logs.tables import FeatureTable


def click_step_bytes(config: CtrConfig, tables: Sequence[FeatureTable], weighted: bool) -> int:
    """Of a batch of examples, or of those that are predicted at once: what was gathered, the network's layers, and
    gradients, above all by rows. A network of the user's is taken for an MLP."""
    model, numbers = config.model, config.data.num_numbers
    occurrences = [(table.max_ids, table.dimension + weighted) for table in tables]
    ids, gathered = sum(count for count, _ in occurrences), sum(count * width for count, width in occurrences)
    columns = sum(len(table.singles) + len(table.bags) for table in tables)
    fields = sum((len(table.singles) + len(table.bags)) * table.dimension for table in tables)
    steps = sum(each.max_values * (each.dimension or model.dimension) for each in config.data.sequences)
    width, hidden = fields + numbers, max(model.hidden, default=0)
    pairs, mlp = (columns + 1) * columns // 2, sum(model.hidden) * (1 + model.batch_norm + 1.25 * bool(model.dropout))
    mlp += (3 if model.batch_norm else 2) * hidden
    trained = {
        "lr": 0,
        "fm": 2 * fields,
        "dlrm": sum(model.bottom) + fields + 2 * model.dimension + pairs + mlp,
        "dcnv2": (3 + 2 * model.cross_layers) * width + mlp - hidden,
        "dien": 17.5 * steps + width + mlp,
    }.get(model.network, width + mlp)
    predicted = {"lr": 0, "fm": 2 * fields, "dlrm": fields + 3 * pairs, "dien": 6 * steps + width + 2 * hidden}.get(
        model.network, 2 * width + 2 * hidden
    )
    largest = max(count * width for count, width in occurrences)
    training = max(gathered + trained, 2 * gathered + 3 * largest + 12 * ids)
    prediction = gathered + max(gathered, predicted)
    return int(4 * max(config.training.batch_size * training, config.evaluation.batch_size * prediction))
