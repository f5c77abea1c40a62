"""Training on Ray: `import marius_oac.ray`, then `marius_oac.ray.train(config, trainers=4)`. See docs/launch.md."""

from marius_oac.training.on_ray import train

__all__ = ["train"]
