"""Files: written completely or not at all, and checked on reading where others may have made them."""
