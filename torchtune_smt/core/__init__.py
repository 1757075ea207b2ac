"""What everything else stands on: names, numbers, files."""
