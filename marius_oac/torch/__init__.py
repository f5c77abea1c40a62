"""The engine in a training loop of your own, in plain torch: what users import, as `import marius_oac.torch as mt`.

`Embedding` and `EmbeddingBag` are modules whose rows belong to keys; `Adagrad`, `Adam` and `SGD` update the rows of the
batch at hand; `clip_grad_norm_` clips their gradients with those of parameters; `Engine.batches` gives the batches of a
loader, with rows of the next ones on their way. See docs/own_loop.md.
"""

from marius_oac.torch.bag_collections import EmbeddingBagCollection
from marius_oac.torch.clipping import clip_grad_norm_
from marius_oac.torch.converting import convert
from marius_oac.torch.direct import Table
from marius_oac.torch.engine import Engine
from marius_oac.torch.modules import Embedding, EmbeddingBag
from marius_oac.torch.optimizers import SGD, Adagrad, Adam

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "Engine",
    "Table",
    "clip_grad_norm_",
    "convert",
]
