"""token_shard.py: the header of token shards (docs/reference/evaluation.md)."""

HEADER_BYTES = 1024
WIDE_MAGIC = 20240801  # of shards of 32-bit tokens


def token_bytes(raw):
    """Of one token of the shard whose bytes these are."""
    return 4 if int.from_bytes(raw[:4], "little") == WIDE_MAGIC else 2
