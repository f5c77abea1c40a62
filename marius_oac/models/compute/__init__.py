"""What every model computes with: threads, products, optimizers of rows and dense parameters, user code."""
