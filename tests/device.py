"""The device that tests marked `device` run on: CPU tensors, or what MARIUS_OAC_TEST_DEVICE names (cuda, cuda:1).

Where it is a GPU, `python -m pytest -m device` is the test of the CUDA path.
"""

import os

import torch

DEVICE = torch.device(os.environ.get("MARIUS_OAC_TEST_DEVICE", "cpu"))
if DEVICE.type == "cuda" and DEVICE.index is None:
    DEVICE = torch.device("cuda:0")
