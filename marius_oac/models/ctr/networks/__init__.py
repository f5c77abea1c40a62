"""Networks that predict clicks; `models.ctr.network` knows them by name."""
