"""Training on a Ray cluster: what users import, as `import marius_oac.ray`. See docs/launch.md, "On Ray".

Ray itself is imported when training starts.
"""

from marius_oac.training.on_ray import train

__all__ = ["train"]
