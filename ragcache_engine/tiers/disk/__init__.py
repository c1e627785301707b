"""The disk tier: one checksummed file for each block, in a folder with a byte quota."""
