"""Models to and from other toolkits."""
