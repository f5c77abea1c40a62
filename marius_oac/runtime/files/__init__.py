"""Files: written whole or not at all, and read with care where somebody else may have made them."""
