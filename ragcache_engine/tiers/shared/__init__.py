"""A store that the engines of several hosts share, below their own disks."""
