"""The disk tier: a checksummed file for each block, in a folder with a byte quota."""
